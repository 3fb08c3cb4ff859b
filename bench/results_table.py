#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes what README and docs/benchmarks.md show of bench/results/h200.jsonl: results_table.py [--check]

--check: fails if the files differ from what the record gives.
"""
import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "bench/results/h200.jsonl"
# README's few, one for each regime.
SHOWN = [
    ("flat-256x4096", "32/8", "nothing shared"),
    ("rl-group-16x16-512+4096", "32/8", "16 prompts, 16 samples each"),
    ("gsp-64x16", "32/8", "64 system prompts, 16 requests each"),
    ("pat-11", "32/32", "six levels, 1,024 requests"),
    ("pat-14", "32/32", "seven levels of short nodes, 1,024 requests"),
    ("gsp-1x128-long", "32/8", "one document of 99,999 tokens, 128 questions"),
    ("root-heavy-1024", "32/8", "8,192 shared tokens, 1,024 requests"),
    ("tp8-small", "8/1", "8 requests, one KV head"),
]


def geomean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def rows_of(records):
    rows = {}
    for record in records:
        rows.setdefault((record["workload"], record["heads"]), {})[record["mode"]] = record
    return rows


def source_line(record):
    return (
        f"{record['gpu']}, CUDA driver API {record['driver']}, CUDA {record['toolkit']}, {record['date']}, commit "
        f"{record['commit']}; bf16, head_dim 128, HND; time of one step in a CUDA graph, L2 cold, median of "
        f"{record['repeats']}; every step checked; floor: unique bytes at the read rate measured in the same run, or "
        f"useful FLOPs at 750 TFLOP/s"
    )


def table(rows, keys):
    lines = [
        "| workload | heads | what | floor us | time us | of the floor | flat us | shared-l2 us | cluster |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, heads, what in keys:
        modes = rows[(name, heads)]
        auto = modes["auto"]
        us = {mode: record["time_us_graph_cold"] for mode, record in modes.items()}
        lines.append(
            f"| {name} | {heads} | {what} | {auto['floor_us']:.1f} ({auto['floor_kind']}) | {us['auto']:.1f} | "
            f"{auto['floor_us'] / us['auto']:.2f} | {us['flat']:.1f} | {us['shared-l2']:.1f} | {auto['cluster_size']} |"
        )
    return lines


def summary(rows):
    attained, big, against_flat, dsm = [], [], [], []
    for modes in rows.values():
        us = {mode: record["time_us_graph_cold"] for mode, record in modes.items()}
        floor = modes["auto"]["floor_us"]
        attained.append((floor + 4) / us["auto"])
        if floor > 100:
            big.append((floor + 4) / us["auto"])
        against_flat.append(us["flat"] / us["auto"])
        dsm.append(us["shared-l2"] / us["auto"])
    errors = sorted(
        abs(math.log(record["predicted_us"] / record["time_us_graph_cold"]))
        for modes in rows.values()
        for record in modes.values()
    )
    slower = sum(1 for ratio in against_flat if ratio < 0.97)
    return [
        f"Over all {len(rows)} rows, geometric means: attainment (floor + 4 us) / time {geomean(attained):.2f}, over floors "
        f"of 100 us {geomean(big):.2f} (worst {min(attained):.2f} and {min(big):.2f}); flat / auto "
        f"{geomean(against_flat):.2f}, {slower} rows more than 3 % slower than flat; shared-l2 / auto {geomean(dsm):.2f} "
        f"({min(dsm):.2f} to {max(dsm):.2f}). Predictions: median error {100 * math.expm1(errors[len(errors) // 2]):.0f} %, "
        f"95th percentile {100 * math.expm1(errors[int(len(errors) * 0.95)]):.0f} %, on workloads that the profile was "
        f"fitted to."
    ]


def main():
    records = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]
    rows = rows_of(records)
    source = source_line(records[0])
    every = [(name, heads, "") for name, heads in rows]
    readme_path, full_path = ROOT / "README.md", ROOT / "docs/benchmarks.md"
    readme = readme_path.read_text(encoding="utf-8")
    begin, end = "<!-- results:begin -->\n", "<!-- results:end -->"
    head, rest = readme.split(begin)
    tail = rest.split(end)[1]
    block = "\n".join(
        [source + ". [All rows](docs/benchmarks.md).", ""] + table(rows, SHOWN) + [""] + summary(rows)
    )
    texts = {
        readme_path: head + begin + block + "\n" + end + tail,
        full_path: "\n".join(
            ["# Benchmarks", "", "Made by `bench/results_table.py` from `bench/results/h200.jsonl`, which `bench/run_h200.sh` "
             "renews. Nothing is left out.", "", source + ".", ""] + summary(rows) + [""] + table(rows, every)
        ) + "\n",
    }
    if "--check" in sys.argv[1:]:
        stale = [str(path) for path, text in texts.items() if path.read_text(encoding="utf-8") != text]
        if stale:
            sys.exit("not what bench/results/h200.jsonl gives: " + ", ".join(stale) + "; run bench/results_table.py")
        return
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
