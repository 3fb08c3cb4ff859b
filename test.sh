#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds and tests everything that this machine can: installs missing packages, configures, builds, runs all
# tests, again under ASan + UBSan, fuzzes shortly, checks the CUDA code where nvcc is there, and builds the
# examples against the installed package. The last line is "N passed, N failed, N skipped" over all of it;
# GoogleTest cases count one by one. Fails if anything failed.
#
# CAPILLARY_TRACE_DIR  folder of real serving traces; tests that need one are skipped without it
# CAPILLARY_JOBS       parallel compile and test jobs (default: all cores)
# CAPILLARY_FUZZ_S     seconds for each fuzzer (default 10)
# CAPILLARY_TORCH_S    seconds that installing PyTorch and Transformers for their tests may take (default 0: they
#                      are tested where the virtual environment has them, and skipped otherwise)
# CAPILLARY_VENV       virtual environment of the Python tests (default build/venv); elsewhere it outlives the clone
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source scripts/common.sh

passed=0
failed=0
skipped=0
failures=()

finish() {
  local name
  if [[ $failed -gt 0 ]]; then
    step "Failed"
    for name in "${failures[@]}"; do say "  $name"; done
  fi
  say ""
  say "$passed passed, $failed failed, $skipped skipped"
  [[ $failed -eq 0 ]]
}
pass() { passed=$((passed + 1)); }
fail() {
  failed=$((failed + 1))
  failures+=("$1")
}
skip() {
  skipped=$((skipped + 1))
  say "skipped: $1"
}
# For what nothing after it can do without.
need() {
  local name="$1"
  shift
  if ! "$@"; then
    fail "$name"
    finish
    exit 1
  fi
}

# ctest_in preset: runs its tests and adds up the cases.
ctest_in() {
  local preset="$1" report="$PWD/build/$1/ctest.xml" counts line
  rm -rf "$report" "build/$preset/gtest"
  ctest --test-dir "build/$preset" -j "$jobs" --output-on-failure --no-tests=error \
    --output-junit "$report" >"$log_dir/ctest-$preset.log" 2>&1 || true
  if ! counts="$(python3 scripts/count_tests.py "$report" "build/$preset/gtest")"; then
    tail -n 20 "$log_dir/ctest-$preset.log"
    fail "$preset: ctest wrote no report"
    return 0
  fi
  while read -r line; do
    case "$line" in
      counts\ *)
        read -r _ p f s <<<"$line"
        passed=$((passed + p))
        failed=$((failed + f))
        skipped=$((skipped + s))
        say "$preset: $p passed, $f failed, $s skipped"
        ;;
      failed\ *) failures+=("$preset: ${line#failed }") ;;
      skipped\ *) say "skipped: ${line#skipped }" ;;
    esac
  done <<<"$counts"
}

# The project as a CMake package: installed, found, linked and run by a stranger.
check_consumer() {
  local prefix="$PWD/build/install"
  rm -rf "$prefix" build/consumer
  run_logged install cmake --install build/ci --prefix "$prefix" &&
    run_logged consumer-configure cmake -S examples -B build/consumer -G Ninja \
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix" &&
    run_logged consumer-build cmake --build build/consumer -j "$jobs" &&
    run_logged consumer-run build/consumer/shared_prefix
}

# The Python package, linked to the Capillary that check_consumer installed, in a virtual environment of its own.
install_python() {
  local python="$venv/bin/python"
  if [[ ! -x "$python" ]]; then
    run_logged venv python3 -m venv "$venv" || return 1
  fi
  run_logged pip-tools "$python" -m pip install --disable-pip-version-check "${python_packages[@]}" || return 1
  if [[ "${CAPILLARY_TORCH_S:-0}" -gt 0 ]] && ! "$python" -c 'import torch, transformers' 2>/dev/null; then
    # Gigabytes: what has been fetched when the time is up is kept by pip for the next attempt.
    timeout "$CAPILLARY_TORCH_S" "$python" -m pip install --disable-pip-version-check \
      -r python/tests/torch-requirements.txt >build/logs/pip-torch.log 2>&1 ||
      say "PyTorch was not installed within $CAPILLARY_TORCH_S s (build/logs/pip-torch.log)"
  fi
  run_logged pip-capillary env CMAKE_BUILD_PARALLEL_LEVEL="$jobs" "$python" -m pip install \
    --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall -C cmake.source-dir=python \
    -C cmake.define.CMAKE_PREFIX_PATH="$PWD/build/install" -C build-dir=build/python .
}

