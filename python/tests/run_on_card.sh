#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the Python package on a machine with a Hopper GPU, runs its tests on CUDA tensors, and measures: host time
# of a planned run, tokens/s in Transformers. Needs python3 with torch, nanobind, scikit-build-core and pytest, and
# nvcc; no network. Usage: python/tests/run_on_card.sh [test] [overhead] [tokens] (default: all three)
#
# CAPILLARY_PREFIX     an installed Capillary to link instead of building one; it must have been built with CUDA
# CAPILLARY_HEAD_DIMS  head dims to build kernels for (default "64;128")
# CAPILLARY_SITE       folder that the package goes to (default build/card-site); kept there, it is not built again
# CAPILLARY_JOBS       compile jobs (default: all cores)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
site="${CAPILLARY_SITE:-$PWD/build/card-site}"
logs=build/card-logs
mkdir -p "$logs"
failed=0
say() { printf '%s\n' "$*"; }

# limited NAME SECONDS COMMAND...: output to a log; says how it ended.
limited() {
  local name="$1" seconds="$2" begin=$SECONDS status=0
  shift 2
  timeout --kill-after=10 "$seconds" "$@" >"$logs/$name.log" 2>&1 || status=$?
  if [[ $status -ne 0 ]]; then
    failed=1
    say "FAILED $name: exit $status after $((SECONDS - begin)) s"
    tail -n "${show:-15}" "$logs/$name.log"
    return 1
  fi
  say "ok $name: $((SECONDS - begin)) s"
}

build() {
  local options=(-C cmake.define.CAPILLARY_HEAD_DIMS="${CAPILLARY_HEAD_DIMS:-64;128}"
    -C cmake.define.CAPILLARY_BUILD_TOOLS=OFF -C cmake.define.CAPILLARY_CUDA=ON -C build-dir=build/card)
  if [[ -n "${CAPILLARY_PREFIX:-}" ]]; then
    options=(-C cmake.source-dir=python -C cmake.define.CMAKE_PREFIX_PATH="$CAPILLARY_PREFIX" -C build-dir=build/card-prefix)
  fi
  CMAKE_BUILD_PARALLEL_LEVEL="${CAPILLARY_JOBS:-$(nproc)}" python3 -m pip install -v --no-build-isolation --no-deps \
    --no-index --disable-pip-version-check --target "$site" --upgrade "${options[@]}" .
}
export -f build
export site

if [[ ! -d "$site/capillary" ]]; then
  limited build 400 bash -c build || exit 1
fi
export PYTHONPATH="$site"
show=40 limited doctor 60 python3 -m capillary.doctor || exit 1

steps=("$@")
[[ ${#steps[@]} -gt 0 ]] || steps=(test overhead tokens)
for step in "${steps[@]}"; do
  case "$step" in
    test)
      export CAPILLARY_TEST_DEVICE=cuda
      show=60 limited pytest-torch 200 python3 -m pytest -p no:cacheprovider python/tests/test_torch.py || true
      show=60 limited pytest-transformers 200 python3 -m pytest -p no:cacheprovider python/tests/test_transformers.py || true
      show=30 limited pytest-host 120 python3 -m pytest -p no:cacheprovider python/tests/test_forest.py \
        python/tests/test_planner.py python/tests/test_examples.py || true
      unset CAPILLARY_TEST_DEVICE
      grep -hE '^(FAILED|ERROR|SKIPPED)|passed|failed' "$logs"/pytest-*.log || true
      ;;
    overhead)
      limited overhead 90 python3 python/bench/host_overhead.py && tail -n 1 "$logs/overhead.log"
      ;;
    tokens)
      for requests in 64 256; do
        for implementation in capillary sdpa sdpa-static eager batch-capillary batch-sdpa; do
          name="tokens-$implementation-$requests"
          show=4 limited "$name" "${CAPILLARY_TOKENS_S:-75}" \
            python3 python/bench/transformers_tokens.py "$implementation" "$requests" && tail -n 1 "$logs/$name.log"
        done
      done || true
      ;;
    *)
      say "unknown step '$step'; must be test, overhead or tokens"
      exit 2
      ;;
  esac
done
[[ $failed -eq 0 ]] && say "all steps passed" || say "some steps failed"
exit "$failed"
