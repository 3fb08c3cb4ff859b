# SPDX-License-Identifier: MIT
"""PyTorch operators: importing this registers ``torch.ops.capillary``.

``decode(q, k_cache, v_cache, block_table, planner, *, softmax_scale=0.0, kv_layout="NHD") -> out``
    runs the planner's current plan: shapes, dtypes and errors as of Planner.run; softmax_scale 0 is 1 / sqrt(head_dim)
``decode_with_lse(... as decode) -> (out, lse)``
    the same, with the LSE, float32 [num_requests, num_q_heads]
``decode_out(... as decode, *, out, lse=None, workspace=None, softmax_scale=0.0, kv_layout="NHD") -> ()``
    into ``out``, ``lse`` and ``workspace``, which it declares as written
``merge_states(v_a, lse_a, v_b, lse_b, *, lse_base="e") -> (v, lse)``
    attention over the union of two key sets, as capillary.merge_states

An operator names its planner by ``planner.handle``, an integer, so that graphs of the compiler hold no Python
object. Plan outside compiled or captured code, run inside: a step's plan changes what a graph does, not the
graph. Operators work on PyTorch's current stream, have fake implementations, and are not differentiable.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import torch

from . import _core
from .errors import InvalidArgumentError, WrongDTypeError
from .planner import Planner as _Planner

_planners: WeakValueDictionary[int, TorchPlanner] = WeakValueDictionary()


class TorchPlanner(_Planner):
    """A Planner whose plans the operators can run, by its ``handle``."""

    handle: int
    """What the operators call this planner by."""

    _next_handle = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.handle = TorchPlanner._next_handle
        TorchPlanner._next_handle += 1
        _planners[self.handle] = self


def _planner(handle: int) -> TorchPlanner:
    planner = _planners.get(handle)
    if planner is None:
        raise InvalidArgumentError(
            f"torch.ops.capillary: planner is {handle}; must be the handle of a TorchPlanner that still "
            "exists; keep the planner alive as long as what runs its plans")
    return planner


_library = torch.library.Library("capillary", "DEF")
_library.define("decode(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, SymInt planner, *, "
                "float softmax_scale=0.0, str kv_layout='NHD') -> Tensor",
                tags=(torch.Tag.pt2_compliant_tag,))
_library.define("decode_with_lse(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, SymInt planner, *, "
                "float softmax_scale=0.0, str kv_layout='NHD') -> (Tensor, Tensor)",
                tags=(torch.Tag.pt2_compliant_tag,))
_library.define("decode_out(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, SymInt planner, *, "
                "Tensor(a!) out, Tensor(b!)? lse=None, Tensor(c!)? workspace=None, float softmax_scale=0.0, "
                "str kv_layout='NHD') -> ()",
                tags=(torch.Tag.pt2_compliant_tag,))
_library.define("merge_states(Tensor v_a, Tensor lse_a, Tensor v_b, Tensor lse_b, *, str lse_base='e') "
                "-> (Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,))


def _output_of(q: torch.Tensor, v_cache: torch.Tensor) -> torch.Tensor:
    # Of whatever rank: _run refuses a wrong one by name.
    return q.new_empty((*q.shape[:-1], *v_cache.shape[-1:]))


def _lse_of(q: torch.Tensor) -> torch.Tensor:
    return q.new_empty(q.shape[:-1], dtype=torch.float32)


def _decode_out(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor,
                planner: int, *, out: torch.Tensor, lse: torch.Tensor | None = None,
                workspace: torch.Tensor | None = None, softmax_scale: float = 0.0,
                kv_layout: str = "NHD") -> None:
    _planner(planner)._run(q, k_cache, v_cache, block_table, out, lse, softmax_scale, kv_layout, workspace,
                           None, 0, False)


def _decode(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor,
            planner: int, *, softmax_scale: float = 0.0, kv_layout: str = "NHD") -> torch.Tensor:
    out = _output_of(q, v_cache)
    _decode_out(q, k_cache, v_cache, block_table, planner, out=out, softmax_scale=softmax_scale,
                kv_layout=kv_layout)
    return out


def _decode_with_lse(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor,
                     planner: int, *, softmax_scale: float = 0.0,
                     kv_layout: str = "NHD") -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = _output_of(q, v_cache), _lse_of(q)
    _decode_out(q, k_cache, v_cache, block_table, planner, out=out, lse=lse, softmax_scale=softmax_scale,
                kv_layout=kv_layout)
    return out, lse


def _fake_decode(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor,
                 planner: int, *, softmax_scale: float = 0.0, kv_layout: str = "NHD") -> torch.Tensor:
    return _output_of(q, v_cache)


def _fake_decode_with_lse(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
                          block_table: torch.Tensor, planner: int, *, softmax_scale: float = 0.0,
                          kv_layout: str = "NHD") -> tuple[torch.Tensor, torch.Tensor]:
    return _output_of(q, v_cache), _lse_of(q)


def _fake_decode_out(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor,
                     planner: int, *, out: torch.Tensor, lse: torch.Tensor | None = None,
                     workspace: torch.Tensor | None = None, softmax_scale: float = 0.0,
                     kv_layout: str = "NHD") -> None:
    return None


def _merge_on_host(v_a: torch.Tensor, lse_a: torch.Tensor, v_b: torch.Tensor, lse_b: torch.Tensor, *,
                   lse_base: str = "e") -> tuple[torch.Tensor, torch.Tensor]:
    v_out, lse_out = torch.empty_like(v_a), torch.empty_like(lse_a)
    _core._merge_states(v_a, lse_a, v_b, lse_b, v_out, lse_out, lse_base)
    return v_out, lse_out


def _fake_merge(v_a: torch.Tensor, lse_a: torch.Tensor, v_b: torch.Tensor, lse_b: torch.Tensor, *,
                lse_base: str = "e") -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(v_a), torch.empty_like(lse_a)


def _merge_on_device(v_a: torch.Tensor, lse_a: torch.Tensor, v_b: torch.Tensor, lse_b: torch.Tensor, *,
                     lse_base: str = "e") -> tuple[torch.Tensor, torch.Tensor]:
    return merge_states_by_torch(v_a, lse_a, v_b, lse_b, lse_base, None, None)


def _check_states(states: dict[str, torch.Tensor | None]) -> None:
    """PyTorch would broadcast what does not fit, and convert what has another type."""
    v = states["v_a"]
    for name, state in states.items():
        if state is None and name.endswith("_out"):
            continue
        if not isinstance(v, torch.Tensor) or not isinstance(state, torch.Tensor):
            raise InvalidArgumentError(f"merge_states: {name} is a {type(state).__name__}; must be a tensor like v_a; convert "
                                       "it with torch.as_tensor")
        if v.ndim != 3:
            raise InvalidArgumentError(f"merge_states: v_a has {v.ndim} dimensions; must be [rows, heads, dim]; reshape it")
        is_lse = name.startswith("lse")
        if state.dtype not in ((torch.float32,) if is_lse else (torch.float16, torch.bfloat16, torch.float32)):
            raise WrongDTypeError(f"merge_states: {name} has dtype {str(state.dtype).removeprefix('torch.')}; must be "
                                  f"{'float32' if is_lse else 'float16, bfloat16 or float32'}; convert it")
        if state.device != v.device:
            raise InvalidArgumentError(f"merge_states: {name} is on {state.device}; must be on {v.device}; copy it to where "
                                       "v_a is")
        expected = v.shape[:2] if is_lse else v.shape
        if state.shape != expected:
            raise InvalidArgumentError(f"merge_states: {name} has shape {list(state.shape)}; must have {list(expected)}; merge "
                                       "states of the same rows")


def merge_states_by_torch(v_a: torch.Tensor, lse_a: torch.Tensor, v_b: torch.Tensor, lse_b: torch.Tensor,
                          lse_base: str, v_out: torch.Tensor | None,
                          lse_out: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """merge_states in PyTorch's own arithmetic, fp32; nothing waits, so that it may be captured.

    Empty sides, as everywhere: an LSE that is infinite either way has weight 0 and its v is not looked at.
    """
    if lse_base not in ("e", "2"):
        raise InvalidArgumentError(f"merge_states: lse_base is '{lse_base}'; must be 'e' or '2'; say which "
                                   "logarithm the LSEs are")
    _check_states({"v_a": v_a, "lse_a": lse_a, "v_b": v_b, "lse_b": lse_b, "v_out": v_out, "lse_out": lse_out})
    exponential, logarithm = (torch.exp, torch.log) if lse_base == "e" else (torch.exp2, torch.log2)
    sides = [(v.float(), torch.where(torch.isinf(lse), -torch.inf, lse))
             for v, lse in ((v_a, lse_a), (v_b, lse_b))]
    largest = torch.maximum(sides[0][1], sides[1][1])
    # Two empty sides: any finite number keeps -inf - -inf away.
    finite = torch.where(torch.isinf(largest), 0.0, largest)
    weights = [exponential(lse - finite) for _, lse in sides]
    total = weights[0] + weights[1]
    merged = torch.zeros_like(sides[0][0])
    for (v, _), weight in zip(sides, weights, strict=True):
        # Of an empty side v may be NaN; an LSE that is NaN stays one.
        share = torch.where(total == 0, 0.0, weight / total).unsqueeze(-1)
        merged = merged + torch.where(share == 0, 0.0, v * share)
    lse = logarithm(total) + finite
    if v_out is None:
        v_out = torch.empty_like(v_a)
    if lse_out is None:
        lse_out = torch.empty_like(lse_a)
    v_out.copy_(merged)
    lse_out.copy_(lse)
    return v_out, lse_out


for _device in ("CPU", "CUDA"):
    _library.impl("decode", _decode, _device)
    _library.impl("decode_with_lse", _decode_with_lse, _device)
    _library.impl("decode_out", _decode_out, _device)
_library.impl("merge_states", _merge_on_host, "CPU")
_library.impl("merge_states", _merge_on_device, "CUDA")
torch.library.register_fake("capillary::decode", _fake_decode, lib=_library)
torch.library.register_fake("capillary::decode_with_lse", _fake_decode_with_lse, lib=_library)
torch.library.register_fake("capillary::decode_out", _fake_decode_out, lib=_library)
torch.library.register_fake("capillary::merge_states", _fake_merge, lib=_library)
