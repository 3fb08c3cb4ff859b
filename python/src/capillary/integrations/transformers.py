# SPDX-License-Identifier: MIT
"""Transformers 5: ``attn_implementation="capillary"`` for decoders of the Llama, Qwen and Mistral kind.

::

    from capillary.integrations.transformers import PagedCache, register
    register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="capillary")
    model.generate(**inputs, past_key_values=PagedCache(model.config, **inputs))   # or
    model.set_attn_implementation("paged|capillary")                               # continuous batching
    model.generate_batch(prompts, ...)

Prefill runs on PyTorch's scaled_dot_product_attention, decode on Capillary. What is shared is seen from pages: a
PagedCache gives requests with equal prompt prefixes (also parallel samples and beams) the same pages; continuous
batching brings pages of its own. ``explain()`` says what the last decode step did.

Without a PagedCache, generate() keeps each request's keys in one dense tensor, in which nothing can be shared;
decode then stays with scaled_dot_product_attention, and a warning says so once.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from .._explanation import Explanation
from ..errors import InvalidArgumentError, UnsupportedConfigError
from ._continuous import continuous_forward
from ._paged_cache import PagedCache
from ._steps import last_planner

__all__ = ["PagedCache", "explain", "register"]

NAME = "capillary"

_log = logging.getLogger("capillary")
_said: set[str] = set()


def register() -> None:
    """Makes ``attn_implementation="capillary"`` known to Transformers. May be called again."""
    for name in (NAME, f"paged|{NAME}"):
        AttentionInterface.register(name, attention_forward)
    # Without a mask function of its own a name gets no mask at all, and batches with padding are wrong.
    AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def explain() -> Explanation:
    """What the last decode step did, in whatever model: plan, path taken, and how often it ran.

    Raises InvalidArgumentError if Capillary has run no step yet.
    """
    planner = last_planner()
    if planner is None:
        raise InvalidArgumentError("explain: no decode step has run on Capillary; must come after one; generate "
                                   "with a PagedCache or with generate_batch")
    return planner.explain()


def attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      attention_mask: torch.Tensor | None, scaling: float | None = None, dropout: float = 0.0,
                      **kwargs: Any) -> tuple[torch.Tensor, None]:
    """The attention function that Transformers calls.

    query: [batch, heads, tokens, dim]; returns ([batch, tokens, heads, dim], None).
    """
    _refuse_variants(module, kwargs)
    if kwargs.get("cache") is not None:
        return continuous_forward(module, query, key, value, scaling=scaling, **kwargs), None
    layer = getattr(key, "capillary_layer", None)
    if layer is not None:
        return layer.attend(query[:, :, 0], scaling).unsqueeze(1), None
    if query.shape[2] == 1 and key.shape[2] > 1:
        _say_once("decode", "decode runs on scaled_dot_product_attention: the cache is not paged, so nothing in it "
                            "is shared; pass past_key_values=PagedCache(...)")
    out: torch.Tensor = sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout,
                                               scaling=scaling, **kwargs)[0]
    return out, None


def _refuse_variants(module: torch.nn.Module, kwargs: dict[str, Any]) -> None:
    """Raises UnsupportedConfigError for attention that a plain softmax over all keys would get wrong."""
    asked = [name for name in ("s_aux", "softcap", "position_bias") if kwargs.get(name) is not None]
    if asked:
        raise UnsupportedConfigError(f"capillary attention: {type(module).__name__} asks for {asked[0]}; must be plain "
                                     "causal attention; use attn_implementation='sdpa' for this model")


def _say_once(topic: str, text: str) -> None:
    if topic not in _said:
        _said.add(topic)
        _log.warning("capillary: %s", text)
