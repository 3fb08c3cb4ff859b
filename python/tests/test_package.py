# SPDX-License-Identifier: MIT
"""The package itself: types, stubs, documentation, and what importing it does not do."""

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import capillary
from capillary._command import find_command

SOURCE = Path(__file__).parents[1] / "src" / "capillary"


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


def public_objects():
    for name in capillary.__all__:
        thing = getattr(capillary, name)
        if not callable(thing):
            continue
        yield name, thing
        if inspect.isclass(thing) and not issubclass(thing, (BaseException, tuple)):
            for attribute, value in vars(thing).items():
                if not attribute.startswith("_") and callable(value):
                    yield f"{name}.{attribute}", value


@pytest.mark.parametrize(("name", "thing"), list(public_objects()), ids=lambda value: value if isinstance(value, str) else "")
def test_everything_public_is_documented(name, thing):
    assert inspect.getdoc(thing), name


def test_the_reference_names_everything_public():
    reference = (SOURCE.parents[2] / "docs" / "python.md").read_text()
    missing = [name for name in capillary.__all__ if name != "__version__" and f"`{name}" not in reference]
    assert not missing


def test_the_api_page_is_written_from_the_docstrings():
    """Headings alone: how a signature is printed depends on Python's version."""
    import runpy
    page = runpy.run_path(str(SOURCE.parents[1] / "reference.py"))["page"]()
    written = (SOURCE.parents[2] / "docs" / "python-api.md").read_text()
    def headings(text):
        return [line for line in text.splitlines() if line.startswith(("#", "- `"))]
    assert headings(page) == headings(written), "run python3 python/reference.py"


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
