#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whether times grow smoothly with group and batch size: smooth.py RECORD

RECORD is what `capillary bench --file workloads/smooth.json --modes auto --out RECORD` wrote. A step is how much longer a
workload takes than its neighbour, beyond what the floors (and 4 us) explain; prints those over 10 %.
"""
import json
import sys

LIMIT = 0.10


def steps(rows):
    """(step, left, right) of neighbours in one series; rows in order of size."""
    for left, right in zip(rows, rows[1:]):
        taken = right["time_us_graph_cold"] / left["time_us_graph_cold"]
        explained = (right["floor_us"] + 4) / (left["floor_us"] + 4)
        yield taken / explained, left, right


def main(path):
    with open(path, encoding="utf-8") as lines:
        rows = sorted((json.loads(line) for line in lines), key=lambda row: row["workload"])
    for series in sorted({row["workload"].split("-")[0] for row in rows}):
        found = list(steps([row for row in rows if row["workload"].startswith(series + "-")]))
        over = [(step, left, right) for step, left, right in found if abs(step - 1) > LIMIT]
        print(f"{series}: {len(found)} neighbours, {len(over)} steps over {LIMIT:.0%}")
        for step, left, right in over:
            print(f"  {left['workload']} to {right['workload']}: {step - 1:+.1%} ({left['time_us_graph_cold']:.1f} to "
                  f"{right['time_us_graph_cold']:.1f} us, clusters of {left['cluster_size']} and {right['cluster_size']})")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"smooth.py: {len(sys.argv) - 1} arguments; must be one, the record; "
                 "write it with `capillary bench --file workloads/smooth.json --modes auto --out RECORD`")
    main(sys.argv[1])
