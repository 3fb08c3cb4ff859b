# SPDX-License-Identifier: MIT
"""Plain values that the bindings hand out."""

from __future__ import annotations

from typing import NamedTuple


class ForestNode(NamedTuple):
    """A run of tokens that exactly the requests below it share."""

    parent: int
    """Index of the parent node, -1 for a root."""
    token_begin: int
    """Position of the first token in its requests."""
    num_tokens: int
    """Tokens of the node."""
    request_begin: int
    """Positions ``request_begin`` to ``request_end - 1`` in leaf order share the node."""
    request_end: int
    """See ``request_begin``."""
    page_offset: int
    """Entry of the page id array with the node's first page."""


class Candidate(NamedTuple):
    """One choice that the planner weighed."""

    mode: str
    """As of Planner."""
    cluster_size: int
    """CTAs."""
    num_pieces: int
    """Jobs that the work of a KV head was to be cut into."""
    predicted_us: float
    """The cost model's prediction, us."""
