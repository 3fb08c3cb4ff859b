# SPDX-License-Identifier: MIT
"""Device profiles: where a planner finds one, what is refused, and calibrate()."""

import json
import os
import stat
import sys

import numpy as np
import pytest
from conftest import DEVICE

import capillary
from capillary import _command

cuda_only = pytest.mark.skipif(DEVICE == "cpu", reason="needs a card")


@pytest.fixture(autouse=True)
def nobody_elses_profiles(monkeypatch, tmp_path):
    monkeypatch.delenv("CAPILLARY_PROFILE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def profile_fields(**changes):
    """What a file of the built-in profile would hold, with changes."""
    names = [name for name in dir(capillary.DeviceProfile) if not name.startswith("_")]
    fields = {name: getattr(capillary.DeviceProfile.h200(), name) for name in names if name not in ("h200", "for_device")}
    sizes = ("1", "2", "4", "8", "16")
    fields |= {name: dict(zip(sizes, fields[name])) for name in ("max_clusters", "dsm_load_gbps_per_cta")}
    return fields | {"schema_version": 2, "card": None} | changes


def written(path, **changes):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(profile_fields(**changes)))
    return path


def planned(**options):
    planner = capillary.Planner(8, 2, 64, **options)
    planner.update(np.array([[0, 1], [0, 2]], np.int32), np.array([20, 20], np.int32), 16)
    return planner


def test_profiles_are_read_from_files(tmp_path):
    path = written(tmp_path / "profile.json", name="mine", hbm_gbps=1000.0)
    profile = capillary.load_profile(path)
    assert (profile.name, profile.hbm_gbps) == ("mine", 1000.0)
    for change, part in (({"hbm_gbps": None}, "hbm_gbps"), ({"launch_us": -1.0}, "launch_us"), ({"extra": 1}, "extra"),
                         ({"schema_version": 9}, "schema_version")):
        written(path, **change)
        with pytest.raises(ValueError, match=part):
            capillary.load_profile(path)
    fields = profile_fields()
    del fields["num_sms"]
    path.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match="num_sms"):
        capillary.load_profile(path)


def test_explain_says_which_profile_was_planned_with(tmp_path, monkeypatch):
    explanation = planned().explain()
    assert (explanation.profile, explanation.profile_where) == ("h200", "built in")
    path = written(tmp_path / "environment.json", name="slow", hbm_gbps=400.0)
    monkeypatch.setenv("CAPILLARY_PROFILE", str(path))
    from_environment = planned()
    explanation = from_environment.explain()
    assert (explanation.profile, explanation.profile_where) == ("slow", f"{path} (CAPILLARY_PROFILE)")
    assert f"{path} (CAPILLARY_PROFILE)" in str(explanation) and "on slow" in str(explanation)
    assert from_environment.profile.hbm_gbps == 400.0
    explanation = planned(profile=capillary.DeviceProfile.h200()).explain()
    assert (explanation.profile, explanation.profile_where) == ("h200", "the caller's")


def test_decode_and_the_workspace_bound_look_for_a_profile_too(tmp_path, monkeypatch, batch):
    shape = {"num_q_heads": 8, "num_kv_heads": 1, "head_dim": 64}
    ordinary = capillary.workspace_bytes(4, **shape)
    clusters = {"1": 1320, "2": 66, "4": 30, "8": 15, "16": 7}
    monkeypatch.setenv("CAPILLARY_PROFILE", str(written(tmp_path / "large.json", name="large", num_sms=1320,
                                                        max_clusters=clusters)))
    assert capillary.workspace_bytes(4, **shape) > ordinary
    capillary.functional.forget_planners()
    capillary.decode(batch.q, batch.k, batch.v, batch.table, batch.lens)
    assert capillary.explain().profile == "large"
    capillary.functional.forget_planners()


def test_a_torn_profile_is_not_passed_over(tmp_path, monkeypatch):
    path = tmp_path / "torn.json"
    path.write_text('{"schema_version": 2, "name"')
    monkeypatch.setenv("CAPILLARY_PROFILE", str(path))
    with pytest.raises(ValueError, match="torn.json"):
        planned()
    monkeypatch.setenv("CAPILLARY_PROFILE", str(tmp_path / "absent.json"))
    with pytest.raises(ValueError, match="CAPILLARY_PROFILE .*absent.json"):
        planned()
    planned(profile=capillary.DeviceProfile.h200())


# --- calibrate() -----------------------------------------------------------------------------------------------

