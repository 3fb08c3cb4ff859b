# SPDX-License-Identifier: MIT
"""The ``capillary`` command, which comes with the package."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from ._core import version

WITHOUT = ("the capillary command of version {} is not installed: build the package where fmt, nlohmann-json and CLI11 "
           "are installed, and it comes with it").format(version)


def find_command() -> str | None:
    """Path of this version's command: the environment's own, else one on the PATH; None where there is none."""
    for folder in (sysconfig.get_path("scripts"), str(Path(sys.executable).parent), None):
        found = shutil.which("capillary", path=folder)
        if found and _version_of(found) == version:
            return found
    return None


def _version_of(command: str) -> str | None:
    try:
        told = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = told.stdout.split()
    return words[1] if told.returncode == 0 and len(words) > 1 else None
