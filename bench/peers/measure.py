#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures what others take for the steps of a workload file: FlashInfer (decode on tensor cores; cascade, backend auto
and fa2) and PyTorch SDPA (cuDNN, FlashAttention) on contiguous copies. Writes JSON lines, a line a workload x heads.

Each peer is checked against plain fp32 attention before it is timed, with the L2 cold, in a CUDA graph and eagerly; its
planning is timed apart. A peer that is not here or fails is recorded as absent, with the reason, and the others go on.
docs/benchmarking.md has the method; join.py puts the figures beside ours.
"""
import argparse
import contextlib
import json
import math
import os
import signal
import sys
import time

import trees
from join import key_of, read_lines

# Measured first, in case the time is short: the rows that other figures are compared with by name.
FIRST = ("root-heavy-1024", "root-heavy-256", "tp8-small", "tp8-64", "flat-1x32768", "flat-256x4096")
READ_BYTES_PER_US = 4.62e6
FLOPS_PER_US = 750e6
ARMS = ("flashinfer_decode", "flashinfer_cascade", "flashinfer_cascade_fa2", "sdpa_cudnn", "sdpa_flash")
# On the CPU: the same data paths, to be tried without a card.
CPU_ARMS = ("sdpa_math",)


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", required=True, help="workload file (docs/cli.md)")
    parser.add_argument("--workload", default="*", help="names in it; * and ? match")
    parser.add_argument("--heads", help="only these, as 32/8")
    parser.add_argument("--rows", help="only the workloads x heads of this record (a file for join.py)")
    parser.add_argument("--head-dim", help="instead of the workload's, several with commas between")
    parser.add_argument("--arms", default=None, help="some of " + ",".join(ARMS))
    parser.add_argument("--repeat", type=int, default=7, help="timed runs of each [7]")
    parser.add_argument("--budget-s", type=float, default=0, help="begin no row after so many seconds; 0: no limit")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", required=True, help="JSON lines")
    options = parser.parse_args(argv)
    known = ARMS if options.device == "cuda" else CPU_ARMS
    options.arms = tuple(options.arms.split(",")) if options.arms else known
    for arm in options.arms:
        if arm not in known:
            parser.error(f"--arms: '{arm}' is none of {', '.join(known)}")
    if options.repeat < 1:
        parser.error(f"--repeat is {options.repeat}; must be at least 1")
    return options


def steps_of(arm, batch):
    """(suffix of the field names, steps of which the fastest counts)."""
    # Here, so that --help and the tests of what needs no torch do without it.
    import flashinfer_arms  # pylint: disable=import-outside-toplevel
    import sdpa  # pylint: disable=import-outside-toplevel

    if arm == "flashinfer_decode":
        return [("", flashinfer_arms.decode_steps(batch))]
    if arm.startswith("flashinfer_cascade"):
        return [("", flashinfer_arms.cascade_steps(batch, "fa2" if arm.endswith("fa2") else "auto"))]
    return [("_prefix", sdpa.prefix_steps(arm, batch)), ("", sdpa.whole_steps(arm, batch))]


def reason_of(error):
    """First line of an exception, short; of Absent, all there is to say."""
    text = (str(error).splitlines() or [""])[0][:200]
    return text if type(error).__name__ == "Absent" else f"{type(error).__name__}: {text}"


def graph_fields(step, options):
    """Fields of the fastest of the step's captures; not every library can be captured, its eager time stands then."""
    import batch as batches  # pylint: disable=import-outside-toplevel
    import timing  # pylint: disable=import-outside-toplevel

    best, failed = {}, []
    for name, run in (step.captures or {"": step.run}).items():
        try:
            error = step.worst_error(step.unfold(run(0)))
            if not error <= batches.TOLERANCE:
                raise RuntimeError(f"wrong as planned for {name}, relative error {error:.1e}")
            time_us = timing.graph_us(run, step.copies, options.repeat, step.bytes_of_one)
        except RuntimeError as error:
            failed.append(reason_of(error))
            continue
        if time_us < best.get("us", math.inf):
            best = {"us": time_us, **({"captured": name} if name else {})}
    return best or {"graph_failed": "; ".join(failed)}


