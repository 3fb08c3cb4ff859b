# SPDX-License-Identifier: MIT
"""Planner: plan once a decode step, run in every layer."""

from __future__ import annotations

from typing import Any

from . import _core
from ._arrays import empty
from ._explanation import Explanation, explanation
from .errors import InvalidArgumentError


def _num_rows(q: Any) -> int:
    try:
        return int(q.shape[0])
    except (AttributeError, IndexError, TypeError):
        raise InvalidArgumentError(
            f"Planner.run: q is a {type(q).__name__}; must be an array [num_requests, num_q_heads, head_dim]; pass a "
            "NumPy, PyTorch, CuPy or JAX array, or out= and lse= as well") from None


class Planner(_core.Planner):
    """Plans decode steps of one attention shape, and runs them.

    num_q_heads, num_kv_heads, head_dim: of one layer on one device. head_dim_v: of V; None is head_dim.
    dtype: of q and the caches, ``bfloat16``, ``float16`` or (CPU only) ``float32``.
    device: ``cpu``, ``cuda`` or ``cuda:N``, where q and the caches are.
    mode: ``auto`` shares where it pays; ``flat`` and ``shared-l2`` are there to compare with.
    cluster_size, num_pieces: 0 lets the planner choose.
    fixed_grid: every plan has the same grid, so that a captured CUDA graph can run it; needs cluster_size.
    profile: a DeviceProfile; None looks for one as the command does: what CAPILLARY_PROFILE names, else what
    calibrate() wrote for this card (for a CUDA device), else the built-in one of an H200. On a CUDA device the
    cluster limits are the device's own. explain() says which it is.
    max_requests, plan_capacity_bytes: the largest batch and plan. Given max_requests, all device memory is
    taken now and none later; otherwise buffers grow in plan() and update(), never in run().

    A planner serves one stream at a time: two runs that overlap would share its workspace. Threads may call
    it; calls then wait for each other. It must outlive the graphs that captured a run of it. After a fork the
    child needs a planner of its own for CUDA, and wherever another thread was using this one.

    Raises InvalidArgumentError, UnsupportedConfigError or UnsupportedArchError for what cannot be.
    """

    def run(self, q: Any, k_cache: Any, v_cache: Any, block_table: Any, *, out: Any = None,
            lse: Any = None, return_lse: bool = False, softmax_scale: float | None = None,
            kv_layout: str = "NHD", workspace: Any = None, stream: Any = None, num_threads: int = 0,
            dependent_launch: bool = False) -> Any:
        """Attention of one layer by the current plan. Returns ``out``, or ``(out, lse)`` with return_lse.

        q: [num_requests, num_q_heads, head_dim], last stride 1.
        k_cache, v_cache: [num_pages, page_size, num_kv_heads, head_dim] for ``kv_layout`` NHD,
        [num_pages, num_kv_heads, page_size, head_dim] for HND; any strides but the last, which is 1.
        block_table: the planned table on the device of q, int32, with the row stride it was planned with; for
        a forest that owns its page ids, ``forest.page_ids`` there.
        out: [num_requests, num_q_heads, head_dim_v], dtype of q; None allocates it.
        lse: float32 [num_requests, num_q_heads], any strides: natural logarithm of each row's sum of
        exponentials, -inf for a request without keys (its output is 0).
        softmax_scale: a number above 0; None (or 0) is 1 / sqrt(head_dim).
        workspace: device memory of at least explain().workspace_bytes, 16-byte aligned, of any 4-byte dtype,
        never zeroed; None is the planner's own.
        stream: CUDA only, an address or a stream object; None is the current stream of q's framework.
        num_threads: CPU only; 0 is all.
        dependent_launch: programmatic dependent launch (see the C++ header).

        Nothing is synchronised, and given ``out`` (and ``lse``) nothing is allocated: may be captured.

        Raises WrongDTypeError, InvalidArgumentError, UnsupportedConfigError, WorkspaceTooSmallError or
        DeviceError; then ``out`` and ``lse`` may hold anything.
        """
        if out is None:
            out = empty("Planner.run", q, (_num_rows(q), self.num_q_heads, self.head_dim_v))
        if lse is None and return_lse:
            lse = empty("Planner.run", q, (_num_rows(q), self.num_q_heads), "float32")
        self._run(q, k_cache, v_cache, block_table, out, lse, softmax_scale or 0.0, kv_layout, workspace,
                  stream, num_threads, dependent_launch)
        return (out, lse) if return_lse else out

    def explain(self) -> Explanation:
        """What the current plan does and why. Raises InvalidArgumentError before the first plan."""
        return explanation(self._summary())