# pytest's last line is the count.
run_pytest() {
  local python="$venv/bin/python" log="$log_dir/pytest.log" line kind count
  run_logged pytest "$python" -m pytest python/tests || true
  line="$(grep -E '^[0-9]+ (passed|failed|skipped|error).* in [0-9.]+s' "$log" | tail -n 1 || true)"
  if [[ -z "$line" ]]; then
    fail "pytest: no summary"
    return 0
  fi
  while read -r count kind; do
    case "$kind" in
      passed*) passed=$((passed + count)) ;;
      skipped*) skipped=$((skipped + count)) ;;
      failed* | error*) failed=$((failed + count)) ;;
    esac
  done < <(grep -oE '[0-9]+ (passed|failed|skipped|errors?)' <<<"$line")
  say "python: $line"
  while read -r line; do failures+=("python: $line"); done < <(grep -E '^(FAILED|ERROR) ' "$log" || true)
  sed -n 's/^SKIPPED/skipped: python:/p' "$log"
}

has_libfuzzer() {
  command -v clang++ >/dev/null || return 1
  local dir
  dir="$(mktemp -d)"
  printf '%s\n' '#include <cstddef>' '#include <cstdint>' \
    'extern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t) { return 0; }' >"$dir/probe.cpp"
  local status=0
  clang++ -std=c++20 -fsanitize=fuzzer,address "$dir/probe.cpp" -o "$dir/probe" 2>/dev/null || status=1
  rm -rf "$dir"
  return "$status"
}

run_fuzzers() {
  local seconds="${CAPILLARY_FUZZ_S:-10}" name
  while read -r name; do
    [[ -n "$name" ]] || continue
    local corpus="build/cpu-fuzz/corpus/$name" seeds="tests/fuzz/seeds/$name"
    mkdir -p "$corpus"
    # New inputs go to the first folder; the seeds are only read.
    local folders=("$corpus")
    [[ -d "$seeds" ]] && folders+=("$seeds")
    if run_logged "fuzz-$name" "build/cpu-fuzz/tests/fuzz/$name" -max_total_time="$seconds" \
      -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 -artifact_prefix="$corpus/../" \
      "${folders[@]}"; then
      pass
      say "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "build/logs/fuzz-$name.log") inputs"
    else
      fail "fuzz: $name"
    fi
  done <build/cpu-fuzz/fuzzers.txt
}

if [[ -n "${CAPILLARY_TRACE_DIR:-}" ]]; then
  # Tests run in other folders.
  CAPILLARY_TRACE_DIR="$(cd "$CAPILLARY_TRACE_DIR" && pwd)" ||
    die "CAPILLARY_TRACE_DIR is no folder; unset it or point it at a folder of traces"
  export CAPILLARY_TRACE_DIR
else
  say "CAPILLARY_TRACE_DIR is not set: tests on real traces will be skipped"
fi

need "install packages" install_packages "${build_packages[@]}" "${test_packages[@]}"
choose_compiler

step "Release build"
need "configure" run_logged configure-ci cmake --preset ci
grep -m1 'Capillary: CUDA' build/logs/configure-ci.log | sed 's/^-- //' || true
need "build" run_logged build-ci cmake --build --preset ci -j "$jobs"

step "Tests"
ctest_in ci
if ! grep -q 'CUDA backend on' build/logs/configure-ci.log; then
  skip "CUDA compile and codegen checks (no CUDA backend in this build)"
fi

step "Install and use as a package"
if check_consumer; then pass; else fail "consumer of the installed package"; fi

step "Python"
venv="${CAPILLARY_VENV:-build/venv}"
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  skip "Python package (python3 is older than 3.10)"
elif [[ ! -d build/install ]]; then
  skip "Python package (Capillary was not installed)"
elif install_python; then
  run_pytest
else
  fail "Python package"
fi

step "ASan + UBSan"
need "configure with sanitizers" run_logged configure-asan cmake --preset cpu-asan
need "build with sanitizers" run_logged build-asan cmake --build --preset cpu-asan -j "$jobs"
ctest_in cpu-asan

step "Fuzzing"
if has_libfuzzer; then
  need "configure fuzzers" run_logged configure-fuzz env -u CXX cmake --preset cpu-fuzz
  need "build fuzzers" run_logged build-fuzz cmake --build --preset cpu-fuzz -j "$jobs" --target fuzzers
  run_fuzzers
else
  skip "fuzzing (no clang++ with libFuzzer here)"
fi

finish
