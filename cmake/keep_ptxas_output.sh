#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Compiler launcher for .cu files: runs nvcc as given and leaves beside the object <object>.ptxas (what
# ptxas -v said) and <object>.ptx, which tests/codegen reads. Warnings still reach the screen.
set -euo pipefail

object=""
previous=""
for argument in "$@"; do
  [[ "$previous" == "-o" ]] && object="$argument"
  previous="$argument"
done
if [[ "$object" != *.o ]]; then
  exec "$@"
fi

keep="$object.keep"
mkdir -p "$keep"
trap 'rm -rf "$keep"' EXIT
status=0
"$@" --keep --keep-dir "$keep" 2>"$object.ptxas" || status=$?
# ptxas' report is for the checks; anything else is for the person at the screen.
grep -vE "^ptxas info|bytes stack frame|^$" "$object.ptxas" >&2 || true
if [[ $status -eq 0 ]]; then
  find "$keep" -name '*.ptx' -exec cat {} + >"$object.ptx"
fi
exit "$status"
