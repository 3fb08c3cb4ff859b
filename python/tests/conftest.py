# SPDX-License-Identifier: MIT
"""What the tests share: batches with hostile padding, on every framework and device that is here.

CAPILLARY_TEST_DEVICE=cuda runs the tests that take `device` on CUDA tensors instead of the CPU.
"""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor

# JAX would take three quarters of the card for itself.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np
import pytest

import capillary

DEVICE = os.environ.get("CAPILLARY_TEST_DEVICE", "cpu")
# Output rounding of the storage type, with room for the probabilities' own in the wide path.
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
LSE_TOLERANCE = 2e-3


@pytest.fixture
def device():
    if DEVICE != "cpu" and not capillary.devices():
        pytest.fail(f"CAPILLARY_TEST_DEVICE is {DEVICE}, but this build sees no CUDA device")
    return DEVICE


class Batch:
    """Requests with a common prefix, and one that is alone. Unused cache slots are NaN, unused ids absurd."""

    def __init__(self, *, num_requests=5, shared_pages=6, page_size=16, num_q_heads=8, num_kv_heads=2, head_dim=64,
                 head_dim_v=None, seed=0):
        rng = np.random.default_rng(seed)
        lens = shared_pages * page_size + rng.integers(1, 3 * page_size, num_requests)
        lens[-1] = 5
        if num_requests > 3:
            lens[1] = 0
        columns = int(-(-lens.max() // page_size)) + 2
        self.table = np.full((num_requests, columns), 2**31 - 1, np.int32)
        num_pages = 2 + shared_pages + sum(-(-int(length) // page_size) for length in lens)
        ids = rng.permutation(num_pages - 1) + 1
        shared, own = ids[:shared_pages], list(ids[shared_pages:])
        head_dim_v = head_dim_v or head_dim
        self.k = np.full((num_pages, page_size, num_kv_heads, head_dim), np.nan, np.float32)
        self.v = np.full((num_pages, page_size, num_kv_heads, head_dim_v), np.nan, np.float32)
        for row, length in enumerate(lens):
            for page in range(-(-int(length) // page_size)):
                is_shared = page < shared_pages and row != num_requests - 1
                page_id = shared[page] if is_shared else own.pop()
                self.table[row, page] = page_id
                used = min(page_size, int(length) - page * page_size)
                fresh = np.isnan(self.k[page_id, :used]).any()
                if fresh:
                    self.k[page_id, :used] = rng.standard_normal((used, num_kv_heads, head_dim))
                    self.v[page_id, :used] = rng.standard_normal((used, num_kv_heads, head_dim_v))
        self.q = rng.standard_normal((num_requests, num_q_heads, head_dim)).astype(np.float32)
        self.lens = lens.astype(np.int32)
        self.page_size = page_size

    def planner(self, dtype="float32", device="cpu", cls=capillary.Planner, **options):
        return cls(self.q.shape[1], self.k.shape[2], self.q.shape[2], head_dim_v=self.v.shape[3], dtype=dtype,
                   device=device, **options)

    def oracle(self, **options):
        return capillary.oracle_decode(self.q, self.k, self.v, self.table, self.lens, **options)

    def torch(self, dtype="float32", device="cpu"):
        """(q, k, v, table) as PyTorch tensors; the oracle then sees what rounding left."""
        import torch
        kind = getattr(torch, dtype)
        tensors = []
        for name in ("q", "k", "v"):
            tensor = torch.from_numpy(getattr(self, name)).to(kind)
            setattr(self, name, tensor.float().numpy())
            tensors.append(tensor.to(device))
        return (*tensors, torch.from_numpy(self.table).to(device))


def planned(batch, **options):
    """A planner of NumPy arrays, with the batch's plan."""
    planner = batch.planner(**options)
    planner.update(batch.table, batch.lens, batch.page_size)
    return planner


def run_threads(work, count):
    """work(0) to work(count - 1), a thread each; what one of them raises is raised here when all have ended."""
    with ThreadPoolExecutor(count) as threads:
        for ended in [threads.submit(work, i) for i in range(count)]:
            ended.result()


@pytest.fixture
def batch():
    return Batch()


@pytest.fixture
def make_batch():
    return Batch


def assert_state(out, lse, oracle, dtype):
    """Out and LSE agree with the oracle; empty rows are exactly 0 and -inf."""
    expected_out, expected_lse = oracle
    out, lse = np.asarray(out, np.float64), np.asarray(lse, np.float64)
    empty = np.isneginf(expected_lse)
    assert (np.isneginf(lse) == empty).all()
    assert (out[empty] == 0).all()
    np.testing.assert_allclose(lse[~empty], expected_lse[~empty], atol=LSE_TOLERANCE, rtol=1e-3)
    np.testing.assert_allclose(out, expected_out, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


class OnCuda:
    """An array that says it is on cuda:0, for machines without: nobody may look at its memory. An old-style capsule."""

    class _Tensor(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_index", ctypes.c_int32),
                    ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                    ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                    ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

    def __init__(self, array):
        self.shape, self.dtype = array.shape, array.dtype
        sizes = ctypes.c_int64 * array.ndim
        self._sizes = sizes(*array.shape), sizes(*(stride // array.itemsize for stride in array.strides))
        code = 0 if array.dtype.kind == "i" else 2
        self._tensor = self._Tensor(16, 2, 0, array.ndim, code, array.itemsize * 8, 1, ctypes.addressof(self._sizes[0]),
                                    ctypes.addressof(self._sizes[1]), 0, None, None)

    def __len__(self):
        return self.shape[0]

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream=None):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._tensor), b"dltensor", None)
