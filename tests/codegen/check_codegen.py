#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks what the compiler made of one kernel instance: check_codegen.py BUILD_DIR OBJECT_NAME

Reads <object>.ptxas (the report of ptxas -v) and <object>.ptx, which cmake/keep_ptxas_output.sh leaves
beside the object. Needs no GPU. Fails on spills, stack frames, registers over the budget that the kernel's
own launch bounds give, serialised matrix instructions, a missing cluster or bulk-copy instruction, and any
floating-point atomic (results must not depend on arrival order).
"""
import pathlib
import re
import sys

REGISTERS_PER_SM = 65536

# What every instance must contain: (pattern, what it is).
REQUIRED = [
    (r"\bcp\.async\.bulk\b", "bulk copies into shared memory"),
    (r"\bcp\.async\.cg\b", "copies of single rows into shared memory"),
    (r"\bbarrier\.cluster\.arrive\b", "cluster barrier arrive"),
    (r"\bbarrier\.cluster\.wait\b", "cluster barrier wait"),
    (r"\bmapa\b|\bld\.shared::cluster\b", "access to a peer's shared memory"),
]
FORBIDDEN = [
    (r"\b(?:atom|red)\.[\w.:]*\b(?:f16|f16x2|bf16|bf16x2|f32|f64)\b", "floating-point atomic"),
    (
        r"\bcall\b(?!(?:\.uni)?\s*(?:\([^)]*\)\s*,\s*)?\S*"
        r"(?:walk_schedule|merge_own_slots|run_load_rows_role|hand_on_wide_rows|__assertfail|vprintf))",
        "call that was not inlined",
    ),
]
# Spill stores a kernel may have, by head_dim; the others none. Narrow items of 16 rows are what does not fit: from
# 192 on their output alone is 96 or 128 registers of a thread. The wide loop has none.
SPILL_BUDGET_BYTES = {192: 176, 256: 576}
HEAD_DIM = re.compile(r"Traits\w*?Li(\d+)E")
FORBIDDEN_REPORT = [
    (r"setmaxnreg.*ignored", "setmaxnreg was ignored"),
    (r"wgmma.*serializ", "wgmma instructions were serialised"),
]
ENTRY = re.compile(r"Compiling entry function '(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")


def find_one(build_dir, name):
    found = sorted(pathlib.Path(build_dir).rglob(name))
    if len(found) != 1:
        sys.exit(f"codegen: {len(found)} files named {name} under {build_dir}; must be exactly one; build first")
    return found[0].read_text(encoding="utf-8")


def entry_bodies(ptx):
    """Maps each kernel's name to its text in the PTX, launch bounds included."""
    starts = [(m.start(), m.group(1)) for m in re.finditer(r"\.entry\s+(\w+)", ptx)]
    ends = [start for start, _ in starts[1:]] + [len(ptx)]
    return {name: ptx[start:end] for (start, name), end in zip(starts, ends)}


def register_budget(body):
    """Registers a thread may have, so that the promised CTAs fit an SM; None without launch bounds."""
    threads = re.search(r"\.maxntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", body)
    if threads is None:
        return None
    count = 1
    for dimension in threads.groups():
        count *= int(dimension or 1)
    min_ctas = re.search(r"\.minnctapersm\s+(\d+)", body)
    resident = count * (int(min_ctas.group(1)) if min_ctas else 1)
    return min(255, REGISTERS_PER_SM // resident // 8 * 8)


def check(report, ptx):
    problems = []
    bodies = entry_bodies(ptx)
    if not bodies:
        problems.append("no kernel in the PTX")
    for name, body in bodies.items():
        for pattern, what in REQUIRED:
            if not re.search(pattern, body):
                problems.append(f"{name}: no {what} ({pattern})")
        if register_budget(body) is None:
            problems.append(f"{name}: no __launch_bounds__, so no register budget")
    for pattern, what in FORBIDDEN:
        for match in list(re.finditer(pattern, ptx))[:3]:
            line = ptx[ptx.rfind("\n", 0, match.start()) + 1 : ptx.find("\n", match.end())]
            problems.append(f"{what}: {line.strip()}")
    for pattern, what in FORBIDDEN_REPORT:
        if re.search(pattern, report, re.IGNORECASE):
            problems.append(f"ptxas: {what}")

    name, reported = None, set()
    for line in report.splitlines():
        if match := ENTRY.search(line):
            name = match.group(1)
        elif match := FRAME.search(line):
            stack, stores, loads = map(int, match.groups())
            head_dim = HEAD_DIM.search(name or "")
            budget = SPILL_BUDGET_BYTES.get(int(head_dim.group(1)), 0) if head_dim else 0
            if stores > budget or (budget == 0 and (stack or loads)):
                problems.append(f"{name}: stack {stack}, spill stores {stores}, spill loads {loads} bytes")
        elif match := USED.search(line):
            reported.add(name)
            registers = int(match.group(1))
            budget = register_budget(bodies.get(name, ""))
            print(f"{name}: {registers} registers, budget {budget}")
            if budget is not None and registers > budget:
                problems.append(f"{name}: {registers} registers, budget {budget}")
    for missing in sorted(bodies.keys() - reported):
        problems.append(f"{missing}: ptxas reported nothing; was it compiled with -Xptxas=-v?")
    return problems


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    build_dir, object_name = sys.argv[1:]
    problems = check(find_one(build_dir, f"{object_name}.ptxas"), find_one(build_dir, f"{object_name}.ptx"))
    for problem in problems:
        print(f"FAILED {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
