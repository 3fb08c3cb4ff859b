#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The main job on a machine with nothing prepared: installs missing packages, builds the command line tool,
# replays a serving trace and draws the plan of one batch.
#
#   ./demo.sh                              the small trace that comes with Capillary, every 8th step executed
#   ./demo.sh my-trace.jsonl [OPTION...]   your own, with options of `capillary replay`
set -euo pipefail
cd_from="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")"
source scripts/common.sh

trace="traces/demo.jsonl"
# A pool that is just large enough, so that the cache has to evict.
options=(--pages 1500 --execute-every 8 --compare-every 1)
if [[ $# -gt 0 ]]; then
  trace="$(cd "$cd_from" && realpath -- "$1")"
  shift
  options=("$@")
fi
[[ -r "$trace" ]] || die "demo: cannot read the trace '$trace'; it must be a JSON lines file; see README.md"

install_packages "${build_packages[@]}"
choose_compiler

step "Building (log: $log_dir/build-demo.log)"
# The kernel takes minutes to compile, so it is built only where a card can run it.
cuda=OFF
if command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -q '^9\.0'; then
  cuda=AUTO
fi
run_logged configure-demo cmake --preset cpu-release -B build/demo -DCAPILLARY_CUDA="$cuda" \
  -DCAPILLARY_BUILD_TESTS=OFF -DCAPILLARY_BUILD_BENCH=OFF
run_logged build-demo cmake --build build/demo -j "$jobs"
capillary="build/demo/bin/capillary"

step "What this build and machine can do"
"$capillary" info

mkdir -p out
step "Replaying $trace"
"$capillary" replay "$trace" --report out/replay.html "${options[@]}"

step "Drawing the plan of one batch"
"$capillary" plan --tree 1x2048,4x512,32x128 --heads 32/8 --html out/plan.html

say ""
say "Open out/replay.html and out/plan.html in a browser; docs/replay.md explains every line above."
