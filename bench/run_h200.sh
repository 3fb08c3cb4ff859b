#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Renews the records of bench/results on a machine with an H200. Usage:
#   bench/run_h200.sh WORKLOADS.json [CAPILLARY [PART...]]
# CAPILLARY is the program to run (build/cuda-release/bin/capillary); PARTs are some of
#   times     checks, then times every workload, head count and mode: h200.jsonl (or the file that CAPILLARY_RESULTS names)
#   ablation  every forced choice against the planner's own: ablation-h200.jsonl, docs/ablation.md and its plot
#   held-out  the same over 60 random forests: held-out-h200.jsonl, docs/ablation-held-out.md
#   peers     what others take, where PyTorch is installed, and ours for heads of 64 and 256 on long prefixes:
#             peers-h200.jsonl, roots-h200.jsonl, docs/peers.md (needs `times`; what was not measured again stands
#             with the older figures of published-h200.jsonl)
# and `times` alone where none is given. Then `python3 bench/results_table.py` writes the tables of README and docs/benchmarks.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
workloads="${1:?usage: bench/run_h200.sh WORKLOADS.json [CAPILLARY [PART...]]}"
capillary="${2:-build/cuda-release/bin/capillary}"
shift $(($# < 2 ? $# : 2))
results=bench/results

measure_times() {
  local out="${CAPILLARY_RESULTS:-$results/h200.jsonl}"
  "$capillary" check --device cuda --random 200
  "$capillary" bench --device cuda --file "$workloads" --modes auto,flat,shared-l2 --repeat 7 --out "$out"
  # A later record of the planner's choices alone is no longer later.
  if [[ -z "${CAPILLARY_RESULTS:-}" ]]; then rm -f "$results/h200-auto.jsonl"; fi
}

measure_ablation() {
  "$capillary" bench --ablate --device cuda --file "$workloads" --repeat 4 --out "$results/ablation-h200.jsonl" \
    --report docs/ablation.md --plot docs/images/ablation.svg
}

measure_held_out() {
  "$capillary" generate forests |
    "$capillary" bench --ablate --device cuda --file - --sample 60 --repeat 4 --out "$results/held-out-h200.jsonl" \
      --report docs/ablation-held-out.md
}

measure_peers() {
  python3 -B bench/peers/measure.py --file "$workloads" --out "$results/peers-h200.jsonl"
  local head_dim
  for head_dim in 64 256; do
    "$capillary" bench --device cuda --file "$workloads" --workload 'root-heavy-*' --head-dim "$head_dim" --modes auto --repeat 5 \
      --out "$results/roots-$head_dim.jsonl"
  done
  cat "$results"/roots-{64,256}.jsonl >"$results/roots-h200.jsonl"
  rm "$results"/roots-{64,256}.jsonl
  python3 -B bench/peers/join.py "$results/published-h200.jsonl" "$results/peers-h200.jsonl" --ours "$results/h200.jsonl" "$results/roots-h200.jsonl" \
    --out docs/peers.md
}

for part in "${@:-times}"; do
  case "$part" in
    times | ablation | held-out | peers) "measure_${part/-/_}" ;;
    *) echo "run_h200.sh: part '$part' is none of times, ablation, held-out, peers" >&2 && exit 2 ;;
  esac
done
