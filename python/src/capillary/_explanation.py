# SPDX-License-Identifier: MIT
"""What a plan does and why, read off the plan and the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._types import Candidate


def _bytes(count: float) -> str:
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} GB"


@dataclass(frozen=True)
class Explanation:
    """The current plan of a Planner. ``str()`` of it is a page of text; docs/python.md reads one.

    Bytes are of all KV heads. Times are the cost model's predictions in us for ``profile``: nothing here is measured.
    """

    mode: str
    """``auto`` (shared, merged in the cluster), ``flat`` or ``shared-l2``: what was chosen."""
    num_requests: int
    """Rows of the batch, empty ones included."""
    num_nodes: int
    """Runs of tokens that exactly the same requests share."""
    num_jobs: int
    """Query groups cut for one KV head."""
    cluster_size: int
    """CTAs that work on one job together."""
    num_clusters: int
    """Clusters that are launched."""
    unique_bytes: int
    """KV bytes, each counted once."""
    flat_bytes: int
    """KV bytes, counted once for every request that reads them."""
    planned_bytes: int
    """KV bytes that the plan reads."""
    exchange_bytes: int
    """Partials read from other CTAs of a cluster."""
    split_bytes: int
    """Partials that go through the workspace."""
    floor_us: float
    """What no kernel can be faster than: unique bytes at the read rate, or the arithmetic at the matrix rate."""
    predicted_us: float
    """Of this plan, launch included."""
    reason: str
    """Why this plan, and what came next; or why nothing is shared."""
    plan_bytes: int
    """Size of the plan itself."""
    workspace_bytes: int
    """Bytes of workspace that a run of this plan needs."""
    profile: str
    """Name of the profile, the card's as a rule."""
    profile_where: str
    """Where it comes from: ``built in``, ``the caller's``, or its file and who named that."""
    device: str
    """Where the plan runs: ``cpu`` or ``cuda:N``."""
    num_runs: int
    """How often this very plan has been run by calls. Replays of a CUDA graph are not seen from here."""
    candidates: tuple[Candidate, ...]
    """Everything weighed, the chosen one first."""

    @property
    def path(self) -> str:
        """``shared``, ``flat``, ``shared-l2``, or ``unshared`` (nothing in the batch is shared)."""
        if self.mode != "auto":
            return self.mode
        return "shared" if self.flat_bytes > self.unique_bytes else "unshared"

    @property
    def sharing(self) -> float:
        """Flat bytes divided by unique bytes; 1 means that nothing is shared."""
        return self.flat_bytes / self.unique_bytes if self.unique_bytes else 1.0

    def __str__(self) -> str:
        lines = [
            ("batch", f"{self.num_requests} requests, {self.num_nodes} nodes"),
            ("sharing", f"{self.sharing:.2f}x: unique {_bytes(self.unique_bytes)}, "
                        f"flat {_bytes(self.flat_bytes)}"),
            ("path", f"{self.path} on {self.device}, run {self.num_runs} times"),
            ("reason", self.reason),
            ("launch", f"{self.num_clusters} clusters of {self.cluster_size} CTAs, "
                       f"{self.num_jobs} jobs a KV head"),
            ("reads", _bytes(self.planned_bytes)),
            ("partials", f"{_bytes(self.exchange_bytes)} through distributed shared memory, "
                         f"{_bytes(self.split_bytes)} through L2"),
            ("predicted", f"{self.predicted_us:.1f} us on {self.profile}; floor {self.floor_us:.1f} us"),
            ("profile", self.profile_where),
            ("plan", f"{_bytes(self.plan_bytes)}, workspace {_bytes(self.workspace_bytes)}"),
        ]
        return "\n".join(f"{label:<10} {text}" for label, text in lines)


def explanation(fields: dict[str, Any]) -> Explanation:
    """An Explanation of the fields that the bindings give."""
    candidates = tuple(Candidate(*values) for values in fields["candidates"])
    return Explanation(**fields | {"candidates": candidates})
