# SPDX-License-Identifier: MIT
"""PagedCache: a Transformers cache in pages, where requests with equal prefixes share them.

Rows of the batch are requests. Before the first forward pass the prompts' tokens decide who shares which page;
afterwards reordering (beam search) makes rows share pages, and a row that writes into a page others still use
gets its own copy of it first. Padding on the left is not stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from .._explanation import Explanation
from ..errors import InvalidArgumentError, UnsupportedConfigError
from ._steps import Int32s, StepPlanner


class _Pages:
    """Which pages every row has. Knows tokens and page ids; the layers hold the memory."""

    def __init__(self, prompts: list[list[int]], page_size: int) -> None:
        self.page_size = page_size
        self.seq_lens = np.array([len(prompt) for prompt in prompts], np.int32)
        longest = max(map(len, prompts), default=0)
        self.table: Int32s = np.full((len(prompts), max(-(-longest // page_size), 1) + 1), -1, np.int32)
        self.num_pages = 0
        self._free: list[int] = []
        # Where each token that is stored comes from, (row, position), and its slot: unique tokens alone.
        self.prompt_rows: list[int] = []
        self.prompt_positions: list[int] = []
        self.prompt_slots: list[int] = []
        known: dict[tuple[int, tuple[int, ...]], int] = {}
        for row, prompt in enumerate(prompts):
            page = -1
            for begin in range(0, len(prompt), page_size):
                tokens = tuple(prompt[begin:begin + page_size])
                key = (page, tokens)
                is_known = len(tokens) == page_size and key in known
                page = known[key] if is_known else self.take()
                self.table[row, begin // page_size] = page
                if not is_known:
                    known[key] = page
                    self.prompt_rows += [row] * len(tokens)
                    self.prompt_positions += range(begin, begin + len(tokens))
                    self.prompt_slots += range(page * page_size, page * page_size + len(tokens))

    def take(self) -> int:
        if self._free:
            return self._free.pop()
        self.num_pages += 1
        return self.num_pages - 1

    def append(self) -> Int32s:
        """Room for one more token in every row; returns the slots."""
        column, offset = np.divmod(self.seq_lens, self.page_size)
        if column.max(initial=0) >= self.table.shape[1]:
            more = np.full((len(self.table), self.table.shape[1] // 2 + 1), -1, np.int32)
            self.table = np.concatenate((self.table, more), axis=1)
        for row in np.flatnonzero(offset == 0):
            self.table[row, column[row]] = self.take()
        self.seq_lens += 1
        slots: Int32s = self.table[np.arange(len(column)), column] * self.page_size + offset
        return slots

    def select(self, source: list[int]) -> list[tuple[int, int]]:
        """Row i becomes what row source[i] was. Returns (from, to) of pages whose content must be copied."""
        self.table = self.table[source]
        self.seq_lens = self.seq_lens[source]
        num_used = -(-self.seq_lens // self.page_size)
        in_use = self.table[np.arange(self.table.shape[1]) < num_used[:, None]]
        self._free = np.setdiff1d(np.arange(self.num_pages), in_use).tolist()
        # Rows will write into their last page unless it is full: all but one of those that share it get a copy.
        copies = []
        owned: set[int] = set()
        for row in np.flatnonzero(self.seq_lens % self.page_size):
            column = num_used[row] - 1
            page = int(self.table[row, column])
            if page in owned:
                copies.append((page, self.take()))
                self.table[row, column] = copies[-1][1]
            owned.add(page)
        return copies


class PagedLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's pages, [num_pages, page_size, kv_heads, dim] each of K and V."""

    is_sliding = False

    def __init__(self, cache: PagedCache, index: int) -> None:
        super().__init__()
        self._cache = cache
        self._index = index
        self._seen = 0  # tokens by Transformers' count: padding included

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        batch, _, tokens, _ = key_states.shape
        pages = self._cache.start(batch, tokens)
        shape = (pages.num_pages + batch, pages.page_size, key_states.shape[1])
        self.keys = key_states.new_zeros((*shape, key_states.shape[3]))
        self.values = value_states.new_zeros((*shape, value_states.shape[3]))
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        is_prefill = not self.is_initialized
        if is_prefill:
            self.lazy_initialization(key_states, value_states)
            rows, positions, slots = self._cache.prompt_indices(key_states.device)
            self._flat(self.keys)[slots] = key_states[rows, :, positions]
            self._flat(self.values)[slots] = value_states[rows, :, positions]
        elif key_states.shape[2] == 1:
            slots = self._cache.begin_step(self._index, key_states.device)
            self._grow(self._cache.pages.num_pages)
            self._flat(self.keys).index_copy_(0, slots, key_states[:, :, 0])
            self._flat(self.values).index_copy_(0, slots, value_states[:, :, 0])
            # The attention function gets tensors and no cache: this is how it finds its way back.
            key_states = key_states.view(key_states.shape)
            key_states.capillary_layer = self
        else:
            raise UnsupportedConfigError(
                f"PagedCache: {key_states.shape[2]} tokens came after the prompt; must be one a step; use another "
                "cache for speculative decoding or for a second prompt")
        self._seen += key_states.shape[2]
        return key_states, value_states

    def attend(self, q: torch.Tensor, scaling: float | None) -> torch.Tensor:
        """q: [batch, heads, dim] of the step that update() began."""
        return self._cache.step_planner(q, self.keys).run(q, self.keys, self.values, scaling)

    def copy_pages(self, source: torch.Tensor, target: torch.Tensor, num_pages: int) -> None:
        self._grow(num_pages)
        self.keys[target] = self.keys[source]
        self.values[target] = self.values[source]

    @staticmethod
    def _flat(pool: torch.Tensor) -> torch.Tensor:
        return pool.view(-1, *pool.shape[2:])

    def _grow(self, num_pages: int) -> None:
        if num_pages <= self.keys.shape[0]:
            return
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros((num_pages * 3 // 2, *old.shape[1:]))
            new[:old.shape[0]] = old
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._seen + query_length, 0

    def get_seq_length(self) -> int:
        return self._seen

    def get_max_length(self) -> int:
        return -1


class PagedCache(Cache):  # type: ignore[misc]
    """A paged KV cache for generate(), in which equal prompt prefixes are stored and read once.

    config: the model's. input_ids: int [batch, tokens], the prompts that will be passed to generate();
    attention_mask: their padding, on the left. Parallel samples and beams repeat the rows of these.
    page_size: tokens; sharing is in whole pages. mode: as of Planner.

    One generation a cache. Raises InvalidArgumentError for padding that is not on the left, or prompts that are not
    those the model then gets; UnsupportedConfigError for layers of another kind than full attention.
    """

    def __init__(self, config: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *,
                 page_size: int = 16, mode: str = "auto") -> None:
        text_config = config.get_text_config(decoder=True)
        kinds = set(getattr(text_config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"} or (getattr(text_config, "sliding_window", None)
                                           and getattr(text_config, "layer_types", None) is None):
            raise UnsupportedConfigError(
                f"PagedCache: config has layers of {sorted(kinds)} and sliding_window "
                f"{getattr(text_config, 'sliding_window', None)}; must be full attention alone; use another cache")
        if page_size < 1:
            raise InvalidArgumentError(f"PagedCache: page_size is {page_size}; must be at least 1; 16 is usual")
        super().__init__(layers=[PagedLayer(self, i) for i in range(text_config.num_hidden_layers)])
        ids = input_ids.tolist()
        mask = attention_mask.tolist() if attention_mask is not None else [[1] * len(row) for row in ids]
        self._padding = [row.index(1) if 1 in row else len(row) for row in mask]
        if any(0 in row[padding:] for row, padding in zip(mask, self._padding, strict=True)):
            raise InvalidArgumentError("PagedCache: attention_mask has a gap after a row's first token; must be padding "
                                       "on the left; set tokenizer.padding_side = 'left'")
        self._prompts = [row[padding:] for row, padding in zip(ids, self._padding, strict=True)]
        self._num_tokens = input_ids.shape[1]
        self._page_size = page_size
        self._mode = mode
        self._pages: _Pages | None = None
        self._indices: tuple[torch.Tensor, ...] = ()
        self._slots = torch.empty(0)
        self._planned = False
        self._rows_kept = False  # since the last plan every request has stayed in its row
        self._planner: StepPlanner | None = None

    @property
    def pages(self) -> _Pages:
        assert self._pages is not None
        return self._pages

    def explain(self) -> Explanation:
        """What the last decode step did. Raises InvalidArgumentError before the first."""
        if self._planner is None:
            raise InvalidArgumentError("PagedCache.explain: no step has run; must come after a decode step; generate "
                                       "with attn_implementation='capillary'")
        return self._planner.planner.explain()

    def block_table(self) -> tuple[Int32s, Int32s]:
        """(int32 [batch, max_pages], int32 [batch]): the rows' page ids, of which those past a row's last mean nothing,
        and lengths in tokens. Views, which the next step changes."""
        return self.pages.table, self.pages.seq_lens

    def start(self, batch: int, tokens: int) -> _Pages:
        """The rows of the first forward pass, in which generate() may have repeated the prompts."""
        if self._pages is not None:
            return self._pages
        repeats, rest = divmod(batch, max(len(self._prompts), 1))
        if rest != 0 or repeats == 0 or tokens != self._num_tokens:
            raise InvalidArgumentError(
                f"PagedCache: the model got {batch} rows of {tokens} tokens; must be the input_ids that the cache was "
                f"made with, {len(self._prompts)} rows (repeated or not) of {self._num_tokens}; make a new cache for "
                "every generation")
        self._prompts = [prompt for prompt in self._prompts for _ in range(repeats)]
        self._padding = [padding for padding in self._padding for _ in range(repeats)]
        self._pages = _Pages(self._prompts, self._page_size)
        return self._pages

    def prompt_indices(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """(rows, positions, slots) of the tokens to be stored, for every layer the same."""
        if not self._indices:
            pages = self.pages
            positions = [position + self._padding[row]
                         for row, position in zip(pages.prompt_rows, pages.prompt_positions, strict=True)]
            self._indices = tuple(torch.tensor(values, device=device)
                                  for values in (pages.prompt_rows, positions, pages.prompt_slots))
        return self._indices

    def begin_step(self, layer: int, device: torch.device) -> torch.Tensor:
        """Slots of the step's new tokens; the first layer makes room."""
        if layer == 0:
            self._slots = torch.from_numpy(self.pages.append().astype(np.int64)).to(device)
            self._planned = False
        return self._slots

    def step_planner(self, q: torch.Tensor, pool: torch.Tensor) -> StepPlanner:
        """The planner, with the step's plan; the first layer plans."""
        if self._planner is None:
            self._planner = StepPlanner(q.shape[1], pool.shape[2], pool.shape[3], q.dtype, q.device, self._mode)
        if not self._planned:
            rows = np.arange(len(self.pages.table), dtype=np.int32) if self._rows_kept else None
            self._planner.prepare(*self.block_table(), self._page_size, rows)
            self._planned = self._rows_kept = True
        return self._planner

    def _select(self, source: list[int]) -> None:
        if self._pages is None:
            return
        self._rows_kept = False
        copies = self.pages.select(source)
        if copies:
            device = self.layers[0].keys.device
            sources, targets = (torch.tensor(pages, device=device) for pages in zip(*copies, strict=True))
            for layer in self.layers:
                layer.copy_pages(sources, targets, self.pages.num_pages)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._select(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._select(indices.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select([row for row in range(len(self.pages.table)) for _ in range(repeats)])

    def crop(self, *args: Any) -> None:
        raise UnsupportedConfigError("PagedCache: crop was called; must be kept whole; use another cache for speculative "
                                     "decoding")

    def reset(self) -> None:
        raise UnsupportedConfigError("PagedCache: reset was called; must serve one generation; make a new cache")
