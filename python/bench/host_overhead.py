# SPDX-License-Identifier: MIT
"""Host time of one planned run on a CUDA device, in us: what a layer costs the thread that launches it.

Launches in bursts that fit the launch queue, so that the device's own time does not hold the host up; the median of
the bursts counts. Prints one JSON object.
"""

import json
import statistics
import time

import numpy as np
import torch

import capillary
from capillary.torch_ops import TorchPlanner

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # the CPU only to see that this works: there a run is the work
BURST, BURSTS = (200, 15) if DEVICE == "cuda" else (2, 2)


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def host_us(call):
    times = []
    for _ in range(BURSTS):
        wait()
        begin = time.perf_counter()
        for _ in range(BURST):
            call()
        times.append((time.perf_counter() - begin) / BURST * 1e6)
    wait()
    return round(statistics.median(times), 2)


def main():
    num_requests, page_size, shared = 64, 16, 64
    columns = shared + 4
    table = np.arange(num_requests * columns, dtype=np.int32).reshape(num_requests, columns)
    table[:, :shared] = np.arange(shared)
    lens = np.full(num_requests, columns * page_size - 3, np.int32)
    q = torch.randn(num_requests, 32, 128, device=DEVICE).bfloat16()
    k = torch.randn(num_requests * columns, page_size, 8, 128, device=DEVICE).bfloat16()
    v = torch.randn_like(k)
    planner = TorchPlanner(32, 8, 128, device=DEVICE)
    planner.update(table, lens, page_size)
    device_table = torch.from_numpy(table).to(DEVICE)
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:2], device=DEVICE)
    rows = np.arange(num_requests, dtype=np.int32)
    handle = planner.handle
    op = torch.ops.capillary.decode_out
    print(json.dumps({
        "what": "host us a call",
        "run_out_given": host_us(lambda: planner.run(q, k, v, device_table, out=out)),
        "run_out_and_lse": host_us(lambda: planner.run(q, k, v, device_table, out=out, lse=lse)),
        "run_allocating": host_us(lambda: planner.run(q, k, v, device_table)),
        "operator_out_given": host_us(lambda: op(q, k, v, device_table, handle, out=out)),
        "update_64_requests": host_us(lambda: planner.update(table, lens, page_size)),
        "update_64_requests_previous_row": host_us(lambda: planner.update(table, lens, page_size, previous_row=rows)),
        "torch_empty_like": host_us(lambda: torch.empty_like(q)),
        "requests": num_requests, "path": planner.explain().path, "capillary": capillary.__version__,
        "torch": torch.__version__, "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"}))


if __name__ == "__main__":
    main()
