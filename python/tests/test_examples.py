# SPDX-License-Identifier: MIT
"""The examples run, and the quickstart is as short as it says."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("name", "needs"), [
    ("quickstart", []), ("engine_loop", []), ("transformers_generate", ["torch", "transformers"])])
def test_the_example_runs(name, needs):
    for module in needs:
        pytest.importorskip(module)
    told = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, timeout=240)
    assert told.returncode == 0, told.stderr
    assert "reason" in told.stdout and "sharing" in told.stdout


def test_the_quickstart_has_ten_lines():
    lines = (EXAMPLES / "quickstart.py").read_text().splitlines()
    code = [line for line in lines if line and not line.startswith(("#", '"""'))]
    assert len(code) <= 10
