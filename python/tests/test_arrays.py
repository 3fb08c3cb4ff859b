# SPDX-License-Identifier: MIT
"""Arrays that come in: strange ones, other devices', read-only and huge ones, and what is said of those refused."""

import mmap
import sys
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import OnCuda, assert_state, planned

import capillary

BAD_RUNS = [
    ({"q": lambda a: a.astype(np.float64)}, TypeError, ("q", "float64")),
    ({"q": lambda a: a.astype(">f4")}, TypeError, ("q", "no plain number")),
    ({"k_cache": lambda a: a.astype(np.complex64)}, TypeError, ("k_cache", "64 bits")),
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
    ({"block_table": lambda a: None}, ValueError, ("block_table", "NoneType")),
    ({"q": lambda a: np.float32(0), "out": lambda a: None}, ValueError, ("q is a float32", "num_q_heads")),
    ({"q": lambda a: a.tolist(), "out": lambda a: None}, ValueError, ("q is a list", "NumPy")),
    ({"k_cache": lambda a: a[:3], "v_cache": lambda a: a[:3]}, ValueError, ("names page", "below 3")),
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
    assert isinstance(caught.value, capillary.CapillaryError)
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


@pytest.mark.parametrize(("call", "name"), [
    (lambda b: capillary.oracle_decode(OnCuda(b.q), b.k, b.v, b.table, b.lens), "q"),
    (lambda b: capillary.oracle_decode(b.q, b.k, b.v, OnCuda(b.table), b.lens), "block_table"),
    (lambda b: capillary.merge_states(b.q, b.q[..., 0], OnCuda(b.q), b.q[..., 0], v_out=b.q, lse_out=b.q[..., 0]), "v_b"),
    (lambda b: capillary.PrefixForest.from_parents(OnCuda(b.lens), b.lens, 16), "parent"),
    (lambda b: capillary.RadixCache(8, 4).match_prefix(OnCuda(b.lens)), "tokens"),
    (lambda b: b.planner().update(b.table, b.lens, 16, previous_row=OnCuda(b.lens)), "previous_row"),
])
def test_what_works_on_the_host_asks_for_no_stream(batch, call, name):
    with pytest.raises(ValueError, match=f"{name} is on cuda:0; must be in host memory"):
        call(batch)


class Exporter:
    """An array that says it is on a device and remembers the stream it was asked for; its memory is the host's."""

    def __init__(self, array, streams):
        self.array, self.streams = array, streams
        self.shape, self.dtype = array.shape, array.dtype

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream=None, max_version=None):
        self.streams.append(stream)
        return self.array.__dlpack__()


class CudaStream:
    def __cuda_stream__(self):
        return 0, 4096


@pytest.mark.parametrize(("stream", "address"), [
    (4096, 4096), (SimpleNamespace(cuda_stream=4096), 4096), (SimpleNamespace(ptr=4096), 4096), (CudaStream(), 4096),
    (0, 1)])  # in DLPack 0 is ambiguous, and 1 is CUDA's legacy default stream
def test_producers_are_told_the_stream(batch, stream, address):
    planner = planned(batch)
    streams = []
    arrays = [Exporter(array, streams) for array in (batch.q, batch.k, batch.v, batch.table)]
    out = np.empty_like(batch.q)
    planner.run(*arrays, out=out, stream=stream)
    assert streams == [address] * 4
    np.testing.assert_array_equal(out, planner.run(batch.q, batch.k, batch.v, batch.table))


@pytest.mark.parametrize(("stream", "part"), [
    (None, "stream is None"), ("mine", "stream is a str"), (SimpleNamespace(ptr="x"), "has the address 'x'"),
    (-1, "has the address -1")])
def test_a_stream_that_is_none_is_refused(batch, stream, part):
    with pytest.raises(ValueError, match=part):
        planned(batch).run(Exporter(batch.q, []), batch.k, batch.v, batch.table, out=np.empty_like(batch.q),
                           stream=stream)


def test_outputs_are_of_the_framework_of_q(batch, monkeypatch):
    made = []

    def empty(shape, dtype):
        made.append((shape, np.dtype(dtype).name))
        return np.empty(shape, dtype)

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(empty=empty))
    cupy_array = type("ndarray", (Exporter,), {"__module__": "cupy"})
    planner = planned(batch)
    out, lse = planner.run(cupy_array(batch.q, []), batch.k, batch.v, batch.table, return_lse=True, stream=1)
    assert made == [(batch.q.shape, "float32"), (batch.q.shape[:2], "float32")]
    assert_state(out, lse, batch.oracle(), "float32")
    jax_array = type("ArrayImpl", (Exporter,), {"__module__": "jaxlib"})
    with pytest.raises(ValueError, match="out is None with arrays of jax"):
        planner.run(jax_array(batch.q, []), batch.k, batch.v, batch.table, stream=1)
    # Nothing in the export says that it may not be written to: JAX's from a device are like that.
    with pytest.raises(ValueError, match="out is read-only"):
        planner.run(batch.q, batch.k, batch.v, batch.table, out=jax_array(batch.q.copy(), []), stream=1)


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


def test_a_cache_beyond_4_gib():
    # Address space only: pages that nobody touches cost no memory.
    try:
        cache = np.memmap(tempfile.TemporaryFile(), np.float16, "w+", shape=(70000, 16, 2, 1024))
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
