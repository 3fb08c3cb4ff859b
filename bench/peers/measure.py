#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures what others take for the steps of a workload file: FlashInfer (decode on tensor cores; cascade, backend auto
and fa2) and PyTorch SDPA (cuDNN, FlashAttention) on contiguous copies. Writes JSON lines, a line a workload x heads.

Each peer is checked against plain fp32 attention before it is timed, with the L2 cold, in a CUDA graph and eagerly; its
planning is timed apart. A peer that is not here is recorded as absent, with the reason. docs/benchmarking.md has the
method; join.py puts the figures beside ours.
"""
import argparse
import contextlib
import json
import os
import signal
import sys
import time

import trees

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
        captured = step.capturable or step
        try:
            fields["us"] = timing.graph_us(captured.run, step.copies, options.repeat, step.bytes_of_one)
        except RuntimeError as error:  # not every library can be captured; its eager time stands
            fields["graph_failed"] = reason_of(error)
    if step.plan:
        fields["plan_us"] = timing.plan_us(step.plan, options.repeat, device)
    if step.flops:
        fields["tflops"] = step.flops / (fields.get("us") or fields["eager_us"]) / 1e6
    return fields, None


def measure_arm(arm, batch, options, record):
    import torch  # pylint: disable=import-outside-toplevel

    from arm import Absent  # pylint: disable=import-outside-toplevel

    for suffix, steps in steps_of(arm, batch):
        best, reasons = None, []
        try:
            steps = iter(steps)
            while True:
                # A backend refuses a form with an exception of its own kind; the next form may do.
                try:
                    step = next(steps, None)
                    if step is None:
                        break
                    fields, reason = measure_step(step, options, batch.device)
                except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
                    fields, reason = None, reason_of(error)
                if fields is None:
                    reasons.append(reason)
                elif best is None or fields.get("us", fields["eager_us"]) < best.get("us", best["eager_us"]):
                    best = fields
        except (Absent, torch.cuda.OutOfMemoryError) as error:
            reasons.append(reason_of(error))
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
                 "host planning, apart; sdpa_* on contiguous copies made beforehand, _prefix: the root's keys alone. Each "
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


def main(argv=None):
    options = parse(argv)
    dims = [int(dim) for dim in options.head_dim.split(",")] if options.head_dim else [None]
    makers = [maker for dim in dims for maker in trees.load_trees(options.file, options.workload, options.heads, dim)]
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError as error:
        sys.exit(f"measure.py: PyTorch cannot be imported: {error}; must be installed; pip install torch")
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("measure.py: --device is cuda, and PyTorch finds no CUDA device; must be one that is there; "
                 "run it on a machine with a card")
    device = torch.device(options.device, 0) if options.device == "cuda" else torch.device("cpu")
    rows = sorted((maker() for maker in makers),
                  key=lambda tree: FIRST.index(tree.name) if tree.name in FIRST else len(FIRST))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    start, left_out = time.monotonic(), []
    with whole_file(options.out) as out:
        header = about(device)
        print(json.dumps({key: value for key, value in header.items() if key != "about"}), flush=True)
        out.write(json.dumps(header) + "\n")
        for index, tree in enumerate(rows):
            seconds = time.monotonic() - start
            if options.budget_s and seconds > options.budget_s:
                left_out = rows[index:]
                break
            print(f"{index}/{len(rows)} {seconds:.0f} s {tree.name} {tree.heads} head_dim {tree.head_dim}",
                  file=sys.stderr, flush=True)
            record = measure_row(tree, options, device)
            out.write(json.dumps(record) + "\n")
            out.flush()
            if options.device == "cuda":
                torch.cuda.empty_cache()
        for tree in left_out:
            out.write(json.dumps({"workload": tree.name, "heads": tree.heads, "head_dim": tree.head_dim,
                                  "absent": {"all": f"not begun within {options.budget_s:g} s"}}) + "\n")
    print(f"{len(rows) - len(left_out)} of {len(rows)} rows in {time.monotonic() - start:.0f} s, "
          f"{len(left_out)} left out; {options.out}")


if __name__ == "__main__":
    main()
