# SPDX-License-Identifier: MIT
"""The examples run, and the quickstarts are as short as they say, and what the page shows."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DEVICE

ROOT = Path(__file__).parents[2]
QUICKSTARTS = ["quickstart", "quickstart_cuda"]


def source(name):
    return (ROOT / "examples" / f"{name}.py").read_text()


@pytest.mark.parametrize(("name", "needs"), [
    ("quickstart", []), ("quickstart_cuda", ["torch"]), ("engine_loop", []),
    ("transformers_generate", ["torch", "transformers"])])
def test_the_example_runs(name, needs, tmp_path):
    for module in needs:
        pytest.importorskip(module)
    program = source(name)
    if name == "quickstart_cuda" and DEVICE == "cpu":  # all but the place is the same there
        program = program.replace('"cuda"', '"cpu"')
    file = tmp_path / f"{name}.py"
    file.write_text(program)
    told = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=240)
    assert told.returncode == 0, told.stderr
    assert "reason" in told.stdout and "sharing" in told.stdout


def code_of(program):
    """From the first import on, without empty lines."""
    lines = program.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("import"))
    return [line for line in lines[first:] if line]


@pytest.mark.parametrize("name", QUICKSTARTS)
def test_a_quickstart_has_ten_lines(name):
    assert len(code_of(source(name))) <= 10


@pytest.mark.parametrize("name", QUICKSTARTS)
def test_the_page_shows_the_quickstart(name):
    blocks = (ROOT / "docs" / "python.md").read_text().split("```python\n")[1:]
    shown = [[line for line in block.partition("```")[0].splitlines() if line] for block in blocks]
    assert code_of(source(name)) in shown