@pytest.mark.skipif(bool(capillary.devices()), reason="there is a card")
def test_without_a_card_there_is_nothing_to_measure():
    with pytest.raises(capillary.UnsupportedArchError, match="must be a Hopper GPU that is here: ") as caught:
        capillary.calibrate()
    assert isinstance(caught.value, NotImplementedError) and caught.value.found and caught.value.needed
    with pytest.raises(ValueError, match="device is 'cpu'; must be 'cuda'"):
        capillary.calibrate("cpu")


@pytest.fixture
def fake_card(tmp_path, monkeypatch):
    """A card 3 and a command that "measures" it: what it is told to write, say and end with are files in a folder."""
    folder = tmp_path / "command"
    written(folder / "profile.json", name="measured")
    (folder / "code").write_text("0")
    command = folder / "capillary"
    command.write_text(f"""#!{sys.executable}
import pathlib, shutil, sys
folder = pathlib.Path({str(folder)!r})
(folder / "arguments").write_text(" ".join(sys.argv[1:]))
code = int((folder / "code").read_text())
if code == 0:
    target = sys.argv[sys.argv.index("--out") + 1] if "--out" in sys.argv else folder / "cached.json"
    shutil.copy(folder / "profile.json", target)
else:
    print("capillary calibrate: no luck", file=sys.stderr)
sys.exit(code)
""")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(capillary._core, "_card_to_calibrate", lambda device: (3, str(folder / "cached.json")))
    monkeypatch.setattr(capillary.calibration, "find_command", lambda: str(command))
    return folder


def test_calibrate_runs_the_command_and_returns_the_profile(fake_card, tmp_path, monkeypatch, batch):
    capillary.decode(batch.q, batch.k, batch.v, batch.table, batch.lens)
    assert capillary.calibrate().name == "measured"
    assert (fake_card / "arguments").read_text() == "calibrate --card 3"
    assert not capillary.functional._planners  # the next decode() plans with what was measured
    monkeypatch.chdir(tmp_path)
    assert capillary.calibrate("cuda:3", out="mine.json").name == "measured"
    assert (fake_card / "arguments").read_text() == f"calibrate --card 3 --out {tmp_path / 'mine.json'}"


@pytest.mark.parametrize(("code", "error"), [
    (1, capillary.InternalError), (2, capillary.InvalidArgumentError), (3, capillary.InvalidArgumentError),
    (4, capillary.UnsupportedConfigError), (5, capillary.DeviceError)])
def test_what_the_command_ends_with_is_a_typed_error(fake_card, code, error):
    (fake_card / "code").write_text(str(code))
    with pytest.raises(error, match="no luck"):
        capillary.calibrate()


def test_without_the_command_calibrate_says_how_to_get_it(fake_card, monkeypatch):
    monkeypatch.setattr(capillary.calibration, "find_command", lambda: None)
    with pytest.raises(NotImplementedError, match="calibrate: the capillary command .* CLI11"):
        capillary.calibrate()


def test_a_command_of_another_version_is_not_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(_command.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(_command.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    command = tmp_path / "capillary"
    for says, found in ((f"capillary {capillary.__version__}", str(command)), ("capillary 0.0.1", None), ("", None)):
        command.write_text(f"#!/bin/sh\necho '{says}'\n")
        command.chmod(0o755)
        assert _command.find_command() == found


@cuda_only
def test_planners_on_a_card_find_what_calibrate_wrote(device):
    assert planned(device=device).explain().profile_where == "built in"
    _, path = capillary._core._card_to_calibrate(device)
    assert path.startswith(os.environ["XDG_CACHE_HOME"])
    from pathlib import Path
    written(Path(path), name="cached", hbm_gbps=4000.0)
    planner = planned(device=device)
    explanation = planner.explain()
    assert explanation.profile == "cached" and explanation.profile_where.startswith(path)
    assert planner.profile.hbm_gbps == 4000.0
    written(Path(path), name="another", card={"name": "another", "num_sms": 132, "clock_mhz": 1980})
    with pytest.raises(ValueError, match="another"):
        planned(device=device)


@cuda_only
def test_a_card_is_calibrated(device, tmp_path):
    if _command.find_command() is None:
        pytest.skip("installed without the command")
    profile = capillary.calibrate(device, out=tmp_path / "card.json")
    assert profile.source.startswith("calibrated") and 1000 < profile.hbm_gbps < 10000
    assert planned(device=device, profile=profile).explain().profile_where == "the caller's"
