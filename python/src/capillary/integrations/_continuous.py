# SPDX-License-Identifier: MIT
"""Attention of Transformers' continuous batching: requests packed one after another, a paged cache beside them.

Rows with one token and a past are decoded by Capillary, all of a batch in one launch, whatever else is in it;
prompts (and pieces of prompts) are attended request by request with scaled_dot_product_attention. The block table
is read back from the indices that the engine gathers keys by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ..errors import UnsupportedConfigError
from ._steps import StepPlanner


@dataclass
class _Prompt:
    """Tokens [q_begin, q_end) of the packed batch, over entries [k_begin, k_end) of the read index."""

    q_begin: int
    q_end: int
    k_begin: int
    k_end: int


@dataclass
class _Step:
    """What every layer of one forward pass does alike."""

    decode_tokens: torch.Tensor  # positions in the packed batch
    planner: StepPlanner | None
    prompts: list[_Prompt]
    num_tokens: int


_planners: WeakKeyDictionary[Any, StepPlanner] = WeakKeyDictionary()
_steps: WeakKeyDictionary[Any, _Step] = WeakKeyDictionary()


def continuous_forward(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, cache: Any,
                       cu_seq_lens_q: torch.Tensor, cu_seq_lens_k: Any, read_index: list[torch.Tensor],
                       write_index: list[torch.Tensor], scaling: float | None, **_: Any) -> torch.Tensor:
    """query: [1, heads, tokens, dim], key and value likewise. Returns [1, tokens, heads, dim]."""
    group, index = cache.layer_index_to_group_indices[module.layer_idx]
    if isinstance(cu_seq_lens_k, dict) or getattr(module, "sliding_window", None):
        raise UnsupportedConfigError("capillary attention: the model has sliding windows; must be full attention alone; "
                                     "use attn_implementation='sdpa'")
    q = query[0].transpose(0, 1)
    new_keys, new_values = key[0].transpose(0, 1), value[0].transpose(0, 1)
    keys, values = cache.key_cache[index], cache.value_cache[index]
    keys.index_copy_(0, write_index[group], new_keys)
    values.index_copy_(0, write_index[group], new_values)
    if index == 0:
        _steps[cache] = _begin_step(q, cache, cu_seq_lens_q, cu_seq_lens_k, read_index[group])
    step = _steps[cache]

    # Rows beyond the last request are padding; they stay 0.
    out = q.new_zeros(q.shape) if step.num_tokens < q.shape[0] else torch.empty_like(q)
    if step.planner is not None:
        pages = (-1, cache.block_size, *keys.shape[1:])
        out[step.decode_tokens] = step.planner.run(q[step.decode_tokens], keys.view(pages), values.view(pages), scaling)
    for prompt in step.prompts:
        if read_index[group].numel() > 0:
            slots = read_index[group][prompt.k_begin:prompt.k_end]
            k, v = keys[slots], values[slots]
        else:
            k, v = new_keys[prompt.q_begin:prompt.q_end], new_values[prompt.q_begin:prompt.q_end]
        out[prompt.q_begin:prompt.q_end] = _attend_prompt(q[prompt.q_begin:prompt.q_end], k, v, scaling)
    return out.unsqueeze(0)


def _begin_step(q: torch.Tensor, cache: Any, cu_seq_lens_q: torch.Tensor, cu_seq_lens_k: torch.Tensor,
                read_index: torch.Tensor) -> _Step:
    """Sorts the requests into decoding ones and prompts, and plans the former. Waits for the device once."""
    q_bounds, k_bounds = torch.stack((cu_seq_lens_q, cu_seq_lens_k)).tolist()
    prompts: list[_Prompt] = []
    decoding: list[_Prompt] = []
    for i in range(len(q_bounds) - 1):
        request = _Prompt(q_bounds[i], q_bounds[i + 1], k_bounds[i], k_bounds[i + 1])
        num_new = request.q_end - request.q_begin
        if num_new == 1 and read_index.numel() > 0:
            decoding.append(request)
        elif num_new > 0:
            prompts.append(request)
    tokens = torch.tensor([request.q_begin for request in decoding], device=q.device)
    if not decoding:
        return _Step(tokens, None, prompts, q_bounds[-1])

    # The read index lists every key's slot; the first of each page tells the page.
    begins = torch.tensor([request.k_begin for request in decoding], device=q.device)
    lens = torch.tensor([request.k_end - request.k_begin for request in decoding], dtype=torch.int32)
    firsts = torch.arange(0, int(lens.max()), cache.block_size, device=q.device)
    places = (begins[:, None] + firsts[None, :]).clamp_(max=read_index.numel() - 1)
    table = (read_index[places] // cache.block_size).to(torch.int32).cpu()
    planner = _planners.get(cache)
    if planner is None:
        planner = StepPlanner(q.shape[1], cache.key_cache[0].shape[1], q.shape[2], q.dtype, q.device)
        _planners[cache] = planner
    planner.prepare(table.numpy(), lens.numpy(), cache.block_size)
    return _Step(tokens, planner, prompts, q_bounds[-1])


def _attend_prompt(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float | None) -> torch.Tensor:
    """Causal attention of one request: q [tokens, heads, dim], k and v [keys, kv_heads, dim], keys >= tokens."""
    num_tokens, num_keys = q.shape[0], k.shape[0]
    mask = None
    if num_tokens != num_keys:
        mask = torch.ones(num_tokens, num_keys, dtype=torch.bool, device=q.device).tril(num_keys - num_tokens)
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0), k.transpose(0, 1).unsqueeze(0), v.transpose(0, 1).unsqueeze(0), attn_mask=mask,
        is_causal=mask is None, scale=scaling, enable_gqa=True)
    return out[0].transpose(0, 1)
