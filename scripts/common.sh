# SPDX-License-Identifier: MIT
# Sourced by demo.sh and test.sh: installs what a fresh Debian or Ubuntu lacks (and says so), runs long
# commands with their output in a log, and shows the log's end where one fails.

say() { printf '%s\n' "$*"; }
step() { printf '\n== %s\n' "$*"; }
die() {
  printf '%s\n' "$*" >&2
  exit 1
}

# Packages that the CPU build needs. Chosen so that every one is in Debian 12/13 and Ubuntu 22.04/24.04.
readonly build_packages=(g++ cmake ninja-build libfmt-dev nlohmann-json3-dev libcli11-dev)
readonly test_packages=(libgtest-dev libgmock-dev libbenchmark-dev python3 python3-dev python3-venv)
# From PyPI, into a virtual environment: what builds and tests the Python package. Debian 12's pip is older and does not
# know -C.
readonly python_packages=("pip>=23.1" "scikit-build-core>=0.10" "nanobind>=2.2" "numpy>=1.24" "pytest>=8" "mypy>=1.13")

package_installed() {
  [[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

# install_packages name...: installs those that are missing.
install_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "Not a Debian or Ubuntu system: expecting these to be installed already: $*"
    return 0
  fi
  local missing=() package
  for package in "$@"; do
    package_installed "$package" || missing+=("$package")
  done
  if [[ ${#missing[@]} -eq 0 ]]; then
    return 0
  fi
  local as_root=()
  if [[ $EUID -ne 0 ]]; then
    command -v sudo >/dev/null ||
      die "These packages are missing: ${missing[*]}. There is no sudo here; install them as root and run this again."
    as_root=(sudo)
  fi
  step "Installing with apt-get: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  run_logged apt-update "${as_root[@]}" apt-get update
  run_logged apt-install "${as_root[@]}" apt-get install -y --no-install-recommends "${missing[@]}"
}

# Ubuntu 22.04's g++ is 11; the code is written for 12 and newer.
choose_compiler() {
  if [[ -n "${CXX:-}" ]]; then
    return 0
  fi
  local major
  major="$(g++ -dumpversion 2>/dev/null | cut -d. -f1)"
  if [[ "${major:-0}" -lt 12 ]]; then
    command -v g++-12 >/dev/null || install_packages g++-12
    export CXX=g++-12
    say "Using $CXX (the default g++ is ${major:-absent}; 12 or newer is needed)"
  fi
}

# run_logged name command...: output to $log_dir/name.log; on failure shows the end of it and fails.
log_dir="${log_dir:-build/logs}"
run_logged() {
  local name="$1"
  shift
  mkdir -p "$log_dir"
  local log="$log_dir/$name.log"
  if "$@" >"$log" 2>&1; then
    return 0
  fi
  say "failed: $*"
  say "the end of $log:"
  tail -n 40 "$log"
  return 1
}

jobs="${CAPILLARY_JOBS:-$(nproc)}"
