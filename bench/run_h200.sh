#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Renews bench/results/h200.jsonl on a machine with an H200: checks, then times every workload, head count and mode of
# a workload file. Usage: bench/run_h200.sh WORKLOADS.json [CAPILLARY]; CAPILLARY is the program to run
# (build/cuda-release/bin/capillary). Then `python3 bench/results_table.py` writes the tables.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
workloads="${1:?usage: bench/run_h200.sh WORKLOADS.json [CAPILLARY]}"
capillary="${2:-build/cuda-release/bin/capillary}"
out="${CAPILLARY_RESULTS:-bench/results/h200.jsonl}"
"$capillary" check --device cuda --random 200
"$capillary" bench --device cuda --file "$workloads" --modes auto,flat,shared-l2 --repeat 7 --out "$out"
