# SPDX-License-Identifier: MIT
"""Planner and decode() on NumPy arrays: results, messages, what is planned and what it needs."""

from pathlib import Path

import numpy as np
import pytest
from conftest import assert_state, planned

import capillary


@pytest.mark.parametrize("mode", ["auto", "flat", "shared-l2"])
@pytest.mark.parametrize("page_size", [1, 5, 16, 48])
def test_a_step_agrees_with_the_oracle(make_batch, mode, page_size):
    batch = make_batch(page_size=page_size)
    planner = planned(batch, mode=mode)
    out, lse = planner.run(batch.q, batch.k, batch.v, batch.table, return_lse=True)
    assert_state(out, lse, batch.oracle(), "float32")
    explanation = planner.explain()
    assert explanation.num_runs == 1 and explanation.device == "cpu"
    assert explanation.flat_bytes > explanation.unique_bytes
    assert explanation.candidates[0].cluster_size == explanation.cluster_size


def test_float16_and_a_narrower_v(make_batch):
    batch = make_batch(head_dim_v=32)
    for name in ("q", "k", "v"):
        setattr(batch, name, getattr(batch, name).astype(np.float16))
    out, lse = planned(batch, dtype="float16").run(batch.q, batch.k, batch.v, batch.table, return_lse=True)
    assert out.dtype == np.float16 and out.shape[2] == 32
    assert_state(out, lse, batch.oracle(), "float16")


def test_both_layouts_and_strided_caches(batch):
    expected = batch.oracle()
    hnd = [np.ascontiguousarray(cache.transpose(0, 2, 1, 3)) for cache in (batch.k, batch.v)]
    out, lse = planned(batch).run(batch.q, *hnd, batch.table, kv_layout="HND", return_lse=True)
    assert_state(out, lse, expected, "float32")
    joint = np.stack((batch.k, batch.v), axis=1)  # [pages, 2, page_size, heads, dim], used in place
    out, lse = planned(batch).run(batch.q, joint[:, 0], joint[:, 1], batch.table, return_lse=True)
    assert_state(out, lse, expected, "float32")
    back = [np.ascontiguousarray(cache[::-1])[::-1] for cache in (batch.k, batch.v)]  # pages from the last to the first
    assert back[0].strides[0] < 0
    out, lse = planned(batch).run(batch.q, *back, batch.table, return_lse=True)
    assert_state(out, lse, expected, "float32")


def test_out_lse_and_scale_are_the_callers(batch):
    planner = planned(batch)
    room = np.full((2, *batch.q.shape), np.nan, np.float32)
    lse = np.full(batch.q.shape[1::-1], np.nan, np.float32).T  # stored heads first
    assert planner.run(batch.q, batch.k, batch.v, batch.table, out=room[1], lse=lse, softmax_scale=0.05).base is room
    assert_state(room[1], lse, batch.oracle(softmax_scale=0.05), "float32")
    assert np.isnan(room[0]).all()


def test_a_forest_brings_its_own_page_ids(batch):
    forest = capillary.PrefixForest.from_parents(np.array([-1, 0, 0], np.int32), np.array([32, 8, 28], np.int32), 16)
    planner = batch.planner()
    planner.plan(forest)
    q = batch.q[:2]
    cache = np.random.default_rng(0).standard_normal((8, 16, 2, 64)).astype(np.float32)
    out = planner.run(q, cache, cache, forest.page_ids)
    table = np.array([[0, 1, 2, -1], [0, 1, 3, 4]], np.int32)
    expected, _ = capillary.oracle_decode(q, cache, cache, table, np.array([40, 60], np.int32))
    np.testing.assert_allclose(out, expected, atol=2e-5)
    with pytest.raises(ValueError, match="page_ids"):
        planner.run(q, cache, cache, table)


def test_update_follows_a_decoding_batch(batch):
    planner = batch.planner()
    planner.update(batch.table, batch.lens, 16)
    rows = np.arange(len(batch.lens), dtype=np.int32)
    for step in range(1, 4):
        lens = batch.lens.copy()
        lens[0] -= step
        planner.update(batch.table, lens, 16, previous_row=rows)
        fresh = batch.planner()
        fresh.update(batch.table, lens, 16)
        assert planner.plan_bytes == fresh.plan_bytes


def test_the_same_plan_gives_the_same_bits(batch):
    planner = planned(batch)
    first = planner.run(batch.q, batch.k, batch.v, batch.table)
    for threads in (1, 2, 3):
        again = planner.run(batch.q, batch.k, batch.v, batch.table, num_threads=threads)
        assert first.tobytes() == again.tobytes()


