# SPDX-License-Identifier: MIT
"""Planner and decode() on NumPy arrays: results, messages, lifetimes, threads, forks."""

import gc
import mmap
import multiprocessing
import threading
import weakref
from contextlib import ExitStack

import numpy as np
import pytest
from conftest import Batch, OnCuda, assert_state

import capillary


def planned(batch, **options):
    planner = batch.planner(**options)
    planner.update(batch.table, batch.lens, batch.page_size)
    return planner


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


def test_an_empty_batch():
    planner = capillary.Planner(8, 2, 64, dtype="float32")
    planner.update(np.zeros((0, 3), np.int32), np.zeros(0, np.int32), 16)
    cache = np.zeros((1, 16, 2, 64), np.float32)
    assert planner.run(np.zeros((0, 8, 64), np.float32), cache, cache, np.zeros((0, 3), np.int32)).shape == (0, 8, 64)


BAD_RUNS = [
    ({"q": lambda a: a.astype(np.float64)}, TypeError, ("q", "float64")),
    ({"k_cache": lambda a: a.astype(np.float16)}, TypeError, ("k_cache", "float16", "float32")),
    ({"block_table": lambda a: a.astype(np.int64)}, TypeError, ("block_table", "int64", "int32")),
    ({"lse": lambda a: np.zeros((5, 8), np.float64)}, TypeError, ("lse", "float64")),
    ({"q": lambda a: a[:3]}, ValueError, ("q", "[3, 8, 64]", "[5, 8, 64]")),
    ({"q": lambda a: a[:, :, ::-1]}, ValueError, ("q", "last stride 1")),
    ({"v_cache": lambda a: a[:, :, :1]}, ValueError, ("v_cache", "num_kv_heads")),
    ({"k_cache": lambda a: a[0]}, ValueError, ("k_cache",)),
    ({"block_table": lambda a: a[:, :-1].copy()}, ValueError, ("block_table", "row stride")),
    ({"block_table": lambda a: a.reshape(-1)}, ValueError, ("block_table", "1 dimensions")),
    ({"q": lambda a: "q"}, (ValueError, TypeError), ("q",)),
    ({"k_cache": lambda a: object()}, ValueError, ("k_cache", "object", "DLPack")),
    ({"kv_layout": lambda a: "DHN"}, ValueError, ("kv_layout", "DHN", "NHD")),
]


@pytest.mark.parametrize(("change", "error", "parts"), BAD_RUNS)
def test_bad_arrays_are_refused_by_name(batch, change, error, parts):
    arguments = {"q": batch.q, "k_cache": batch.k, "v_cache": batch.v, "block_table": batch.table,
                 "out": np.empty_like(batch.q), "lse": None, "kv_layout": "NHD"}
    planner = planned(batch)
    for name, of in change.items():
        arguments[name] = of(arguments[name])
    with pytest.raises(error) as caught:
        planner.run(**arguments)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache", "block_table", "out", "lse"])
def test_one_array_on_another_device_is_refused_by_name(batch, name):
    arguments = {"q": batch.q, "k_cache": batch.k, "v_cache": batch.v, "block_table": batch.table,
                 "out": np.zeros_like(batch.q), "lse": np.zeros(batch.q.shape[:2], np.float32)}
    arguments[name] = OnCuda(arguments[name])
    with pytest.raises(ValueError) as caught:
        planned(batch).run(**arguments, stream=1)
    assert f"{name} is on cuda:0; must be on cpu" in str(caught.value)


# With CUDA a table on a device is copied to the host, and this one has no memory.
@pytest.mark.parametrize("name", ["k", "v"] + ([] if capillary.built_with_cuda else ["table", "lens"]))
def test_decode_refuses_arrays_of_mixed_devices(batch, name):
    arguments = {key: getattr(batch, key) for key in ("q", "k", "v", "table", "lens")}
    arguments[name] = OnCuda(arguments[name])
    with pytest.raises((ValueError, NotImplementedError), match="cuda:0|CUDA"):
        capillary.decode(*arguments.values(), stream=1)


class Unreadable(mmap.mmap):
    """As arrays of CuPy and JAX on a device: the type offers buffers, the array does not, but DLPack does."""

    @classmethod
    def of(cls, array):
        self = cls(-1, 16)
        self.close()
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        return self

    def __len__(self):
        return len(self.array)

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream=None, max_version=None):
        assert stream == 4096
        return self.array.__dlpack__()


def test_arrays_on_a_device_are_taken_by_dlpack_whatever_their_type_offers(batch):
    planner = planned(batch)
    out = np.empty_like(batch.q)
    planner.run(*(Unreadable.of(array) for array in (batch.q, batch.k, batch.v, batch.table)), out=out, stream=4096)
    np.testing.assert_array_equal(out, planner.run(batch.q, batch.k, batch.v, batch.table))


def test_read_only_arrays_are_read_and_not_written(batch):
    planner = planned(batch)
    for array in (batch.q, batch.k, batch.v, batch.table):
        array.flags.writeable = False
    out = np.zeros_like(batch.q)
    planner.run(batch.q, batch.k, batch.v, batch.table, out=out)
    out.flags.writeable = False
    before = out.copy()
    with pytest.raises(ValueError, match="out is read-only"):
        planner.run(batch.q, batch.k, batch.v, batch.table, out=out)
    assert (out == before).all()


