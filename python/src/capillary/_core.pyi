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
    def name(self) -> str:
        """The card's, as a rule."""

    @property
    def source(self) -> str:
        """
        Where the figures come from: 'built in', or a calibration's date and build.
        """

    @property
    def num_sms(self) -> int:
        """SMs."""

    @property
    def l2_bytes(self) -> int:
        """L2 cache, bytes."""

    @property
    def smem_bytes_per_cta(self) -> int:
        """Shared memory that one CTA may have, bytes."""

    @property
    def max_clusters(self) -> list[int]:
        """
        Clusters co-resident with one CTA an SM, by cluster size; 0: cannot be launched.
        """

    @property
    def hbm_gbps(self) -> float:
        """Read rate of all SMs from HBM, GB/s."""

    @property
    def hbm_gbps_per_cta(self) -> float:
        """
        The most that one CTA draws from HBM while the others leave it idle, GB/s.
        """

    @property
    def l2_gbps_per_cta(self) -> float:
        """Read rate of one CTA from L2, GB/s."""

    @property
    def wide_gbps_per_cta(self) -> float:
        """What the wide path takes in at most on one SM, GB/s."""

    @property
    def dsm_load_gbps_per_cta(self) -> list[float]:
        """Loads of one CTA from a peer's shared memory, by cluster size, GB/s."""

    @property
    def dsm_latency_us(self) -> float:
        """One load from a peer, us."""

    @property
    def cluster_barrier_us(self) -> float:
        """Cluster barrier, from arrival to wake-up, us."""

    @property
    def l2_merge_latency_us(self) -> float:
        """Merging parts through the workspace, us."""

    @property
    def matrix_tflops(self) -> float:
        """What the wide path reaches, TFLOP/s: for estimates."""

    @property
    def matrix_ceiling_tflops(self) -> float:
        """What the tensor cores reach by themselves, TFLOP/s: for floors."""

    @property
    def narrow_tile_us(self) -> float:
        """One 16-token tile of one narrow stream, us."""

    @property
    def stream_item_us(self) -> float:
        """One item of a narrow stream besides its tiles, us."""

    @property
    def launch_us(self) -> float:
        """From launch to the first byte requested, and drain, us."""

    @property
    def job_start_us(self) -> float:
        """Between two jobs of a CTA, us."""

    @property
    def item_start_us(self) -> float:
        """Starting a wide phase, us."""

    @property
    def stream_start_us(self) -> float:
        """Starting a narrow phase, us."""

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

        Raises WrongDTypeError for anything but int32; InvalidArgumentError for a negative length or page id,
        or a row too narrow for its length.
        """

    @staticmethod
    def flat(block_table: object, seq_lens: object, page_size: int, *, stream: object | None = None) -> PrefixForest:
        """
        Every request alone, whatever the table says. Arguments and errors as of from_block_table.
        """

    @staticmethod
    def from_csr(parent: object, num_tokens: object, page_indptr: object, page_ids: object, request_node: object, page_size: int) -> PrefixForest:
        """
        Node i hangs under parent[i] (-1: root) and has num_tokens[i] tokens in pages
        page_ids[page_indptr[i]:page_indptr[i + 1]]; request r ends at node request_node[r] (-1: it is empty).

        parent, num_tokens: int32 [num_nodes]; page_indptr: int32 [num_nodes + 1]; page_ids: int32 [n];
        request_node: int32 [num_requests]. page_size: tokens. Inner nodes hold whole pages.

        Raises WrongDTypeError for anything but int32; InvalidArgumentError for a cycle, a range outside
        page_ids, or pages that do not fit the tokens.
        """

    @staticmethod
    def from_levels(levels: Sequence[tuple[object, object, object, object]], num_requests: int, page_size: int) -> PrefixForest:
        """
        Levels of a cascade, each (group, indptr, page_ids, num_tokens): request r has on this
        level the pages of entry group[r] (-1: none); requests with the same entry share it.

        group: int32 [num_requests]; indptr: int32 [num_entries + 1], where each entry's pages begin in
        page_ids: int32 [n]; num_tokens: int32 [num_entries]. page_size: tokens.

        Raises WrongDTypeError for anything but int32; InvalidArgumentError for an entry or a range that is not
        there, or pages that do not fit the tokens.
        """

    @staticmethod
    def from_parents(parent: object, num_tokens: object, page_size: int) -> PrefixForest:
        """
        A tree's shape alone: every childless node is a request; pages are numbered in order
        of first use. A shared node's partial last page moves to its children.

        parent: int32 [num_nodes], -1 for a root; num_tokens: int32 [num_nodes]. page_size: tokens.

        Raises WrongDTypeError for anything but int32; InvalidArgumentError for a cycle, a parent that is not
        there, or a negative count.
        """

    @property
    def num_requests(self) -> int:
        """Requests, empty ones included."""

    @property
    def num_nodes(self) -> int:
        """Runs of tokens that exactly the same requests share."""

    @property
    def page_size(self) -> int:
        """Tokens a page."""

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
    def owns_page_ids(self) -> bool:
        """Whether run() takes `page_ids`, and no block table."""

    def __repr__(self) -> str: ...

class Planner:
    def __init__(self, num_q_heads: int, num_kv_heads: int, head_dim: int, *, head_dim_v: int | None = None, dtype: str = 'bfloat16', device: str = 'cpu', mode: str = 'auto', cluster_size: int = 0, num_pieces: int = 0, fixed_grid: bool = False, profile: DeviceProfile | None = None, max_requests: int = 0, plan_capacity_bytes: int = 0) -> None: ...

    def plan(self, forest: PrefixForest, *, stream: object | None = None) -> None:
        """
        Plans one decode step over a forest; every layer then runs it.

        On a CUDA device the plan is uploaded on `stream` (None: PyTorch's current one), without waiting for it.

        Raises InvalidArgumentError for more than max_requests, while `stream` is being captured, or when a
        captured graph could not run the new plan; DeviceError if memory or the upload fails.
        """

    def update(self, block_table: object, seq_lens: object, page_size: int, *, previous_row: object | None = None, stream: object | None = None) -> None:
        """
        Plans a step from the batch's block table and lengths.

        block_table: int32 [num_requests, max_pages]; seq_lens: int32 [num_requests], in tokens, as is page_size.
        Arrays in host memory are read in place and nothing waits; those on a CUDA device are copied
        to the host first, which waits for `stream`.

        previous_row: int32 [num_requests], the row that each request had in the update before, -1 if
        it is new. Then only what changed is compared again, and a request that kept its row must
        have kept its full pages. None: nothing is assumed.

        Raises WrongDTypeError or InvalidArgumentError for a bad table or length, or what plan() raises;
        after a bad table or length the plan before still stands, and so do its rows.
        """

    def _run(self, q: object | None, k_cache: object | None, v_cache: object | None, block_table: object | None, out: object | None, lse: object | None, softmax_scale: float, kv_layout: str, workspace: object | None, stream: object | None, num_threads: int, dependent_launch: bool) -> None: ...

    def _summary(self) -> dict[str, Any]: ...

    @property
    def num_q_heads(self) -> int:
        """Query heads."""

    @property
    def num_kv_heads(self) -> int:
        """KV heads."""

    @property
    def head_dim(self) -> int:
        """Elements a head of q and K."""

    @property
    def head_dim_v(self) -> int:
        """Elements a head of V and of the output."""

    @property
    def dtype(self) -> str:
        """Name of the element type of q, caches and output."""

    @property
    def device(self) -> str:
        """'cpu' or 'cuda:N'."""

    @property
    def profile(self) -> DeviceProfile:
        """The DeviceProfile that plans are made with."""

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

    The other arguments are a Planner's.
    An upper bound, for memory that is allocated once; explain().workspace_bytes is what one
    plan needs.

    Raises InvalidArgumentError or UnsupportedConfigError for a shape that cannot be planned.
    """

class RadixCache:
    """
    A radix-tree KV cache over a pool of pages: hands out page ids, never touches KV bytes.

    Sharing is in whole pages. Tokens and page ids go in as int32 arrays in host memory. Not for use
    from several threads at once.
    """

    def __init__(self, num_pages: int, page_size: int, *, first_page: int = 0) -> None:
        """
        Pages are numbered first_page to first_page + num_pages - 1. page_size: tokens.

        Raises InvalidArgumentError for page ids beyond int32 or a page without tokens.
        """

    def match_prefix(self, tokens: object) -> tuple[int, list[int]]:
        """
        (node, page ids) of the longest cached prefix of tokens (int32 [n]), in whole pages. Freshens it.

        Raises WrongDTypeError or InvalidArgumentError for anything but int32 in host memory.
        """

    def allocate_pages(self, count: int) -> list[int]:
        """
        Takes `count` free pages, evicting unlocked leaves, least recently used first: their ids.

        Raises OutOfPagesError, and takes nothing, when there are too few.
        """

    def free_pages(self, page_ids: object) -> None:
        """
        Gives back pages (int32 [n]) that were allocated and never inserted.

        Raises InvalidArgumentError, and takes none, for a page that is not handed out.
        """

    def insert(self, tokens: object, page_ids: object) -> tuple[int, list[int], list[int]]:
        """
        Hands the whole pages of `tokens` to the tree: (node, the tree's pages, duplicates freed).

        tokens: int32 [n]; page_ids: int32 [n // page_size], page i with tokens i * page_size and after.

        Raises InvalidArgumentError for another number of pages, or pages that are not the caller's.
        """

    def lock(self, node: int) -> None:
        """
        A locked node and its ancestors are not evicted. Locks nest.

        Raises InvalidArgumentError for a node that is gone.
        """

    def unlock(self, node: int) -> None:
        """
        Takes one lock back. Raises InvalidArgumentError for a node that has none.
        """

    def evict(self, num_pages: int) -> int:
        """
        Frees that many cached pages, or as many as are not locked: returns how many.
        """

    def check_invariants(self) -> None:
        """
        Raises InternalError unless every page is free, cached or handed out, exactly once.
        """

    @property
    def page_size(self) -> int:
        """Tokens a page."""

    @property
    def stats(self) -> dict[str, int]:
        """
        Counts: lookups, tokens_requested and tokens_hit of match_prefix; pages_evicted and evictions (of nodes);
        nodes, cached_pages (of them locked_pages) and free_pages as they are now.
        """

def _merge_states(arg0: object, arg1: object, arg2: object, arg3: object, arg4: object, arg5: object, arg6: str, /) -> None: ...

def _oracle_decode(q: object, k_cache: object, v_cache: object, block_table: object, seq_lens: object, softmax_scale: float, kv_layout: str, /) -> tuple[list[float], list[float]]: ...

def _check_supported(arg0: str, arg1: str, arg2: int, arg3: int | None, arg4: int, arg5: int, arg6: int, /) -> None: ...

def devices() -> list[dict[str, Any]]:
    """
    The CUDA devices this build sees: dicts of index, name, compute (major, minor), num_sms, memory_bytes,
    driver and runtime (versions as CUDA counts them: 13000 is 13.0). Empty without CUDA.
    """

def kernels() -> str:
    """The kernel instances of this build, in words."""
