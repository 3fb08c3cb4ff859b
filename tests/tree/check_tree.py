#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""House rules that a machine can check: check_tree.py RULE. Exit code 77 means it cannot be checked here.

Looks at what git tracks, or, outside a git checkout, at every file.
"""
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPP = {".h", ".cpp", ".cu", ".cuh"}
CODE = CPP | {".py", ".sh", ".cmake"}
SKIPPED = 77
MAX_LINES = 600
# The dependency-free part and the headers that even it may include.
PURE = ("include/", "src/core/", "src/cpu/", "src/shared/")
PURE_PREFIXES = ("capillary/", "core/", "cpu/", "shared/")
FORMATTER_MAJOR = "14"


def tracked():
    git = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False)
    if git.returncode == 0:
        names = git.stdout.splitlines()
    else:
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")
                 if path.relative_to(ROOT).parts[0] not in ("build", "out", ".git")]
    return [name for name in names if (ROOT / name).is_file()]


def is_code(name):
    return pathlib.Path(name).suffix in CODE or name.endswith("CMakeLists.txt")


def read(name):
    return (ROOT / name).read_text(encoding="utf-8", errors="replace")


def grep(names, pattern):
    """Yields "file:line: text" of every match."""
    expression = re.compile(pattern)
    for name in names:
        for number, line in enumerate(read(name).splitlines(), 1):
            if expression.search(line):
                yield f"{name}:{number}: {line.strip()}"


def rule_spdx(names):
    """Code files begin with the licence identifier."""
    for name in filter(is_code, names):
        if "SPDX-License-Identifier: MIT" not in "\n".join(read(name).splitlines()[:2]):
            yield f"{name}: no SPDX line at the top"


def rule_length(names):
    """Files short enough to read in one sitting."""
    for name in filter(is_code, names):
        lines = read(name).count("\n")
        if lines > MAX_LINES:
            yield f"{name}: {lines} lines, at most {MAX_LINES}"


def rule_leftovers(names):
    """No notes to self, dead code, or tests that cannot fail."""
    own = [name for name in names if is_code(name) and not name.startswith("tests/tree/")]
    yield from grep(own, r"\b(TODO|FIXME|XXX)\b|^\s*#\s*if 0|DISABLED_|EXPECT_TRUE\(true\)|ASSERT_TRUE\(true\)")


def rule_asm(names):
    """Inline assembly lives in one file."""
    cpp = [name for name in names
           if pathlib.Path(name).suffix in CPP and not name.endswith("src/cuda/ptx.cuh")]
    yield from grep(cpp, r"\basm\s*(volatile)?\s*\(")


def rule_includes(names):
    """The core and the public headers need the C++ standard library and nothing else."""
    for name in names:
        if not name.startswith(PURE) or pathlib.Path(name).suffix not in CPP:
            continue
        for number, line in enumerate(read(name).splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*(<([^>]+)>|"([^"]+)")', line)
            if match is None:
                continue
            angled, quoted = match.group(2), match.group(3)
            # Standard headers have no folder and no extension; intrinsics are the compiler's own.
            if angled and ("/" in angled or ("." in angled and angled != "immintrin.h")):
                yield f"{name}:{number}: {line.strip()}"
            if quoted and not quoted.startswith(PURE_PREFIXES):
                yield f"{name}:{number}: {line.strip()}"
            if quoted and name.startswith("include/") and not quoted.startswith("capillary/"):
                yield f"{name}:{number}: public header includes a private one: {line.strip()}"


def rule_paths(names):
    """No path of one machine."""
    text = [name for name in names
            if not name.startswith("tests/tree/") and pathlib.Path(name).suffix not in {".png", ".jsonl"}]
    yield from grep(text, r"(^|[^A-Za-z0-9_./-])/(work|root|home/[a-z]+)/")


def rule_format(names):
    """clang-format leaves every file alone; other majors of it format differently."""
    formatter = shutil.which(f"clang-format-{FORMATTER_MAJOR}") or shutil.which("clang-format")
    version = ""
    if formatter:
        version = subprocess.run([formatter, "--version"], capture_output=True, text=True, check=True).stdout
    if f"version {FORMATTER_MAJOR}." not in version:
        print(f"clang-format {FORMATTER_MAJOR} is not installed")
        sys.exit(SKIPPED)
    cpp = [name for name in names if pathlib.Path(name).suffix in CPP]
    if not cpp:
        return
    result = subprocess.run([formatter, "--dry-run", "-Werror", *cpp], cwd=ROOT, capture_output=True,
                            text=True, check=False)
    for name in sorted({line.split(":")[0] for line in result.stderr.splitlines() if " error: " in line}):
        yield f"{name}: run clang-format -i on it"


RULES = {name.removeprefix("rule_"): rule for name, rule in list(globals().items())
         if name.startswith("rule_")}


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in RULES:
        sys.exit(f"{__doc__}\nRules: {', '.join(RULES)}")
    names = tracked()
    if not any(name.startswith("src/core/") for name in names):
        sys.exit(f"check_tree: found no sources under {ROOT}")
    problems = list(RULES[sys.argv[1]](names))
    print("\n".join(problems))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
