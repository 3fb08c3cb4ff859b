# SPDX-License-Identifier: MIT
"""Making arrays of the caller's own framework, without importing any that is not there."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .errors import InvalidArgumentError


def framework_of(array: Any) -> str:
    """``torch``, ``numpy``, ``cupy`` or ``jax``; the module's name for anything else."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return "torch"
    module = type(array).__module__.partition(".")[0]
    return "jax" if module == "jaxlib" else module


def empty(function: str, like: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
    """An uninitialised array on the device and of the framework of ``like``.

    dtype: a name; None is that of ``like``.
    Raises InvalidArgumentError for a framework whose arrays cannot be written to.
    """
    framework = framework_of(like)
    if framework == "torch":
        torch = sys.modules["torch"]
        return like.new_empty(shape, dtype=None if dtype is None else getattr(torch, dtype))
    if framework == "numpy":
        return np.empty(shape, dtype or like.dtype)
    if framework == "cupy":
        return sys.modules["cupy"].empty(shape, dtype or like.dtype)
    raise InvalidArgumentError(
        f"{function}: out is None with arrays of {framework}; must be given, because these cannot be "
        f"allocated here or not be written to; pass out=, for JAX e.g. a NumPy or CuPy array")