def measure_step(step, options, device):
    """Fields of one step, without the arm's name; None and the reason where its result is wrong."""
    import batch as batches  # pylint: disable=import-outside-toplevel
    import timing  # pylint: disable=import-outside-toplevel

    error = step.worst_error(step.unfold(step.run(0)))
    if not error <= batches.TOLERANCE:
        return None, f"{step.form}: wrong, relative error {error:.1e}"
    fields = {"eager_us": timing.eager_us(step.run, step.copies, options.repeat, device), "max_rel_err": error,
              "form": step.form}
    if device.type == "cuda":
        fields.update(graph_fields(step, options))
    if step.plan:
        fields["plan_us"] = timing.plan_us(step.plan, options.repeat, device)
    if step.flops:
        fields["tflops"] = step.flops / (fields.get("us") or fields["eager_us"]) / 1e6
    return fields, None


def measure_arm(arm, batch, options, record):
    for suffix, steps in steps_of(arm, batch):
        best, reasons, steps = None, [], iter(steps)
        while True:
            # Backends refuse forms with exceptions of every kind; the next form, or the next peer, may do.
            try:
                step = next(steps, None)
                if step is None:
                    break
                fields, reason = measure_step(step, options, batch.device)
            except Exception as error:  # pylint: disable=broad-exception-caught
                fields, reason = None, reason_of(error)
            if fields is None:
                reasons.append(reason)
            elif best is None or fields.get("us", fields["eager_us"]) < best.get("us", best["eager_us"]):
                best = fields
        if best:
            for name, value in best.items():
                record[f"{arm}{suffix}_{name}"] = round(value, 5 if name == "max_rel_err" else 1) \
                    if isinstance(value, float) else value
        elif reasons:
            record["absent"][arm + suffix] = "; ".join(dict.fromkeys(reasons))


def measure_row(tree, options, device):
    import batch as batches  # pylint: disable=import-outside-toplevel

    floor = max(tree.unique_tokens * tree.token_bytes / READ_BYTES_PER_US, tree.flops / FLOPS_PER_US)
    record = {"workload": tree.name, "heads": tree.heads, "head_dim": tree.head_dim, "requests": tree.num_requests,
              "unique_mb": round(tree.unique_tokens * tree.token_bytes / 1e6, 1),
              "sharing": round(tree.flat_tokens / tree.unique_tokens, 2), "floor_us": round(floor, 1), "absent": {}}
    batch = batches.Batch(tree, device)
    for arm in options.arms:
        measure_arm(arm, batch, options, record)
    return record


