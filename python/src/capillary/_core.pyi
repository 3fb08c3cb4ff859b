# SPDX-License-Identifier: MIT
# Written by nanobind's stubgen from the bindings; python/tests/test_package.py says how, and fails when they differ.
from collections.abc import Sequence
from typing import Any

import numpy
import numpy.typing

import capillary._types


version: str = '0.1.0'

built_with_cuda: bool = False

class DeviceProfile:
    """
    What the cost model knows about a card. Rates are in GB/s (1e9) and TFLOP/s, times in us;
    lists by cluster size are for 1, 2, 4, 8 and 16 CTAs. Read-only.
    """

    @staticmethod
    def h200() -> DeviceProfile:
        """The built-in profile of an H200."""

    @staticmethod
    def for_device(device: int, *, dtype: str = 'bfloat16', head_dim: int = 128) -> DeviceProfile:
        """
        The profile that a Planner on this CUDA device takes: what CAPILLARY_PROFILE names, else what
        calibrate() wrote for this card, else the built-in one; with the cluster limits of this device,
        asked of its driver.

        Raises UnsupportedArchError where it is no Hopper GPU, InvalidArgumentError for a file that is no
        sound profile or another card's.
        """

    def __repr__(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def num_sms(self) -> int: ...

    @property
    def l2_bytes(self) -> int: ...

    @property
    def smem_bytes_per_cta(self) -> int: ...

    @property
    def max_clusters(self) -> list[int]: ...

    @property
    def hbm_gbps(self) -> float: ...

    @property
    def hbm_gbps_per_cta(self) -> float: ...

    @property
    def l2_gbps_per_cta(self) -> float: ...

    @property
    def wide_gbps_per_cta(self) -> float: ...

    @property
    def dsm_load_gbps_per_cta(self) -> list[float]: ...

    @property
    def dsm_latency_us(self) -> float: ...

    @property
    def cluster_barrier_us(self) -> float: ...

    @property
    def l2_merge_latency_us(self) -> float: ...

    @property
    def matrix_tflops(self) -> float: ...

    @property
    def matrix_ceiling_tflops(self) -> float: ...

    @property
    def narrow_tile_us(self) -> float: ...

    @property
    def stream_item_us(self) -> float: ...

    @property
    def launch_us(self) -> float: ...

    @property
    def job_start_us(self) -> float: ...

    @property
    def item_start_us(self) -> float: ...

    @property
    def stream_start_us(self) -> float: ...

def _read_profile(path: str) -> DeviceProfile: ...

def _card_to_calibrate(device: str) -> tuple[int, str]: ...

class PrefixForest:
    """
    Which requests of a batch share which runs of KV tokens.

    Integer arguments are int32 arrays in host memory. A block table or lengths on a CUDA device are
    accepted and copied to the host, which waits for `stream`; pass host copies not to wait.
    """

    @staticmethod
    def from_block_table(block_table: object, seq_lens: object, page_size: int, *, stream: object | None = None) -> PrefixForest:
        """
        The forest of a paged batch: the same page id at the same position is sharing.

        block_table: int32 [num_requests, max_pages]; seq_lens: int32 [num_requests], in tokens.
        Only the first ceil(seq_len / page_size) ids of a row are read.

        Raises InvalidArgumentError for a negative length or page id, or a row too narrow for its length.
        """

    @staticmethod
    def flat(block_table: object, seq_lens: object, page_size: int, *, stream: object | None = None) -> PrefixForest:
        """
        Every request alone, whatever the table says. Arguments as of from_block_table.
        """

    @staticmethod
    def from_csr(parent: object, num_tokens: object, page_indptr: object, page_ids: object, request_node: object, page_size: int) -> PrefixForest:
        """
        Node i hangs under parent[i] (-1: root) and has num_tokens[i] tokens in pages
        page_ids[page_indptr[i]:page_indptr[i + 1]]; request r ends at node request_node[r].

        Inner nodes hold whole pages. Raises InvalidArgumentError for anything else.
        """

    @staticmethod
    def from_levels(levels: Sequence[tuple[object, object, object, object]], num_requests: int, page_size: int) -> PrefixForest:
        """
        Levels of a cascade, each (group, indptr, page_ids, num_tokens): request r has on this
        level the pages of entry group[r] (-1: none); requests with the same entry share it.
        """

    @staticmethod
    def from_parents(parent: object, num_tokens: object, page_size: int) -> PrefixForest:
        """
        A tree's shape alone: every childless node is a request; pages are numbered in order
        of first use.
        """

    @property
    def num_requests(self) -> int: ...

    @property
    def num_nodes(self) -> int: ...

    @property
    def page_size(self) -> int: ...

    @property
    def unique_tokens(self) -> int:
        """KV tokens, each counted once."""

    @property
    def flat_tokens(self) -> int:
        """KV tokens, counted once for every request that reads them."""

    @property
    def nodes(self) -> list[capillary._types.ForestNode]:
        """The nodes, parents first."""

    @property
    def leaf_order(self) -> numpy.typing.NDArray[numpy.int32]:
        """Request index by position in leaf order: int32 [num_requests]."""

    @property
    def page_ids(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        The forest's own page ids, int32 [n]: what run() takes as its block table. Empty for a
        forest made from a block table; then it takes that table.
        """

    @property
    def owns_page_ids(self) -> bool: ...

    def __repr__(self) -> str: ...

class Planner:
    def __init__(self, num_q_heads: int, num_kv_heads: int, head_dim: int, *, head_dim_v: int | None = None, dtype: str = 'bfloat16', device: str = 'cpu', mode: str = 'auto', cluster_size: int = 0, num_pieces: int = 0, fixed_grid: bool = False, profile: DeviceProfile | None = None, max_requests: int = 0, plan_capacity_bytes: int = 0) -> None: ...

    def plan(self, forest: PrefixForest, *, stream: object | None = None) -> None:
        """
        Plans one decode step over a forest; every layer then runs it.

        On a CUDA device the plan is uploaded on `stream`, without waiting for it.

        Raises InvalidArgumentError while `stream` is being captured, or when a captured graph could
        not run the new plan.
        """

    def update(self, block_table: object, seq_lens: object, page_size: int, *, previous_row: object | None = None, stream: object | None = None) -> None:
        """
        Plans a step from the batch's block table and lengths.

        block_table: int32 [num_requests, max_pages]; seq_lens: int32 [num_requests], in tokens.
        Arrays in host memory are read in place and nothing waits; those on a CUDA device are copied
        to the host first, which waits for `stream`.

        previous_row: int32 [num_requests], the row that each request had in the update before, -1 if
        it is new. Then only what changed is compared again, and a request that kept its row must
        have kept its full pages. None: nothing is assumed.

        Raises InvalidArgumentError for a bad table or length; the plan before then still stands.
        """

    def _run(self, q: object, k_cache: object, v_cache: object, block_table: object, out: object, lse: object | None, softmax_scale: float, kv_layout: str, workspace: object | None, stream: object | None, num_threads: int, dependent_launch: bool) -> None: ...

    def _summary(self) -> dict[str, Any]: ...

    @property
    def num_q_heads(self) -> int: ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def head_dim_v(self) -> int: ...

    @property
    def dtype(self) -> str: ...

    @property
    def device(self) -> str: ...

    @property
    def profile(self) -> DeviceProfile: ...

    @property
    def profile_where(self) -> str:
        """
        Where the profile comes from: 'built in', "the caller's", or the file and who named it.
        """

    @property
    def plan_bytes(self) -> bytes:
        """The plan as it stands in memory (docs/plan-format.md)."""

def workspace_bytes(max_requests: int, *, num_q_heads: int, num_kv_heads: int, head_dim: int, head_dim_v: int | None = None, mode: str = 'auto', cluster_size: int = 0, num_pieces: int = 0, profile: DeviceProfile | None = None) -> int:
    """
    Bytes of workspace that are enough for every batch of at most max_requests requests.

    An upper bound, for memory that is allocated once; explain().workspace_bytes is what one
    plan needs.
    """

class RadixCache:
    """
    A radix-tree KV cache over a pool of pages: hands out page ids, never touches KV bytes.

    Sharing is in whole pages. Tokens and page ids go in as int32 arrays in host memory. Not for use
    from several threads at once.
    """

    def __init__(self, num_pages: int, page_size: int, *, first_page: int = 0) -> None:
        """Pages are numbered first_page to first_page + num_pages - 1."""

    def match_prefix(self, tokens: object) -> tuple[int, list[int]]:
        """
        (node, page ids) of the longest cached prefix, in whole pages. Freshens it.
        """

    def allocate_pages(self, count: int) -> list[int]:
        """
        Takes free pages, evicting unlocked leaves, least recently used first.

        Raises OutOfPagesError, and takes nothing, when there are too few.
        """

    def free_pages(self, page_ids: object) -> None:
        """Returns pages that were allocated and never inserted."""

    def insert(self, tokens: object, page_ids: object) -> tuple[int, list[int], list[int]]:
        """
        Hands the whole pages of `tokens` to the tree: (node, the tree's pages, duplicates freed).
        """

    def lock(self, node: int) -> None:
        """A locked node and its ancestors are not evicted. Locks nest."""

    def unlock(self, node: int) -> None: ...

    def evict(self, num_pages: int) -> int:
        """Returns the number evicted."""

    def check_invariants(self) -> None:
        """
        Raises InternalError unless every page is free, cached or handed out, exactly once.
        """

    @property
    def page_size(self) -> int: ...

    @property
    def stats(self) -> dict[str, int]: ...

def _merge_states(arg0: object, arg1: object, arg2: object, arg3: object, arg4: object, arg5: object, arg6: str, /) -> None: ...

def _oracle_decode(q: object, k_cache: object, v_cache: object, block_table: object, seq_lens: object, softmax_scale: float, kv_layout: str, /) -> tuple[list[float], list[float]]: ...

def _check_supported(arg0: str, arg1: str, arg2: int, arg3: int | None, arg4: int, arg5: int, arg6: int, /) -> None: ...

def devices() -> list[dict[str, Any]]:
    """
    The CUDA devices this build sees: dicts of index, name, compute, num_sms, memory_bytes,
    driver, runtime.
    """

def kernels() -> str:
    """The kernel instances of this build, in words."""
