# SPDX-License-Identifier: MIT
"""The package itself: types, stubs, documentation, and what importing it does not do."""

import inspect
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import capillary
from capillary._command import find_command

SOURCE = Path(__file__).parents[1] / "src" / "capillary"


@pytest.fixture(scope="module")
def reference():
    """What writes docs/python-api.md."""
    return runpy.run_path(str(SOURCE.parents[1] / "reference.py"))


def test_importing_it_imports_no_framework():
    code = "import sys, capillary; print(sorted({'torch', 'jax', 'cupy', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_version_is_the_headers():
    header = (SOURCE.parents[2] / "include" / "capillary" / "version.h").read_text()
    assert f'VERSION_STRING "{capillary.__version__}"' in header


def test_the_stub_is_what_the_bindings_say(tmp_path):
    """Renew it with: python -m nanobind.stubgen -P -m capillary._core -o FILE, below the two lines at its top."""
    nanobind = pytest.importorskip("nanobind")
    committed = (SOURCE / "_core.pyi").read_text().splitlines()[2:]
    made = tmp_path / "_core.pyi"
    result = subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-P", "-m", "capillary._core", "-o", made],
                            capture_output=True, text=True)
    if result.returncode != 0:
        pytest.fail(f"stubgen of nanobind {nanobind.__version__}: {result.stderr}")
    # Names and signatures: other versions of stubgen set docstrings and imports differently.
    def declared(lines):
        return [line.strip() for line in lines if re.match(r"\s*(def|class) ", line)]
    assert declared(made.read_text().splitlines()) == declared(committed)


def test_types_are_strict():
    pytest.importorskip("mypy")
    root = SOURCE.parents[2]
    checked = subprocess.run([sys.executable, "-m", "mypy", "--config-file", root / "pyproject.toml"], cwd=root,
                             capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    assert (SOURCE / "py.typed").exists()


def test_types_are_what_a_user_needs(tmp_path):
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text("""
import numpy as np
import capillary

table, lens = np.zeros((1, 1), np.int32), np.ones(1, np.int32)
planner = capillary.Planner(8, 2, 64, dtype="float32")
planner.update(table, lens, 16, previous_row=None)
node: capillary.ForestNode = capillary.PrefixForest.from_block_table(table, lens, 16).nodes[0]
runs: int = planner.explain().num_runs
candidate: capillary.Candidate = planner.explain().candidates[0]
pages: list[int] = capillary.RadixCache(8, 4, first_page=1).allocate_pages(2)
supported, why = capillary.is_supported(64, device="cpu")
capillary.Planner("8", 2, 64)  # wrong
capillary.Planner(8, 2, 64, "float32")  # wrong
planner.update(table, lens, 16, lens)  # wrong
planner.explain().num_run  # wrong
capillary.decode(table, table, table, table, lens, 0.5)  # wrong
capillary.workspace_bytes(8, num_q_heads=8)  # wrong
capillary.is_supported(64).real  # wrong
""")
    checked = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", program],
                             cwd=SOURCE.parent, capture_output=True, text=True)
    lines = program.read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert {int(number) for number in re.findall(r"program.py:(\d+): error", checked.stdout)} == wrong, checked.stdout


def test_everything_public_is_documented(reference):
    """Beyond its signature, which bindings write into their docstrings themselves."""
    missing = []
    for name in capillary.__all__:
        thing = getattr(capillary, name)
        if not callable(thing):
            continue
        if not reference["signature_and_text"](name, thing)[1]:
            missing.append(name)
        if inspect.isclass(thing) and not issubclass(thing, BaseException):
            missing += [f"{name}.{member}" for member, value in reference["members"](thing)
                        if not reference["signature_and_text"](member, value)[1]]
            declared = [field for field in inspect.get_annotations(thing) if field in reference["source_fields"](thing)]
            missing += [f"{name}.{field}" for field in declared if not reference["source_fields"](thing)[field]]
    assert not missing


def test_options_are_keyword_only(reference):
    allowed = {"calibrate(device: str =", "is_supported(head_dim: int, dtype: str ="}  # what is asked about is no option
    for name in capillary.__all__:
        thing = getattr(capillary, name)
        if not callable(thing) or (inspect.isclass(thing) and issubclass(thing, (BaseException, tuple))):
            continue
        calls = [(name, thing)]
        if inspect.isclass(thing):
            calls += [member for member in reference["members"](thing) if callable(member[1])]
        for title, call in calls:
            signature = reference["signature_and_text"](title, call)[0] or ""
            positional = signature.partition("*")[0]
            assert "=" not in positional or any(positional.startswith(start) for start in allowed), signature


def test_the_reference_names_everything_public():
    reference = (SOURCE.parents[2] / "docs" / "python.md").read_text()
    missing = [name for name in capillary.__all__ if name != "__version__" and f"`{name}" not in reference]
    assert not missing


def test_the_api_page_is_written_from_the_docstrings(reference):
    """All but the signatures: how these are printed depends on Python's version."""
    def without_signatures(text):
        return re.sub(r"```python\n.*?```\n", "", text, flags=re.DOTALL)

    written = (SOURCE.parents[2] / "docs" / "python-api.md").read_text()
    assert without_signatures(reference["page"]()) == without_signatures(written), "run python3 python/reference.py"


def test_the_command_comes_with_the_package(tmp_path):
    """And needs nothing of where it was built: it runs in an empty environment, and looks for no library there."""
    command = find_command()
    if command is None:
        pytest.skip("installed without the command (its libraries were absent at build time)")
    told = subprocess.run([command, "--version"], capture_output=True, text=True, check=True, cwd=tmp_path, env={})
    assert told.stdout.split()[:2] == ["capillary", capillary.__version__]
    for file in (command, capillary._core.__file__):
        if shutil.which("readelf"):
            dynamic = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
            assert not re.search("RPATH|RUNPATH", dynamic), dynamic
        if shutil.which("ldd"):
            assert "not found" not in subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout


def test_the_doctor_finds_this_machine_well():
    told = subprocess.run([sys.executable, "-m", "capillary.doctor"], capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "ok cpu" in told.stdout and "!!" not in told.stdout


def test_the_doctor_reports_what_is_broken(monkeypatch, capsys):
    from capillary import doctor

    def broken(device):
        raise RuntimeError("no luck")

    monkeypatch.setattr(doctor, "_self_test", broken)
    assert doctor.main() == 1
    assert "!! cpu           RuntimeError: no luck" in capsys.readouterr().out