def about(device):
    import torch  # pylint: disable=import-outside-toplevel

    import flashinfer_arms  # pylint: disable=import-outside-toplevel

    cuda = device.type == "cuda"
    return {
        "about": "Peers measured by bench/peers/measure.py: bf16, HND pages of the workload's size; _us in a CUDA graph with "
                 "the L2 cold (rotating over copies of the caches), _eager_us likewise without a graph, medians; _plan_us "
                 "host planning, apart; _captured: what the faster of two captures was planned for; sdpa_* on contiguous copies made beforehand, _prefix: the root's keys alone. Each "
                 "checked against fp32 attention first.",
        "gpu": torch.cuda.get_device_name(device) if cuda else None,
        "torch": torch.__version__, "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "flashinfer": flashinfer_arms.version(), "date": time.strftime("%Y-%m-%d", time.gmtime())}


@contextlib.contextmanager
def whole_file(path):
    """A file that appears when the block ends, by an interruption too; killed outright, it leaves PATH.PID behind."""
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        try:
            yield file
        finally:
            file.flush()
            os.replace(temporary, path)


def row_of(tree, **more):
    return {"workload": tree.name, "heads": tree.heads, "head_dim": tree.head_dim, **more}


def rows_to_measure(options):
    """Trees in the order of measuring: those of --rows alone, where it is given, FIRST first."""
    dims = [int(dim) for dim in options.head_dim.split(",")] if options.head_dim else [None]
    rows = [maker() for dim in dims for maker in trees.load_trees(options.file, options.workload, options.heads, dim)]
    if options.rows:
        wanted = {key_of(record) for record in read_lines(options.rows) if "workload" in record}
        rows = [tree for tree in rows if key_of(row_of(tree)) in wanted]
        if not rows:
            raise ValueError(f"--rows {options.rows}: none of its workloads x heads is among those of {options.file}; must "
                             "have one in common; give a record of the same workloads")
    return sorted(rows, key=lambda tree: FIRST.index(tree.name) if tree.name in FIRST else len(FIRST))


def times_of(record):
    """What a line of progress says of a row: its times in a graph."""
    names = [name for name in record if name.endswith("_us") and not name.endswith(("floor_us", "_eager_us", "_plan_us"))]
    return ", ".join(f"{name[:-3]} {record[name]:.1f}" for name in names) or "no time"


def measure_rows(rows, options, measure, lost, write):
    """Calls measure(tree) -> record row by row and write(record) on each; one that throws is recorded with the reason.
    lost() -> why no further row can be measured, or None. Returns the records."""
    start, records, stop = time.monotonic(), [], None
    for index, tree in enumerate(rows):
        seconds = time.monotonic() - start
        if stop is None and options.budget_s and seconds > options.budget_s:
            stop = f"not begun within {options.budget_s:g} s"
        if stop:
            record = row_of(tree, absent={"all": stop})
        else:
            try:
                record = measure(tree)
            except Exception as error:  # pylint: disable=broad-exception-caught
                record = row_of(tree, absent={"all": reason_of(error)})
            reason = lost()
            if reason:
                stop = f"not begun: the card failed in {tree.name} {tree.heads}: {reason}"
            print(f"{index + 1}/{len(rows)} {seconds:.0f} s {tree.name} {tree.heads} head_dim {tree.head_dim}: "
                  f"{times_of(record)}" + "".join(f"; {arm}: {why}" for arm, why in record["absent"].items()),
                  file=sys.stderr, flush=True)
        records.append(record)
        write(record)
    return records


def summary(records, arms, seconds, out):
    """What became of the rows, a line an arm and a line a reason."""
    lines = [f"{sum('all' not in record['absent'] for record in records)} of {len(records)} rows in {seconds:.0f} s; {out}"]
    for arm in arms:
        timed = [record for record in records if f"{arm}_us" in record or f"{arm}_eager_us" in record]
        lines.append(f"  {arm}: {len(timed)} rows, {sum(f'{arm}_us' in record for record in timed)} of them in a graph")
    reasons = {}
    for record in records:
        for arm, reason in record["absent"].items():
            reasons.setdefault((arm, reason), []).append(f"{record['workload']} {record['heads']}")
    lines += [f"  absent: {arm}: {reason} ({len(names)} row{'s' * (len(names) != 1)}, first {names[0]})"
              for (arm, reason), names in reasons.items()]
    return "\n".join(lines)


def card_failure(device):
    """Why the card cannot go on (an error that stays, such as an illegal access), or None. Gives cached memory back."""
    import torch  # pylint: disable=import-outside-toplevel

    if device.type != "cuda":
        return None
    try:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    except RuntimeError as error:
        return reason_of(error)
    return None


def main(argv=None):
    options = parse(argv)
    try:
        rows = rows_to_measure(options)
    except (OSError, ValueError) as error:
        sys.exit(f"measure.py: {error}")
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError as error:
        sys.exit(f"measure.py: PyTorch cannot be imported: {error}; must be installed; pip install torch")
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("measure.py: --device is cuda, and PyTorch finds no CUDA device; must be one that is there; "
                 "run it on a machine with a card")
    device = torch.device(options.device, 0) if options.device == "cuda" else torch.device("cpu")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    start = time.monotonic()
    with whole_file(options.out) as out:
        def write(record):
            out.write(json.dumps(record) + "\n")
            out.flush()

        header = about(device)
        print(json.dumps({key: value for key, value in header.items() if key != "about"}), flush=True)
        write(header)
        records = measure_rows(rows, options, lambda tree: measure_row(tree, options, device),
                               lambda: card_failure(device), write)
    print(summary(records, options.arms, time.monotonic() - start, options.out))
    if any("the card failed" in reason for record in records for reason in record["absent"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
