# SPDX-License-Identifier: MIT
"""Lifetimes, threads, the GIL and forks, on NumPy arrays."""

import ctypes
import gc
import multiprocessing
import sys
import threading
import time
import weakref
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from conftest import assert_state, planned, run_threads

import capillary


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
    def work(seed):
        batch = make_batch(seed=seed, num_requests=4 + seed)
        for _ in range(20):
            planner = planned(batch)
            out, lse = planner.run(batch.q, batch.k, batch.v, batch.table, return_lse=True, num_threads=1)
            assert_state(out, lse, batch.oracle(), "float32")

    run_threads(work, 2)


def test_one_planner_in_many_threads_waits_its_turn(batch):
    planner = planned(batch)
    expected = planner.run(batch.q, batch.k, batch.v, batch.table).tobytes()

    def work(_):
        for _ in range(20):
            planner.update(batch.table, batch.lens, 16)
            assert planner.run(batch.q, batch.k, batch.v, batch.table, num_threads=1).tobytes() == expected

    run_threads(work, 3)


def test_explain_is_of_one_moment(make_batch):
    batches = [make_batch(num_requests=n, seed=n) for n in (2, 40, 150)]
    planner = batches[0].planner()
    nodes, plans = {}, set()
    for batch in batches:
        planner.update(batch.table, batch.lens, 16)
        nodes[len(batch.lens)] = planner.explain().num_nodes
        plans.add(planner.plan_bytes)

    def plan():
        for _ in range(60):
            for batch in batches:
                planner.update(batch.table, batch.lens, 16)

    thread = threading.Thread(target=plan)
    thread.start()
    while thread.is_alive():
        explanation = planner.explain()
        assert explanation.num_nodes == nodes[explanation.num_requests]
        assert planner.plan_bytes in plans
    thread.join()


def test_explain_is_of_this_threads_decode(make_batch):
    mine, other = make_batch(), make_batch(shared_pages=0)
    capillary.decode(mine.q, mine.k, mine.v, mine.table, mine.lens)
    before = capillary.explain()
    told = []

    def work():
        with pytest.raises(ValueError, match="nothing was decoded on this thread"):
            capillary.explain()
        capillary.decode(other.q, other.k, other.v, other.table, other.lens)
        told.append(capillary.explain())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert told[0].sharing == 1 < before.sharing
    assert capillary.explain() == before


@contextmanager
def let_in_only_where_the_gil_is_released():
    """Other threads run where this one lets them, and are not let in by force."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def lets_others_run(call, tries):
    """Whether another thread ran during a call: on a busy machine it may miss the first ones."""
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(1)
            time.sleep(1e-4)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        with let_in_only_where_the_gil_is_released():
            time.sleep(0.02)  # after which the thread does not wait by the old interval any more
            before = len(ticks)
            for _ in range(tries):
                call()
                if len(ticks) > before:
                    return True
        return False
    finally:
        done.set()
        thread.join()


def test_the_gil_is_released(make_batch):
    assert not lets_others_run(lambda: ctypes.PyDLL(None).usleep(5000), 10)  # what keeping it looks like
    batch = make_batch(num_requests=24, shared_pages=300, num_q_heads=32, num_kv_heads=8)
    planner = planned(batch)
    assert lets_others_run(lambda: planner.run(batch.q, batch.k, batch.v, batch.table, num_threads=1), 300)
    table = np.arange(2000 * 200, dtype=np.int32).reshape(2000, 200)
    table[:, :100] = table[0, :100]
    lens = np.full(2000, 3200, np.int32)
    assert lets_others_run(lambda: planner.update(table, lens, 16), 1000)
    assert lets_others_run(lambda: capillary.PrefixForest.from_block_table(table, lens, 16), 5000)


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


def _use_in_child(batch, planner, queue):
    try:
        planner.run(batch.q, batch.k, batch.v, batch.table)
    except ValueError as error:
        queue.put(str(error))
    with pytest.raises(ValueError, match="in use by another thread"):
        planner.explain()
    planned(batch)


@pytest.mark.filterwarnings("ignore:.*multi-threaded")  # forking beside a thread is the point
def test_a_fork_in_the_midst_of_a_planners_run_is_told(make_batch):
    batch = make_batch(num_requests=40, shared_pages=300, num_q_heads=32, num_kv_heads=8)
    planner = planned(batch, mode="flat")  # which takes its time
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_use_in_child, args=(batch, planner, queue))
    begun = threading.Event()

    def run():
        begun.set()
        planner.run(batch.q, batch.k, batch.v, batch.table, num_threads=1)

    thread = threading.Thread(target=run)
    with let_in_only_where_the_gil_is_released():
        thread.start()
        begun.wait()
        time.sleep(0.01)  # let go of the GIL, run() has yet to take its lock
        child.start()
    assert thread.is_alive()
    thread.join()
    assert "planner was in use by another thread when this process was forked" in queue.get(timeout=60)
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