def test_a_bad_update_leaves_the_plan_as_it_was(batch):
    planner = planned(batch)
    before = planner.plan_bytes
    with pytest.raises(ValueError):
        planner.update(batch.table, batch.lens + 1000, 16)
    assert planner.plan_bytes == before
    planner.run(batch.q, batch.k, batch.v, batch.table)


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


def test_a_plan_may_outlive_its_arrays_and_its_forest(batch):
    planner = batch.planner()
    forest = capillary.PrefixForest.from_block_table(batch.table.copy(), batch.lens.copy(), 16)
    planner.plan(forest)
    gone = weakref.ref(planner)
    del forest
    gc.collect()
    out, lse = planner.run(batch.q, batch.k, batch.v, batch.table, return_lse=True)
    assert_state(out, lse, batch.oracle(), "float32")
    del planner
    gc.collect()
    assert gone() is None


def test_arrays_are_given_back(batch):
    planner = planned(batch)
    for _ in range(3):
        with pytest.raises(ValueError):
            planner.run(batch.q, batch.k, batch.v[:1], batch.table)
        planner.run(batch.q, batch.k, batch.v, batch.table)
    # A buffer that somebody still held could not be resized.
    batch.q.resize((1, 1, 1), refcheck=False)


def test_two_planners_in_two_threads(make_batch):
    failures = []

    def work(seed):
        batch = make_batch(seed=seed, num_requests=4 + seed)
        try:
            for _ in range(20):
                planner = planned(batch)
                out, lse = planner.run(batch.q, batch.k, batch.v, batch.table, return_lse=True, num_threads=1)
                assert_state(out, lse, batch.oracle(), "float32")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_one_planner_in_many_threads_waits_its_turn(batch):
    planner = planned(batch)
    expected = planner.run(batch.q, batch.k, batch.v, batch.table).tobytes()
    wrong = []

    def work():
        for _ in range(20):
            planner.update(batch.table, batch.lens, 16)
            if planner.run(batch.q, batch.k, batch.v, batch.table, num_threads=1).tobytes() != expected:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_gil_is_released(make_batch):
    batch = make_batch(num_requests=24, shared_pages=300, num_q_heads=32, num_kv_heads=8)
    planner = planned(batch)
    done = threading.Event()
    seen = []

    def count():
        while not done.is_set():
            seen.append(1)

    thread = threading.Thread(target=count)
    thread.start()
    before = len(seen)
    planner.run(batch.q, batch.k, batch.v, batch.table, num_threads=1)
    during = len(seen) - before
    done.set()
    thread.join()
    assert during > 100  # with the lock held the other thread would not have moved at all


def _run_in_child(batch, planner, queue):
    queue.put(planner.run(batch.q, batch.k, batch.v, batch.table).tobytes())


def test_a_planner_survives_a_fork(batch):
    planner = planned(batch)
    expected = planner.run(batch.q, batch.k, batch.v, batch.table).tobytes()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_run_in_child, args=(batch, planner, queue))
    child.start()
    assert queue.get(timeout=60) == expected
    child.join(60)
    assert child.exitcode == 0


def _decode_in_child(batch, queue):
    queue.put(capillary.decode(batch.q, batch.k, batch.v, batch.table, batch.lens).tobytes())


def test_decode_survives_a_fork_in_the_midst_of_another_threads_call(batch):
    expected = capillary.decode(batch.q, batch.k, batch.v, batch.table, batch.lens).tobytes()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_decode_in_child, args=(batch, queue))
    with ExitStack() as held:
        held.enter_context(capillary.functional._planners_lock)
        for _, lock, _ in capillary.functional._planners.values():
            held.enter_context(lock)
        child.start()
    assert queue.get(timeout=60) == expected
    child.join(60)
    assert child.exitcode == 0


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
    with pytest.raises(ValueError, match="lse_base"):
        capillary.merge_states(v, lse, v, lse, lse_base="10")


def test_a_cache_beyond_4_gib(make_batch):
    # Address space only: pages that nobody touches cost no memory.
    try:
        cache = np.memmap(__import__("tempfile").TemporaryFile(), np.float16, "w+", shape=(70000, 16, 2, 1024))
    except OSError as error:
        pytest.skip(f"no sparse file of {70000 * 16 * 2 * 1024 * 2} bytes: {error}")
    k = cache[:, :, :, :64]
    v = cache[:, :, :, 64:128]
    rng = np.random.default_rng(0)
    table = np.array([[69999, 3], [69999, 68000]], np.int32)
    lens = np.array([20, 32], np.int32)
    for page in (3, 68000, 69999):
        cache[page, :, :, :128] = rng.standard_normal((16, 2, 128))
    q = rng.standard_normal((2, 8, 64)).astype(np.float16)
    out, lse = capillary.decode(q, k, v, table, lens, return_lse=True)
    packed = np.zeros((3, 16, 2, 128), np.float16)
    packed[:] = cache[[3, 68000, 69999], :, :, :128]
    expected = capillary.oracle_decode(q, packed[..., :64], packed[..., 64:], np.array([[2, 0], [2, 1]], np.int32), lens)
    assert_state(out, lse, expected, "float16")
