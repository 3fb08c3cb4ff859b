# SPDX-License-Identifier: MIT
"""calibrate(): measures a card, so that plans are made with its own figures."""

from __future__ import annotations

import os
import subprocess

from . import _core, functional
from ._command import WITHOUT, find_command
from .errors import CapillaryError, DeviceError, InternalError, InvalidArgumentError, UnsupportedConfigError

# The command's exit codes (docs/cli.md).
_ERRORS: dict[int, type[CapillaryError]] = {
    2: InvalidArgumentError, 3: InvalidArgumentError, 4: UnsupportedConfigError, 5: DeviceError}


def calibrate(device: str = "cuda", *, out: str | os.PathLike[str] | None = None) -> _core.DeviceProfile:
    """Measures a card and keeps the profile where planners look for it (docs/calibration.md says what and how).

    device: ``cuda`` or ``cuda:N``. out: a file to write instead of the card's own in the user's cache.

    Runs the command ``capillary calibrate``, in a process of its own: a few seconds, best while nothing else runs
    on the card, with 5 GB of its memory. Planners that were there before keep their profile; decode() makes new ones.
    Returns the profile.

    Raises UnsupportedArchError where there is no card that the kernels run on; UnsupportedConfigError if the package
    came without the command, or with one built without CUDA; InvalidArgumentError for a file that cannot be written;
    DeviceError if the card fails or does not answer for two minutes. What was written before then still stands.
    """
    index, path = _core._card_to_calibrate(device)
    command = find_command()
    if command is None:
        raise UnsupportedConfigError(f"calibrate: {WITHOUT}")
    arguments = [command, "calibrate", "--card", str(index)]
    if out is not None:
        path = os.path.abspath(os.fspath(out))
        arguments += ["--out", path]
    elif not path:  # a package that reads no profile files knows no cache
        raise UnsupportedConfigError("calibrate: this package has no profile cache; pass out=")
    told = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if told.returncode != 0:
        raise _ERRORS.get(told.returncode, InternalError)(
            told.stderr.strip() or f"calibrate: {command} ended with exit code {told.returncode} and said nothing")
    profile = _core._read_profile(path)
    functional.forget_planners()
    return profile
