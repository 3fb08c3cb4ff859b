# SPDX-License-Identifier: MIT
"""PrefixForest and RadixCache: what goes in, what comes out, what is refused."""

import numpy as np
import pytest

import capillary
from capillary import PrefixForest, RadixCache

TABLE = np.array([[1, 2, 3, -1], [1, 2, 4, 5]], np.int32)
LENS = np.array([40, 60], np.int32)


def int32(*values):
    return np.array(values, np.int32)


def test_a_block_table_becomes_a_tree():
    forest = PrefixForest.from_block_table(TABLE, LENS, 16)
    assert [(node.parent, node.num_tokens) for node in forest.nodes] == [(-1, 32), (0, 8), (0, 28)]
    assert (forest.num_requests, forest.num_nodes, forest.page_size) == (2, 3, 16)
    assert (forest.unique_tokens, forest.flat_tokens) == (68, 100)
    assert list(forest.leaf_order) == [0, 1]
    assert not forest.owns_page_ids and forest.page_ids.size == 0


def test_flat_shares_nothing():
    forest = PrefixForest.flat(TABLE, LENS, 16)
    assert forest.unique_tokens == forest.flat_tokens == 100


def test_every_form_gives_the_same_tree():
    csr = PrefixForest.from_csr(int32(-1, 0, 0), int32(32, 8, 28), int32(0, 2, 3, 5), int32(1, 2, 3, 4, 5), int32(1, 2),
                                16)
    levels = PrefixForest.from_levels(
        [(int32(0, 0), int32(0, 2), int32(1, 2), int32(32)),
         (int32(0, 1), int32(0, 1, 3), int32(3, 4, 5), int32(8, 28))], 2, 16)
    parents = PrefixForest.from_parents(int32(-1, 0, 0), int32(32, 8, 28), 16)
    table = PrefixForest.from_block_table(TABLE, LENS, 16)
    for forest in (csr, levels, parents):
        assert forest.owns_page_ids
        assert [node[:5] for node in forest.nodes] == [node[:5] for node in table.nodes]


def test_a_strided_table_is_read_in_place():
    wide = np.full((2, 9), -7, np.int32)
    wide[:, :4] = TABLE
    assert PrefixForest.from_block_table(wide[:, :4], LENS, 16).unique_tokens == 68


@pytest.mark.parametrize(("table", "lens", "error", "parts"), [
    (TABLE.astype(np.int64), LENS, TypeError, ("block_table", "int64", "int32")),
    (TABLE, LENS.astype(np.int64), TypeError, ("seq_lens", "int64", "int32")),
    (TABLE.astype(np.float32), LENS, TypeError, ("block_table", "float32", "int32")),
    (TABLE[0], LENS, ValueError, ("block_table", "1 dimensions")),
    (TABLE[:, ::2], LENS, ValueError, ("block_table", "last stride 2")),
    (TABLE, LENS[:1], ValueError, ("seq_lens",)),
    (TABLE, np.array([100, 60], np.int32), ValueError, ("4 columns", "seq_lens[0] = 100")),
    (TABLE, np.array([-1, 60], np.int32), ValueError, ("-1",)),
    (TABLE.tolist(), LENS, ValueError, ("block_table", "list", "NumPy")),
    (object(), LENS, ValueError, ("block_table", "object")),
])
def test_bad_tables_are_refused_by_name(table, lens, error, parts):
    with pytest.raises(error) as caught:
        PrefixForest.from_block_table(table, lens, 16)
    assert isinstance(caught.value, capillary.CapillaryError)
    for part in parts:
        assert part in str(caught.value)


def test_a_bad_page_size_is_refused():
    with pytest.raises(ValueError, match="page_size is 0"):
        PrefixForest.from_block_table(TABLE, LENS, 0)


def test_radix_cache_hands_out_and_takes_back_pages():
    cache = RadixCache(8, 4)
    tokens = np.arange(10, dtype=np.int32)
    assert cache.match_prefix(tokens) == (0, [])
    pages = cache.allocate_pages(3)
    node, owned, duplicates = cache.insert(tokens, int32(*pages[:2]))
    assert (owned, duplicates) == (pages[:2], [])
    assert cache.match_prefix(tokens) == (node, pages[:2])
    cache.free_pages(int32(pages[2]))
    cache.lock(node)
    with pytest.raises(capillary.OutOfPagesError):
        cache.allocate_pages(7)
    cache.unlock(node)
    assert len(cache.allocate_pages(8)) == 8
    assert cache.stats["pages_evicted"] == 2
    cache.check_invariants()
    assert issubclass(capillary.OutOfPagesError, MemoryError)


def test_pages_of_the_radix_cache_are_a_forest():
    cache = RadixCache(16, 4)
    prompts = [int32(*range(8), 90), int32(*range(8), 91)]
    rows = []
    for prompt in prompts:
        _, pages = cache.match_prefix(prompt)
        pages = pages + cache.allocate_pages(3 - len(pages))
        _, owned, _ = cache.insert(prompt, int32(*pages[:2]))
        rows.append(owned + pages[2:])
    forest = PrefixForest.from_block_table(int32(*rows), int32(9, 9), 4)
    assert (forest.unique_tokens, forest.flat_tokens) == (10, 18)
