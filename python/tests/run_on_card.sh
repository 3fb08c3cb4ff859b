#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The Python package on a machine with a Hopper GPU: its tests on CUDA tensors, the host's time of a planned run,
# tokens/s in Transformers. Needs python3 with torch, transformers and pytest; no network. Ends within
# CAPILLARY_CARD_S seconds, whatever happens: every stage has a limit, and no more than what is left of the whole.
# Usage: python/tests/run_on_card.sh [test] [overhead] [tokens]   (default: all three)
#
# CAPILLARY_WHEEL      a wheel made elsewhere for this Python, installed in a few seconds: pip wheel . --no-deps
#                      -C cmake.source-dir=python -C cmake.define.CMAKE_PREFIX_PATH=PREFIX
# CAPILLARY_PREFIX     without a wheel: an installed Capillary, built with CUDA, to build the package against; needs
#                      nanobind, scikit-build-core and a C++ compiler. Without either all is built, for minutes
# CAPILLARY_SITE       folder that the package goes to (default build/card-site); kept there, it is not made again
# CAPILLARY_CARD_S     seconds for everything (default 200)
# CAPILLARY_TOKEN_ARMS arms of python/bench/transformers_tokens.py, most important first
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
site="${CAPILLARY_SITE:-$PWD/build/card-site}"
total="${CAPILLARY_CARD_S:-200}"
logs=build/card-logs
mkdir -p "$logs"
rm -f "$logs"/*.log
failed=0
say() { printf '%s\n' "$*"; }

# limited NAME SECONDS COMMAND...: output to $logs/NAME.log; says how it ended, and shows the end of what failed.
limited() {
  local name="$1" seconds="$2" begin=$SECONDS status=0
  shift 2
  local left=$((total - SECONDS - 3))
  [[ $left -lt $seconds ]] && seconds=$left
  if [[ $seconds -lt 1 ]]; then
    say "FAILED $name: no time left of $total s"
    return 1
  fi
  timeout --kill-after=3 "$seconds" "$@" >"$logs/$name.log" 2>&1 || status=$?
  if [[ $status -eq 0 ]]; then
    say "ok $name: $((SECONDS - begin)) s"
    return 0
  fi
  say "FAILED $name: exit $status after $((SECONDS - begin)) of $seconds s (124: out of time)"
  grep -v '^{' "$logs/$name.log" | tail -n "${show:-12}" || true
  return 1
}

# Without pip, which not every environment has.
unpack_wheel() {
  limited install 20 python3 -m zipfile -e "$CAPILLARY_WHEEL" "$site" || return 1
  local script
  mkdir -p "$site/bin"
  for script in "$site"/capillary-*.data/scripts/*; do
    [[ -f "$script" ]] && install -m 755 "$script" "$site/bin"
  done
  return 0
}

install_package() {
  if [[ -n "${CAPILLARY_WHEEL:-}" ]]; then
    unpack_wheel
    return
  fi
  local pip=(python3 -m pip install --no-index --no-deps --disable-pip-version-check --upgrade --target "$site")
  export CMAKE_BUILD_PARALLEL_LEVEL="${CAPILLARY_JOBS:-$(nproc)}"
  if [[ -n "${CAPILLARY_PREFIX:-}" ]]; then
    limited build 60 "${pip[@]}" --no-build-isolation -C cmake.source-dir=python \
      -C cmake.define.CMAKE_PREFIX_PATH="$CAPILLARY_PREFIX" -C build-dir=build/card-prefix-build .
    return
  fi
  total=$((total + 400))
  limited build 400 "${pip[@]}" --no-build-isolation -C cmake.define.CAPILLARY_HEAD_DIMS="64;128" \
    -C cmake.define.CAPILLARY_CUDA=ON -C build-dir=build/card .
}

# The three parts of the suite at the same time: most of their seconds are the host's.
run_tests() {
  local pytest=(python3 -m pytest -p no:cacheprovider -vv --durations=5) part running=()
  export CAPILLARY_TEST_DEVICE="${CAPILLARY_TEST_DEVICE:-cuda}"
  limited pytest-torch 70 "${pytest[@]}" python/tests/test_torch.py python/tests/test_profiles.py &
  running+=($!)
  limited pytest-transformers 70 "${pytest[@]}" python/tests/test_transformers.py &
  running+=($!)
  limited pytest-host 70 "${pytest[@]}" python/tests/test_forest.py python/tests/test_planner.py \
    python/tests/test_arrays.py python/tests/test_threads.py python/tests/test_package.py python/tests/test_examples.py &
  running+=($!)
  for part in "${running[@]}"; do wait "$part" || failed=1; done
  grep -hE '^(FAILED|ERROR|SKIPPED|E  )|[0-9]+ (passed|failed|skipped).* in ' "$logs"/pytest-*.log | head -n 60 || true
}

run_tokens() {
  local arms=(capillary:64 capillary:256 sdpa:64 sdpa:256 batch-capillary:64 batch-capillary:256 batch-sdpa:64
    batch-sdpa:256)
  [[ -n "${CAPILLARY_TOKEN_ARMS:-}" ]] && read -r -a arms <<<"$CAPILLARY_TOKEN_ARMS"
  limited tokens 65 python3 python/bench/transformers_tokens.py --tokens 32 --seconds 4 \
    ${CAPILLARY_TOKEN_OPTIONS:-} "${arms[@]}" || failed=1
  grep -h '^{' "$logs/tokens.log" || true
}

if [[ ! -d "$site/capillary" ]]; then
  install_package || exit 1
fi
export PYTHONPATH="$site" PATH="$site/bin:$PATH"
show=40 limited doctor 40 python3 -m capillary.doctor || exit 1
cat "$logs/doctor.log"

stages=("$@")
[[ ${#stages[@]} -gt 0 ]] || stages=(test overhead tokens)
for stage in "${stages[@]}"; do
  case "$stage" in
    test) run_tests ;;
    overhead)
      limited overhead 20 python3 python/bench/host_overhead.py || failed=1
      grep -h '^{' "$logs/overhead.log" || true
      ;;
    tokens) run_tokens ;;
    *)
      say "unknown stage '$stage'; must be test, overhead or tokens"
      exit 2
      ;;
  esac
done
if [[ $failed -eq 0 ]]; then say "all stages passed in $SECONDS s"; else say "some stages failed ($SECONDS s)"; fi
exit "$failed"
