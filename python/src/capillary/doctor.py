# SPDX-License-Identifier: MIT
"""``python -m capillary.doctor``: what works here, and what is missing. Exit code 1 if something is broken.

Each line is ``ok``, ``--`` (absent, and what that costs) or ``!!`` (broken). Absent things are no error.
"""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Callable, Iterator

import numpy as np

import capillary

from ._command import WITHOUT, find_command

_HEAD_DIMS = (64, 80, 96, 112, 128, 192, 256)

Finding = tuple[str, str, str]  # mark, subject, text


def _self_test(device: str) -> str:
    """A decode step against the oracle; returns what was compared. Raises what goes wrong."""
    rng = np.random.default_rng(0)
    table = np.array([[3, 1, 2, -1], [3, 1, 0, 4]], np.int32)
    lens = np.array([40, 60], np.int32)
    q = rng.standard_normal((2, 8, 64)).astype(np.float16)
    k, v = (rng.standard_normal((5, 16, 2, 64)).astype(np.float16) for _ in range(2))
    expected, _ = capillary.oracle_decode(q, k, v, table, lens)
    if device == "cpu":
        out = capillary.decode(q, k, v, table, lens)
    else:
        import torch
        on_device = [torch.from_numpy(array).to(device) for array in (q, k, v, table)]
        out = capillary.decode(on_device[0], on_device[1], on_device[2], on_device[3], lens).cpu().numpy()
    worst = float(np.abs(out.astype(np.float64) - expected).max())
    if not worst < 5e-3:
        raise RuntimeError(f"a decode step differs from fp64 attention by {worst}")
    return f"a decode step agrees with fp64 attention (worst difference {worst:.1e})"


def _checked(subject: str, check: Callable[[], str]) -> Finding:
    try:
        return "ok", subject, check()
    except Exception as error:  # whatever is broken is what the doctor is for
        return "!!", subject, f"{type(error).__name__}: {error}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _command() -> Finding:
    found = find_command()
    return ("ok", "command", found) if found else ("--", "command", WITHOUT)


def _profile(device: str, head_dim: int) -> str:
    planner = capillary.Planner(1, 1, head_dim, device=device)
    return f"{planner.profile.name}, {planner.profile_where}"


def _cuda() -> Iterator[Finding]:
    if not capillary.built_with_cuda:
        yield "--", "CUDA", "built without it: decode runs on the CPU; build where nvcc is found"
        return
    yield "ok", "kernels", capillary.kernels()
    devices = capillary.devices()
    if not devices:
        yield "--", "CUDA", "no device found: decode runs on the CPU"
    for device in devices:
        name = f"cuda:{device['index']}"
        about = f"{device['name']}, compute {device['compute'][0]}.{device['compute'][1]}"
        answers = {head_dim: capillary.is_supported(head_dim, device=name) for head_dim in _HEAD_DIMS}
        if not any(supported for supported, _ in answers.values()):
            yield "--", name, f"{about}: {answers[_HEAD_DIMS[0]][1]}"
            continue
        yield "ok", name, about
        served = next(head_dim for head_dim, (supported, _) in answers.items() if supported)
        yield _checked("profile", functools.partial(_profile, name, served))
        if not _version("torch"):
            yield "--", name, "not tested: needs PyTorch to put arrays there"
        elif not answers[64][0]:
            yield "--", name, "not tested: needs a kernel of head_dim 64"
        else:
            yield _checked(name, functools.partial(_self_test, name))


def _frameworks() -> Iterator[Finding]:
    for package, use in (("torch", "operators, compile and CUDA graphs"), ("transformers", "attn_implementation"),
                         ("cupy", "CuPy arrays"), ("jax", "JAX arrays")):
        names = [package] if package != "cupy" else ["cupy-cuda13x", "cupy-cuda12x", "cupy"]
        version = next(filter(None, map(_version, names)), None)
        if version is None:
            yield "--", package, f"not installed: no {use}"
        else:
            yield "ok", package, version
    if _version("torch"):
        def registered() -> str:
            import torch

            import capillary.torch_ops  # noqa: F401
            torch.ops.capillary.decode.default  # raises where it is not there
            return "torch.ops.capillary registered"
        yield _checked("torch", registered)
    if _version("torch") and _version("transformers"):
        def known() -> str:
            from capillary.integrations.transformers import register
            register()
            return 'attn_implementation="capillary" registered'
        yield _checked("transformers", known)


def findings() -> Iterator[Finding]:
    """Everything the doctor looks at, one finding after another."""
    python = ".".join(map(str, sys.version_info[:3]))
    yield "ok", "capillary", f"{capillary.__version__}, Python {python}, NumPy {np.__version__}"
    yield _checked("cpu", lambda: _self_test("cpu"))
    yield _checked("profile", lambda: _profile("cpu", _HEAD_DIMS[0]))
    yield from _cuda()
    yield from _frameworks()
    yield _command()


def main() -> int:
    broken = False
    for mark, subject, text in findings():
        print(f"{mark} {subject:<13} {text}", flush=True)
        broken |= mark == "!!"
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
