# SPDX-License-Identifier: MIT
"""Times a step the way tools/device/device_step.cu does: events around a CUDA graph of several launches, each on
another copy of the caches, which together are several times the L2; or around one eager call. On the CPU, for tests,
a clock around one call."""
import statistics
import time

import torch

COLD_BYTES = 400 << 20
MAX_COPIES = 96


def num_copies(bytes_of_one):
    return max(1, min(MAX_COPIES, -(-COLD_BYTES // max(bytes_of_one, 1))))


def eager_us(run, copies, repeats, device):
    """Median microseconds of run(copy)."""
    if device.type != "cuda":
        times = []
        for i in range(repeats + 1):
            start = time.perf_counter()
            run(i % copies)
            times.append((time.perf_counter() - start) * 1e6)
        return statistics.median(times[1:])
    times = []
    for i in range(repeats + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run(i % copies)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[3:])


def graph_us(run, copies, repeats, bytes_of_one):
    """Median microseconds of one launch in a CUDA graph, L2 cold. Throws what the library throws under capture."""
    launches = max(copies, 2 if bytes_of_one > 1 << 30 else 4)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(3):
            run(i % copies)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            run(i % copies)
    times = []
    for _ in range(repeats + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / launches)
    del graph
    return statistics.median(times[2:])


def plan_us(plan, repeats, device):
    """Median microseconds of host time until plan() is back and done."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        plan()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times[1:])
