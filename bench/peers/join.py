#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Puts peers' times beside ours and writes the table: join.py PEERS.jsonl ... [--ours RECORD.jsonl ...] [--out FILE]

Each peers file is one that measure.py wrote or has its form. What a later file says of a row's peer replaces what an
earlier one said: give published figures first, those of the same run as ours last.
"""
import argparse
import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What counts as a peer's time of a whole step: (field, column). Without a graph only where there is none with one.
PEERS = [
    ("flashinfer_decode_us", "FlashInfer decode"),
    ("flashinfer_cascade_us", "FlashInfer cascade"),
    ("flashinfer_cascade_fa2_us", "cascade, fa2"),
    ("fasttree_warm_us", "FastTree, L2 warm"),
    ("pat_kernels_us", "PAT, kernels"),
    ("sdpa_cudnn_us", "SDPA cuDNN"),
    ("sdpa_flash_us", "SDPA Flash"),
]
FLASHINFER = ("flashinfer_decode_us", "flashinfer_cascade_us", "flashinfer_cascade_fa2_us")
PREFIX = [("sdpa_cudnn_prefix", "cuDNN"), ("sdpa_flash_prefix", "Flash")]
SHARED = 1.05  # sharing from which a row counts as a tree


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def read_lines(path):
    records = []
    for number, line in enumerate(pathlib.Path(path).read_text(encoding="utf-8").splitlines(), 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            sys.exit(f"join.py: {path}, line {number}: {error}; must be one JSON object a line; give a file of measure.py")
    return records


def key_of(record):
    return record["workload"], record["heads"], record.get("head_dim", 128)


def read_peers(paths):
    """Rows by (workload, heads, head_dim), and what each file says about itself."""
    rows, sources = {}, []
    for path in paths:
        for record in read_lines(path):
            if "about" in record:
                sources.append((pathlib.Path(path).name, record))
                continue
            if record.get("fasttree_wrong"):  # its results were not those of attention
                record = {name: value for name, value in record.items() if not name.startswith("fasttree_")}
            row = rows.setdefault(key_of(record), {"absent": {}})
            # A peer that is measured at last, or a row that is begun, is no longer absent.
            row["absent"] = {arm: reason for arm, reason in row["absent"].items()
                             if arm != "all" and not {f"{arm}_us", f"{arm}_eager_us"} & record.keys()}
            row["absent"].update(record.get("absent", {}))
            row.update({name: value for name, value in record.items() if name != "absent"})
    return rows, sources


def ours_by_key(records):
    """Our own time of every row, as the planner chose, and the useful FLOPs of the step."""
    rows = {}
    for record in records:
        # An ablation has a line an arm, of which "auto" is this; those of arms that were skipped have no more than names.
        if "skipped" in record or record["mode"] != "auto" or record.get("arm", "auto") != "auto" or record["forced_cluster_size"]:
            continue
        q_heads, kv_heads = map(int, record["heads"].split("/"))
        # flat bytes are 4 bytes a token, KV head and element of head_dim.
        flops = record["flat_bytes"] / kv_heads * q_heads
        rows[key_of(record)] = {"us": record["time_us_graph_cold"], "tflops": flops / record["time_us_graph_cold"] / 1e6,
                                "record": record}
    return rows


def join(ours, peers):
    """Rows that both have, in our order: (key, our us, {field: us}, the best peer's us, sharing)."""
    joined = []
    for key, own in ours.items():
        row = peers.get(key, {})
        times = {field: row[field] for field, _ in PEERS if row.get(field)}
        if times:
            sharing = own["record"]["flat_bytes"] / max(own["record"]["unique_bytes"], 1)
            joined.append((key, own["us"], times, min(times.values()), sharing))
    return joined


def ratio_line(what, pairs):
    """pairs: (key, ratio), peer / ours: above 1 we are faster."""
    if not pairs:
        return f"- {what}: no such row."
    worst_key, worst = min(pairs, key=lambda pair: pair[1])
    below = sum(1 for _, ratio in pairs if ratio < 0.98)
    return (f"- {what}: geomean {geomean([ratio for _, ratio in pairs]):.2f} over {len(pairs)} rows, worst {worst:.2f} "
            f"({worst_key[0]} {worst_key[1]}), {below} below 0.98.")


def summary(joined):
    lines = [ratio_line("The best peer / ours, all rows", [(key, best / us) for key, us, _, best, _ in joined]),
             ratio_line(f"The same where sharing is over {SHARED}",
                        [(key, best / us) for key, us, _, best, sharing in joined if sharing > SHARED])]
    flashinfer = [(key, min(times[field] for field in FLASHINFER if field in times) / us)
                  for key, us, times, _, _ in joined if any(field in times for field in FLASHINFER)]
    lines.append(ratio_line("The better of FlashInfer's / ours", flashinfer))
    for field, title in PEERS:
        pairs = [(key, times[field] / us) for key, us, times, _, _ in joined if field in times]
        if pairs:
            lines.append(ratio_line(f"{title} / ours", pairs))
    return lines


def table(joined):
    columns = [(field, title) for field, title in PEERS if any(field in times for _, _, times, _, _ in joined)]
    lines = ["| workload | heads | head_dim | sharing | ours us | best peer / ours | "
             + " | ".join(f"{title} us" for _, title in columns) + " |", "|---" * (6 + len(columns)) + "|"]
    for (name, heads, dim), us, times, best, sharing in joined:
        cells = [f"{times[field]:.1f}" if field in times else "-" for field, _ in columns]
        lines.append(f"| {name} | {heads} | {dim} | {sharing:.2f} | {us:.1f} | {best / us:.2f} | {' | '.join(cells)} |")
    return lines


def prefix_table(ours, peers):
    """Rates on the shared prefix of root-heavy workloads. Ours is of whole steps: the leaves' time and FLOPs are in it."""
    lines = []
    for key, own in ours.items():
        row = peers.get(key, {})
        rates = [(row.get(f"{field}_tflops"), title) for field, title in PREFIX]
        if not any(rate for rate, _ in rates):
            continue
        best = max(rate for rate, _ in rates if rate)
        cells = [f"{rate:.0f}" if rate else "-" for rate, _ in rates]
        lines.append(f"| {key[0]} | {key[1]} | {key[2]} | {own['tflops']:.0f} | {own['tflops'] / best:.2f} | "
                     f"{' | '.join(cells)} |")
    if not lines:
        return []
    return ["## Shared prefixes as one long sequence", "", "Useful TFLOP/s: ours over the whole step, leaves included; SDPA's "
            "over the root's keys alone, contiguous, rows of all requests as one sequence.", "",
            "| workload | heads | head_dim | ours | ours / best | " + " | ".join(title for _, title in PREFIX) + " |",
            "|---" * (5 + len(PREFIX)) + "|"] + lines + [""]


def absences(peers):
    reasons = {}
    for row in peers.values():
        for arm, reason in row["absent"].items():
            # A peer that failed in some rows and has a time in others is named with the rows.
            reasons.setdefault((arm, reason), []).append(f"{row['workload']} {row['heads']}")
    return [f"- {arm}: {reason} ({len(rows)} row{'s' * (len(rows) != 1)}"
            + (f": {', '.join(rows)}" if len(rows) <= 4 else "") + ")" for (arm, reason), rows in sorted(reasons.items())]


def document(ours, peers, sources):
    joined = join(ours, peers)
    if not joined:
        sys.exit("join.py: no row is in both records; must have workloads and heads in common; give records of one file")
    first = next(iter(ours.values()))["record"]
    lines = ["# Against others", "", "Written by `bench/peers/join.py`; nothing is left out. The method is in "
             "[benchmarking.md](benchmarking.md). Times of one step in us, in a CUDA graph with the L2 cold unless a column says "
             "otherwise; planning is in none of them.", "",
             f"Ours: {first['gpu'] or first['device']}, {first['date']}, commit {first['commit']}."]
    for name, source in sources:
        versions = ", ".join(f"{field} {source[field] or 'absent'}" for field in
                             ("gpu", "torch", "cuda", "cudnn", "flashinfer", "date") if field in source)
        lines += ["", f"{name}: {source['about']}" + (f" ({versions})" if versions else "")]
    lines += ["", "Ratios to records of another day or card are no better than these two agree: a few percent.", ""]
    lines += summary(joined) + [""] + prefix_table(ours, peers)
    missing = absences(peers)
    if missing:
        lines += ["## Not measured", ""] + missing + [""]
    return "\n".join(lines + ["## All rows", ""] + table(joined)) + "\n"


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="+", help="records of measure.py, later ones first to be believed")
    parser.add_argument("--ours", nargs="+", default=[str(ROOT / "bench/results/h200.jsonl")],
                        help="records of capillary bench [bench/results/h200.jsonl]")
    parser.add_argument("--out", help="file to write [standard output]")
    options = parser.parse_args(argv)
    peers, sources = read_peers(options.peers)
    text = document(ours_by_key([record for path in options.ours for record in read_lines(path)]), peers, sources)
    if options.out:
        pathlib.Path(options.out).write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
