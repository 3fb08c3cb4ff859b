#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes what README and docs/benchmarks.md show of bench/results/h200.jsonl: results_table.py [--check]

Where bench/results/h200-auto.jsonl is, a later record of the planner's own choices alone, times come from there, and the columns of the other
modes say which commit they are of. Ratios between modes are taken within a record. --check: fails if the files differ from what the records give.
"""
import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "bench/results/h200.jsonl"
LATER = ROOT / "bench/results/h200-auto.jsonl"
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


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rows_of(records):
    rows = {}
    for record in records:
        rows.setdefault((record["workload"], record["heads"]), {})[record["mode"]] = record
    return rows


def source_line(record, what=""):
    return (
        f"{what}{record['gpu']}, CUDA driver API {record['driver']}, CUDA {record['toolkit']}, {record['date']}, commit "
        f"{record['commit'][:7]}; bf16, head_dim 128, HND; time of one step in a CUDA graph, L2 cold, median of "
        f"{record['repeats']}; every step checked; floor: unique bytes at the read rate measured in the same run, or "
        f"useful FLOPs at 750 TFLOP/s"
    )


def table(rows, later, keys):
    of = f" ({next(iter(rows.values()))['flat']['commit'][:7]})" if later else ""
    lines = [
        f"| workload | heads | what | floor us | time us | of the floor | dependent us | flat us{of} | shared-l2 us{of} | cluster |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, heads, what in keys:
        modes = rows[(name, heads)]
        auto = later.get((name, heads), modes)["auto"]
        us = {mode: record["time_us_graph_cold"] for mode, record in modes.items()}
        us["auto"] = auto["time_us_graph_cold"]
        dependent = auto.get("time_us_graph_dependent")
        dependent = f"{dependent:.1f}" if dependent else ""
        lines.append(
            f"| {name} | {heads} | {what} | {auto['floor_us']:.1f} ({auto['floor_kind']}) | {us['auto']:.1f} | "
            f"{auto['floor_us'] / us['auto']:.2f} | {dependent} | {us['flat']:.1f} | {us['shared-l2']:.1f} | {auto['cluster_size']} |"
        )
    return lines


def attainment(rows):
    attained = {key: (modes["auto"]["floor_us"] + 4) / modes["auto"]["time_us_graph_cold"] for key, modes in rows.items()}
    big = [attained[key] for key, modes in rows.items() if modes["auto"]["floor_us"] > 100]
    return (
        f"attainment (floor + 4 us) / time {geomean(attained.values()):.2f}, over floors of 100 us {geomean(big):.2f} "
        f"(worst {min(attained.values()):.2f} and {min(big):.2f})"
    )


def prediction(rows):
    errors = sorted(
        abs(math.log(record["predicted_us"] / record["time_us_graph_cold"]))
        for modes in rows.values()
        for record in modes.values()
    )
    return (
        f"median error {100 * math.expm1(errors[len(errors) // 2]):.0f} %, 95th percentile "
        f"{100 * math.expm1(errors[int(len(errors) * 0.95)]):.0f} %"
    )


def modes_compared(rows):
    against_flat = [m["flat"]["time_us_graph_cold"] / m["auto"]["time_us_graph_cold"] for m in rows.values()]
    dsm = [m["shared-l2"]["time_us_graph_cold"] / m["auto"]["time_us_graph_cold"] for m in rows.values()]
    slower = sum(1 for ratio in against_flat if ratio < 0.97)
    return (
        f"flat / auto {geomean(against_flat):.2f}, {slower} row{'s' if slower != 1 else ''} more than 3 % slower than flat; shared-l2 / auto "
        f"{geomean(dsm):.2f} ({min(dsm):.2f} to {max(dsm):.2f})"
    )


def summary(rows, later):
    lines = [
        f"Over all {len(rows)} rows, geometric means: {attainment(later or rows)}. Predictions: {prediction(later or rows)}, on "
        f"workloads that the profile was fitted to."
    ]
    if later:
        earlier = next(iter(rows.values()))["flat"]["commit"][:7]
        lines += ["", f"At {earlier}, within that record: {attainment(rows)}; {modes_compared(rows)}; predictions: {prediction(rows)}."]
    else:
        lines[0] += f" Modes: {modes_compared(rows)}."
    return lines


def main():
    rows = rows_of(read(RECORD))
    later = rows_of(read(LATER)) if LATER.exists() else {}
    newest = next(iter((later or rows).values()))["auto"]
    source = source_line(newest)
    more = [source_line(next(iter(rows.values()))["flat"], "The columns of flat and shared-l2: ") + ".", ""] if later else []
    every = [(name, heads, "") for name, heads in rows]
    readme_path, full_path = ROOT / "README.md", ROOT / "docs/benchmarks.md"
    readme = readme_path.read_text(encoding="utf-8")
    begin, end = "<!-- results:begin -->\n", "<!-- results:end -->"
    head, rest = readme.split(begin)
    tail = rest.split(end)[1]
    block = "\n".join(
        [source + ". [All rows](docs/benchmarks.md).", ""] + table(rows, later, SHOWN) + [""] + summary(rows, later)
    )
    note = [f"How the build came about: {newest['note']}.", ""] if "note" in newest else []
    texts = {
        readme_path: head + begin + block + "\n" + end + tail,
        full_path: "\n".join(
            ["# Benchmarks", "", "Made by `bench/results_table.py` from the records in `bench/results`, which `bench/run_h200.sh` "
             "renews. Nothing is left out.", "", source + ".", ""] + note + more + summary(rows, later) + [""]
            + table(rows, later, every)
        ) + "\n",
    }
    if "--check" in sys.argv[1:]:
        stale = [str(path) for path, text in texts.items() if path.read_text(encoding="utf-8") != text]
        if stale:
            sys.exit("not what the records in bench/results give: " + ", ".join(stale) + "; run bench/results_table.py")
        return
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
