# SPDX-License-Identifier: MIT
"""Planning a decode step from rows of page ids, and remembering which planner did the last one."""

from __future__ import annotations

import numpy as np
import torch

from ..planner import Planner

Int32s = np.ndarray[tuple[int, ...], np.dtype[np.int32]]

_last: Planner | None = None


def last_planner() -> Planner | None:
    return _last


class StepPlanner:
    """A planner with its table on the device: prepare() once a step, run() in every layer."""

    def __init__(self, num_q_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype,
                 device: torch.device, mode: str = "auto") -> None:
        name = device.type if device.type == "cpu" else f"cuda:{device.index or 0}"
        self.planner = Planner(num_q_heads, num_kv_heads, head_dim, dtype=str(dtype).removeprefix("torch."),
                               device=name, mode=mode)
        self._device = device
        self._table = torch.empty(0)

    def prepare(self, table: Int32s, seq_lens: Int32s, page_size: int, previous_row: Int32s | None = None) -> None:
        """table: int32 [rows, max_pages] on the host, entries past a row's last page unread; seq_lens: [rows]."""
        global _last
        self.planner.update(table, seq_lens, page_size, previous_row=previous_row)
        # Pageable memory: PyTorch copies it out before the call returns, so the array may go.
        self._table = torch.from_numpy(table).to(self._device)
        _last = self.planner

    def run(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
            scaling: float | None) -> torch.Tensor:
        """q: [rows, heads, dim]; caches [pages, page_size, kv_heads, dim]. Returns [rows, heads, dim]."""
        out: torch.Tensor = self.planner.run(q.contiguous(), k_cache, v_cache, self._table, softmax_scale=scaling)
        return out
