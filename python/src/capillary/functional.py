# SPDX-License-Identifier: MIT
"""The stateless side: one call a step, and questions about what is there."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from . import _core
from ._arrays import empty, framework_of
from ._explanation import Explanation, explanation
from .errors import CapillaryError, InvalidArgumentError
from .planner import Planner

_MAX_CACHED_PLANNERS = 16
_DTYPE_NAMES = ("bfloat16", "float16", "float32")

# Planners of decode(), least recently used first, each with the lock that keeps its plan until it has run, and with
# the profile whose identity is part of the key.
_planners: OrderedDict[tuple[Any, ...], tuple[Planner, threading.Lock, _core.DeviceProfile | None]] = OrderedDict()
_planners_lock = threading.Lock()


def _after_fork_in_child() -> None:
    # Whoever held it in the parent is not here to let it go. Planners are keyed by process.
    global _planners_lock
    _planners_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _dtype_name(array: Any) -> str:
    name = str(array.dtype).rpartition(".")[2]
    return name if name in _DTYPE_NAMES else "bfloat16"


def _device_name(array: Any) -> str:
    if framework_of(array) == "numpy":
        return "cpu"
    kind, index = array.__dlpack_device__()
    return f"cuda:{index}" if int(kind) in (2, 13) else "cpu"


def _axis(name: str, array: Any, axis: int, ndim: int) -> int:
    shape = getattr(array, "shape", None)
    if shape is None or len(shape) != ndim:
        what = f"is a {type(array).__name__}" if shape is None else f"has shape {tuple(shape)}"
        raise InvalidArgumentError(
            f"decode: {name} {what}; must be an array of {ndim} dimensions; see help(capillary.decode)")
    return int(shape[axis])


def _stream_key(stream: Any, device: str, q: Any) -> Any:
    if device == "cpu" or stream is not None or framework_of(q) != "torch":
        return getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    import torch
    return torch.cuda.current_stream(q.device).cuda_stream


def decode(q: Any, k_cache: Any, v_cache: Any, block_table: Any, seq_lens: Any, *,
           softmax_scale: float | None = None, kv_layout: str = "NHD", out: Any = None, lse: Any = None,
           return_lse: bool = False, mode: str = "auto", cluster_size: int = 0, num_pieces: int = 0,
           profile: _core.DeviceProfile | None = None, stream: Any = None, num_threads: int = 0) -> Any:
    """Decode attention over a paged cache: plans the batch and runs the plan once.

    q: [num_requests, num_q_heads, head_dim].
    k_cache, v_cache: [num_pages, page_size, num_kv_heads, head_dim] for ``kv_layout`` NHD,
    [num_pages, num_kv_heads, page_size, head_dim] for HND.
    block_table: int32 [num_requests, max_pages]; seq_lens: int32 [num_requests], in tokens. If they are on the
    device they are copied to the host, which waits for the stream: a Planner that is given host copies does not.
    The remaining options are those of Planner and Planner.run; page_size and head_dim_v are the caches'.

    Returns ``out`` [num_requests, num_q_heads, head_dim_v], or ``(out, lse)`` with return_lse.

    Planners are kept for reuse, one for each shape, device and stream. Plan once and run per layer with a
    Planner where time matters. Cannot be captured in a CUDA graph, because it plans.

    Raises what Planner and Planner.run raise.
    """
    device = _device_name(q) if hasattr(q, "__dlpack_device__") else "cpu"
    is_hnd = kv_layout == "HND"
    key = (_axis("q", q, 1, 3), _axis("k_cache", k_cache, 1 if is_hnd else 2, 4), _axis("q", q, 2, 3),
           _axis("v_cache", v_cache, 3, 4), _dtype_name(q), device, mode, cluster_size, num_pieces,
           id(profile), _stream_key(stream, device, q), os.getpid())
    with _planners_lock:
        entry = _planners.pop(key, None)
        if entry is None:
            planner = Planner(key[0], key[1], key[2], head_dim_v=key[3], dtype=key[4], device=device, mode=mode,
                              cluster_size=cluster_size, num_pieces=num_pieces, profile=profile)
            entry = (planner, threading.Lock(), profile)
        _planners[key] = entry
        if len(_planners) > _MAX_CACHED_PLANNERS:
            _planners.popitem(last=False)
    planner, lock, _ = entry
    page_size = _axis("k_cache", k_cache, 2 if is_hnd else 1, 4)
    with lock:
        planner.update(block_table, seq_lens, page_size, stream=stream)
        result = planner.run(q, k_cache, v_cache, block_table, out=out, lse=lse, return_lse=return_lse,
                             softmax_scale=softmax_scale, kv_layout=kv_layout, stream=stream,
                             num_threads=num_threads)
        _last.summary = planner._summary()  # before another thread plans something else with this planner
    return result


def forget_planners() -> None:
    """What decode() plans next it plans with a new Planner."""
    with _planners_lock:
        _planners.clear()


class _Last(threading.local):
    summary: dict[str, Any] | None = None


_last = _Last()


def explain() -> Explanation:
    """What the last decode() of this thread did. Raises InvalidArgumentError if there was none."""
    if _last.summary is None:
        raise InvalidArgumentError("explain: nothing was decoded on this thread; must come after decode(); "
                                   "for a Planner call its own explain()")
    return explanation(_last.summary)


def _shape_of(name: str, array: Any) -> tuple[int, ...]:
    shape = getattr(array, "shape", None)
    if shape is None:
        raise InvalidArgumentError(f"merge_states: {name} is a {type(array).__name__}; must be an array; pass a NumPy, "
                                   "PyTorch, CuPy or JAX array")
    return tuple(shape)


def merge_states(v_a: Any, lse_a: Any, v_b: Any, lse_b: Any, *, lse_base: str = "e", v_out: Any = None,
                 lse_out: Any = None) -> tuple[Any, Any]:
    """The attention state over the union of two disjoint key sets: ``(v, lse)``.

    v_a, v_b: [rows, heads, dim]; lse_a, lse_b: float32 [rows, heads], logarithms of ``lse_base`` "e" or "2".
    A side whose LSE is -inf (or +inf) is empty and its v is ignored; two empty sides give 0 and -inf.
    v_out, lse_out: where to write, may be a side itself; None allocates.
    Arrays in host memory, or PyTorch tensors on a CUDA device, which are merged by PyTorch's own kernels.

    Raises InvalidArgumentError for arrays that do not fit each other or are elsewhere, WrongDTypeError for an LSE that is
    not float32.
    """
    if lse_base not in ("e", "2"):
        raise InvalidArgumentError(f"merge_states: lse_base is {lse_base!r}; must be 'e' or '2'; say which logarithm the "
                                   "LSEs are")
    if framework_of(v_a) == "torch" and v_a.is_cuda:
        from .torch_ops import merge_states_by_torch
        return merge_states_by_torch(v_a, lse_a, v_b, lse_b, lse_base, v_out, lse_out)
    if v_out is None:
        v_out = empty("merge_states", v_a, _shape_of("v_a", v_a))
    if lse_out is None:
        lse_out = empty("merge_states", lse_a, _shape_of("lse_a", lse_a))
    _core._merge_states(v_a, lse_a, v_b, lse_b, v_out, lse_out, lse_base)
    return v_out, lse_out


def is_supported(head_dim: int, dtype: str = "bfloat16", *, device: str = "cuda", num_q_heads: int = 1,
                 num_kv_heads: int = 1, page_size: int = 16, head_dim_v: int | None = None) -> tuple[bool, str]:
    """Whether a configuration can be planned and run here: ``(True, "")`` or ``(False, why not)``.

    head_dim, head_dim_v: elements a head; None is head_dim. dtype, device: as of Planner. page_size: tokens.
    Allocates nothing, and raises nothing but TypeError for arguments that are no numbers or names.
    """
    try:
        _core._check_supported(device, dtype, head_dim, head_dim_v, num_q_heads, num_kv_heads, page_size)
    except CapillaryError as error:
        return False, str(error)
    return True, ""


def load_profile(path: str | os.PathLike[str]) -> _core.DeviceProfile:
    """The DeviceProfile in a file that ``capillary calibrate`` or ``capillary info --profile-json`` wrote.

    Raises InvalidArgumentError, naming the path and the field, for a file that is no sound profile.
    """
    return _core._read_profile(os.fspath(path))


def oracle_decode(q: Any, k_cache: Any, v_cache: Any, block_table: Any, seq_lens: Any, *,
                  softmax_scale: float | None = None, kv_layout: str = "NHD") -> tuple[Any, Any]:
    """Flat attention in fp64, for checking. Slow.

    Arrays in host memory, with the shapes that decode() takes. Returns NumPy's ``(out, lse)``, float64
    [num_requests, num_q_heads, head_dim_v] and [num_requests, num_q_heads]: the LSE is natural, and -inf without keys.

    Raises InvalidArgumentError or WrongDTypeError for what decode() would refuse.
    """
    out, lse = _core._oracle_decode(q, k_cache, v_cache, block_table, seq_lens, softmax_scale or 0.0, kv_layout)
    rows, heads = int(q.shape[0]), int(q.shape[1])
    return np.array(out).reshape(rows, heads, -1), np.array(lse).reshape(rows, heads)