def test_the_page_reads_what_explain_prints(batch):
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    shown = page.partition("```text\nbatch ")[2].partition("```")[0].splitlines()
    printed = str(planned(batch).explain()).splitlines()
    assert [line.split()[0] for line in printed] == ["batch", *(line.split()[0] for line in shown[1:])]


def test_an_empty_batch():
    planner = capillary.Planner(8, 2, 64, dtype="float32")
    planner.update(np.zeros((0, 3), np.int32), np.zeros(0, np.int32), 16)
    cache = np.zeros((1, 16, 2, 64), np.float32)
    assert planner.run(np.zeros((0, 8, 64), np.float32), cache, cache, np.zeros((0, 3), np.int32)).shape == (0, 8, 64)


def test_a_bad_update_leaves_the_plan_as_it_was(batch):
    planner = planned(batch)
    before = planner.plan_bytes
    with pytest.raises(ValueError):
        planner.update(batch.table, batch.lens + 1000, 16)
    assert planner.plan_bytes == before
    planner.run(batch.q, batch.k, batch.v, batch.table)


def test_a_bad_update_leaves_the_rows_as_they_were(batch):
    planner = planned(batch)
    rows = np.arange(len(batch.lens), dtype=np.int32)
    for previous in (None, rows):
        with pytest.raises(ValueError, match="seq_lens"):
            planner.update(batch.table, batch.lens + 1000, 16, previous_row=previous)
        planner.update(batch.table, batch.lens, 16, previous_row=rows)
    for wrong in (rows[:0], rows[:2], np.concatenate((rows, rows))):
        with pytest.raises(ValueError, match=f"previous_row has {len(wrong)} entries"):
            planner.update(batch.table, batch.lens, 16, previous_row=wrong)
    out, lse = planner.run(batch.q, batch.k, batch.v, batch.table, return_lse=True)
    assert_state(out, lse, batch.oracle(), "float32")


def test_without_a_plan_there_is_nothing_to_run(batch):
    planner = batch.planner()
    with pytest.raises(ValueError, match="plan is missing"):
        planner.run(batch.q, batch.k, batch.v, batch.table)
    with pytest.raises(ValueError, match="plan is missing"):
        planner.explain()


@pytest.mark.parametrize(("options", "error", "part"), [
    ({"num_kv_heads": 3}, ValueError, "multiple of num_kv_heads"),
    ({"head_dim": 0}, ValueError, "head_dim is 0"),
    ({"dtype": "float8"}, ValueError, "float8"),
    ({"device": "tpu"}, ValueError, "tpu"),
    ({"device": "cuda:x"}, ValueError, "cuda:x"),
    ({"mode": "fast"}, ValueError, "fast"),
    ({"cluster_size": 3}, ValueError, "cluster_size is 3"),
    ({"fixed_grid": True}, ValueError, "fixed_grid"),
    ({"max_requests": -1}, ValueError, "max_requests is -1"),
    ({"max_requests": 2**31}, ValueError, "max_requests is 2147483648"),
    ({"plan_capacity_bytes": -1}, ValueError, "plan_capacity_bytes is -1"),
    ({"num_q_heads": 2 * 129}, NotImplementedError, "129"),
])
def test_planners_that_cannot_be(options, error, part):
    with pytest.raises(error) as caught:
        capillary.Planner(**({"num_q_heads": 8, "num_kv_heads": 2, "head_dim": 64, "dtype": "float32"} | options))
    assert part in str(caught.value)


@pytest.mark.skipif(capillary.built_with_cuda, reason="built with CUDA")
def test_a_build_without_cuda_says_so():
    with pytest.raises(capillary.UnsupportedArchError, match="without CUDA") as caught:
        capillary.Planner(8, 2, 64, device="cuda")
    assert isinstance(caught.value, NotImplementedError)
    assert caught.value.found and caught.value.needed
    supported, why = capillary.is_supported(128)
    assert not supported and "without CUDA" in why


def test_support_is_asked_before_use():
    assert capillary.is_supported(128, device="cpu") == (True, "")
    assert capillary.is_supported(80, "float32", device="cpu", num_q_heads=24, num_kv_heads=4, head_dim_v=64)[0]
    supported, why = capillary.is_supported(640, device="cpu")
    assert not supported and "640" in why


@pytest.mark.parametrize("options", [{}, {"mode": "flat"}, {"mode": "shared-l2"}, {"num_pieces": 300},
                                     {"mode": "shared-l2", "cluster_size": 8}])
def test_the_workspace_bound_covers_every_plan(options):
    rng = np.random.default_rng(3)
    for _ in range(60):
        num_requests = int(rng.integers(1, 200))
        kv_heads = int(rng.choice([1, 2, 8]))
        group = int(rng.choice([1, 4, 7]))
        shared = int(rng.integers(0, 300))
        lens = shared * 16 + rng.integers(1, 3000, num_requests).astype(np.int32)
        columns = int(-(-lens.max() // 16))
        table = np.arange(num_requests * columns, dtype=np.int32).reshape(num_requests, columns)
        table[:, :shared] = np.arange(shared)
        planner = capillary.Planner(kv_heads * group, kv_heads, 128, **options)
        planner.update(table, lens.astype(np.int32), 16)
        bound = capillary.workspace_bytes(num_requests, num_q_heads=kv_heads * group, num_kv_heads=kv_heads, head_dim=128,
                                          **options)
        assert planner.explain().workspace_bytes <= bound


def test_a_workspace_bound_that_would_overflow_is_refused():
    shape = {"num_q_heads": 8, "num_kv_heads": 2, "head_dim": 64}
    assert capillary.workspace_bytes(2**31 - 1, **shape) > capillary.workspace_bytes(1000, **shape) > 0
    with pytest.raises(ValueError, match="max_requests is 4611686018427387904"):
        capillary.workspace_bytes(2**62, **shape)


@pytest.mark.parametrize("kv_layout", ["NHD", "HND"])
def test_decode_plans_and_runs(batch, kv_layout):
    caches = (batch.k, batch.v) if kv_layout == "NHD" else (batch.k.transpose(0, 2, 1, 3), batch.v.transpose(0, 2, 1, 3))
    for _ in range(2):
        out, lse = capillary.decode(batch.q, *caches, batch.table, batch.lens, kv_layout=kv_layout, return_lse=True)
        assert_state(out, lse, batch.oracle(), "float32")
    assert capillary.explain().num_runs == 1


@pytest.mark.parametrize(("arguments", "part"), [
    (lambda b: (b.q[0], b.k, b.v, b.table, b.lens), "q has shape (8, 64)"),
    (lambda b: (b.q, b.k[0], b.v, b.table, b.lens), "k_cache has shape"),
    (lambda b: (3, b.k, b.v, b.table, b.lens), "q is a int"),
    (lambda b: (b.q, b.k, b.v, b.table, b.lens + 500), "seq_lens"),
])
def test_decode_names_what_is_wrong(batch, arguments, part):
    with pytest.raises(ValueError) as caught:
        capillary.decode(*arguments(batch))
    assert part in str(caught.value)


def test_the_oracle_refuses_what_decode_refuses(batch):
    with pytest.raises(ValueError, match="kv_layout is 'DHN'"):
        batch.oracle(kv_layout="DHN")
    batch.q = batch.q.astype(np.int32)
    with pytest.raises(TypeError, match="q has dtype int32"):
        batch.oracle()


@pytest.mark.parametrize("base", ["e", "2"])
def test_merging_halves_gives_the_whole(batch, base):
    whole_out, whole_lse = batch.oracle()
    factor = 1.0 if base == "e" else np.log2(np.e)
    cut = np.minimum(batch.lens, 3 * 16).astype(np.int32)
    first = capillary.decode(batch.q, batch.k, batch.v, batch.table, cut, return_lse=True)
    rest = capillary.decode(batch.q, batch.k, batch.v, np.ascontiguousarray(batch.table[:, 3:]), batch.lens - cut,
                            return_lse=True)
    v, lse = capillary.merge_states(first[0], (first[1] * factor).astype(np.float32), rest[0],
                                    (rest[1] * factor).astype(np.float32), lse_base=base)
    assert_state(v, lse / factor, (whole_out, whole_lse), "float32")


def test_merging_in_place_and_empty_sides():
    v = np.ones((1, 2, 4), np.float32)
    other = np.full((1, 2, 4), np.nan, np.float32)
    lse, empty = np.zeros((1, 2), np.float32), np.array([[-np.inf, np.inf]], np.float32)
    result = capillary.merge_states(v, lse, other, empty, v_out=v, lse_out=lse)
    assert result[0] is v and (v == 1).all() and (lse == 0).all()
    v, lse = capillary.merge_states(other, empty, other, empty)
    assert (v == 0).all() and np.isneginf(lse).all()
    for base in ("10", 2):
        with pytest.raises(ValueError, match="lse_base"):
            capillary.merge_states(v, lse, v, lse, lse_base=base)
    with pytest.raises(ValueError, match="v_a is a list"):
        capillary.merge_states(v.tolist(), lse, v, lse)
    with pytest.raises(TypeError, match="lse_b has dtype float64"):
        capillary.merge_states(v, lse, v, lse.astype(np.float64))
