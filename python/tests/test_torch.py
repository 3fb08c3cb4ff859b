# SPDX-License-Identifier: MIT
"""PyTorch tensors and operators, on the CPU or (CAPILLARY_TEST_DEVICE=cuda) on a card."""

import enum
import gc

import numpy as np
import pytest
from conftest import DEVICE, Batch, assert_state, run_threads

torch = pytest.importorskip("torch")

import capillary  # noqa: E402
from capillary.torch_ops import TorchPlanner  # noqa: E402

cuda_only = pytest.mark.skipif(DEVICE == "cpu", reason="needs CUDA tensors")


def host(*tensors):
    return [tensor.detach().float().cpu().numpy() for tensor in tensors]


def planned(batch, dtype, device, **options):
    """(planner, q, k, v, table), planned from the host's table."""
    tensors = batch.torch(dtype, device)
    planner = batch.planner(dtype, device, TorchPlanner, **options)
    planner.update(batch.table, batch.lens, batch.page_size)
    return (planner, *tensors)


def half_dtypes(device):
    return ["float16", "bfloat16"] + (["float32"] if device == "cpu" else [])


@pytest.mark.parametrize("mode", ["auto", "flat", "shared-l2"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("page_size", [1, 5, 16, 48])
def test_a_step_agrees_with_the_oracle(make_batch, device, mode, head_dim, page_size):
    for dtype in half_dtypes(device):
        batch = make_batch(head_dim=head_dim, page_size=page_size, num_q_heads=12, num_kv_heads=3)
        planner, *tensors = planned(batch, dtype, device, mode=mode)
        out, lse = planner.run(*tensors, return_lse=True)
        assert out.dtype == tensors[0].dtype and out.device == tensors[0].device
        assert_state(*host(out, lse), batch.oracle(), dtype)


def test_layouts_and_strides(batch, device):
    planner, q, k, v, table = planned(batch, "bfloat16", device)
    expected = batch.oracle()
    hnd = [cache.transpose(1, 2).contiguous() for cache in (k, v)]
    assert_state(*host(*planner.run(q, *hnd, table, kv_layout="HND", return_lse=True)), expected, "bfloat16")
    joint = torch.stack((k, v), dim=1)
    assert_state(*host(*planner.run(q, joint[:, 0], joint[:, 1], table, return_lse=True)), expected, "bfloat16")
    packed = torch.cat((k, v), dim=3)
    assert_state(*host(*planner.run(q, packed[..., :64], packed[..., 64:], table, return_lse=True)), expected, "bfloat16")
    wide = torch.zeros(q.shape[0], 3, *q.shape[1:], dtype=q.dtype, device=q.device)
    wide[:, 1] = q
    lse = torch.empty(q.shape[1], q.shape[0], device=q.device).t()
    assert_state(*host(*planner.run(wide[:, 1], k, v, table, out=wide[:, 2], lse=lse, return_lse=True)), expected,
                 "bfloat16")


def test_tables_and_lengths_on_the_device(batch, device):
    q, k, v, table = batch.torch("bfloat16", device)
    lens = torch.from_numpy(batch.lens).to(device)
    out, lse = capillary.decode(q, k, v, table, lens, return_lse=True)
    assert_state(*host(out, lse), batch.oracle(), "bfloat16")
    wide = torch.full((len(lens), table.shape[1] + 3), -1, dtype=torch.int32, device=device)
    wide[:, :table.shape[1]] = table
    planner = batch.planner("bfloat16", device)
    planner.plan(capillary.PrefixForest.from_block_table(wide[:, :-3], lens, 16))
    assert_state(*host(*planner.run(q, k, v, wide[:, :-3], return_lse=True)), batch.oracle(), "bfloat16")


def test_int64_tables_and_wrong_dtypes(batch, device):
    planner, q, k, v, table = planned(batch, "bfloat16", device)
    with pytest.raises(TypeError, match="block_table has dtype int64; must have dtype int32"):
        planner.run(q, k, v, table.long())
    with pytest.raises(TypeError, match="block_table has dtype int64"):
        planner.update(table.long(), batch.lens, 16)
    with pytest.raises(TypeError, match="v_cache has dtype float16; must have dtype bfloat16"):
        planner.run(q, k, v.half(), table)
    with pytest.raises(TypeError, match="q has dtype float64"):
        planner.run(q.double(), k, v, table)
    with pytest.raises(ValueError, match="last stride 1"):
        planner.run(q, k.transpose(2, 3).contiguous().transpose(2, 3), v, table)


def test_read_only_tensors_of_numpy(batch):
    batch.q.flags.writeable = False
    planner = batch.planner()
    planner.update(batch.table, batch.lens, 16)
    out = torch.empty(batch.q.shape)
    planner.run(batch.q, batch.k, batch.v, batch.table, out=out)
    np.testing.assert_allclose(out, batch.oracle()[0], atol=2e-5)


class PlainDLPack:
    """An array that offers the Python side of DLPack alone, as CuPy's and JAX's do; old: before version 1."""

    def __init__(self, tensor, old=False):
        self._tensor = tensor
        self._old = old
        self.shape, self.dtype = tensor.shape, tensor.dtype

    def __dlpack_device__(self):
        kind, index = self._tensor.__dlpack_device__()
        # The standard's enumeration, whose members are no numbers.
        return (int(kind) if self._old else enum.Enum("DeviceType", {"HERE": int(kind)}).HERE), index

    def __dlpack__(self, **options):
        if self._old and "max_version" in options:
            raise TypeError("unexpected argument max_version")
        return self._tensor.__dlpack__(**options)


@pytest.mark.parametrize("old", [False, True])
def test_any_array_that_speaks_dlpack(batch, device, old):
    planner, *tensors = planned(batch, "bfloat16", device)
    out, lse = torch.empty_like(tensors[0]), torch.empty(tensors[0].shape[:2], device=device)
    stream = torch.cuda.current_stream() if device != "cpu" else None
    planner.run(*(PlainDLPack(tensor, old) for tensor in tensors), out=PlainDLPack(out, old), lse=PlainDLPack(lse, old),
                stream=stream)
    assert_state(*host(out, lse), batch.oracle(), "bfloat16")
    if device != "cpu":
        with pytest.raises(ValueError, match="stream is None"):
            planner.run(*(PlainDLPack(tensor, old) for tensor in tensors), out=PlainDLPack(out, old))
        with pytest.raises(ValueError, match="stream is a str"):
            planner.run(*tensors, out=out, stream="mine")
    nowhere = PlainDLPack(tensors[0])
    nowhere.__class__ = type("Nowhere", (PlainDLPack,), {"__dlpack_device__": lambda self: ("here", 0)})
    with pytest.raises(ValueError, match=r"q gives \('here', 0\) as its device"):
        planner.run(nowhere, *tensors[1:], out=out, stream=stream)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_operators_are_what_they_declare(batch, device, dtype):
    if device != "cpu" and dtype == "float32":
        pytest.skip("the kernel has no float32")
    planner, q, k, v, table = planned(batch, dtype, device)
    # opcheck compares runs with each other, and NaN (in the unused slots) with nothing.
    k, v = torch.nan_to_num(k), torch.nan_to_num(v)
    ops = torch.ops.capillary
    arguments = (q, k, v, table, planner.handle)
    torch.library.opcheck(ops.decode.default, arguments)
    torch.library.opcheck(ops.decode_with_lse.default, arguments, {"softmax_scale": 0.1})
    lse = torch.empty(q.shape[:2], device=device)
    torch.library.opcheck(ops.decode_out.default, arguments, {"out": torch.empty_like(q), "lse": lse})
    state = (torch.randn_like(q), torch.randn_like(lse), torch.randn_like(q), torch.randn_like(lse))
    torch.library.opcheck(ops.merge_states.default, state)


def test_operators_agree_with_the_oracle(batch, device):
    planner, q, k, v, table = planned(batch, "bfloat16", device)
    out, lse = torch.ops.capillary.decode_with_lse(q, k, v, table, planner.handle)
    assert_state(*host(out, lse), batch.oracle(), "bfloat16")
    assert torch.equal(out, torch.ops.capillary.decode(q, k, v, table, planner.handle))
    other = torch.empty_like(out)
    torch.ops.capillary.decode_out(q, k, v, table, planner.handle, out=other)
    assert torch.equal(out, other)


def test_an_operator_without_its_planner(batch, device):
    planner, q, k, v, table = planned(batch, "bfloat16", device)
    handle = planner.handle
    del planner
    gc.collect()
    with pytest.raises(ValueError, match=f"planner is {handle}"):
        torch.ops.capillary.decode(q, k, v, table, handle)


# Left to itself PyTorch compiles once more when a size first changes, and always for a batch of 1.
@pytest.mark.parametrize(("dynamic", "sizes", "compilations"), [
    (True, (5, 7, 12, 4), 1), (None, (5, 7, 12, 4), 2), (True, (5, 1, 7, 1, 12), 2)])
def test_compiled_whole_and_once_for_all_batch_sizes(make_batch, device, dynamic, sizes, compilations):
    from torch._dynamo.testing import CompileCounterWithBackend
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    planner = None

    @torch.compile(backend=counter, fullgraph=True, dynamic=dynamic)
    def layer(q, k, v, table, handle):
        out = torch.ops.capillary.decode(q * 1.0, k, v, table, handle)
        both = torch.empty_like(out)
        torch.ops.capillary.decode_out(q, k, v, table, handle, out=both)
        return (out + both) * 0.5

    for seed, num_requests in enumerate(sizes):
        batch = make_batch(num_requests=num_requests, seed=seed)
        q, k, v, table = batch.torch("bfloat16", device)
        planner = planner or batch.planner("bfloat16", device, TorchPlanner)
        planner.update(batch.table, batch.lens, 16)
        out = layer(q, k, v, table, planner.handle)
        np.testing.assert_allclose(*host(out), batch.oracle()[0], atol=3e-2)
    assert counter.frame_count == compilations


def test_merging_states_of_tensors(batch, device):
    q, k, v, table = batch.torch("float32" if device == "cpu" else "bfloat16", device)
    cut = np.minimum(batch.lens, 48).astype(np.int32)
    first = capillary.decode(q, k, v, table, cut, return_lse=True)
    rest = capillary.decode(q, k, v, table[:, 3:].contiguous(), batch.lens - cut, return_lse=True)
    out, lse = capillary.merge_states(*first, *rest)
    assert_state(*host(out, lse), batch.oracle(), "float32" if device == "cpu" else "bfloat16")
    from capillary.torch_ops import merge_states_by_torch
    for base, scale in (("e", 1.0), ("2", 1.4426950408889634)):
        sides = (first[0], first[1] * scale, rest[0], rest[1] * scale)
        by_torch, by_torch_lse = merge_states_by_torch(*sides, base, None, None)
        assert_state(*host(by_torch, by_torch_lse / scale), batch.oracle(), "bfloat16")
    nothing = torch.full_like(first[1], -torch.inf)
    out, lse = merge_states_by_torch(first[0] * torch.nan, nothing, rest[0] * torch.nan, -nothing, "e", None, None)
    assert (out == 0).all() and torch.isneginf(lse).all()


@pytest.mark.parametrize(("name", "change", "error", "part"), [
    ("v_b", lambda t: t[:1], ValueError, "v_b has shape"), ("lse_a", lambda t: t[0], ValueError, "lse_a has shape"),
    ("lse_b", lambda t: t[:, :1], ValueError, "lse_b has shape"), ("lse_b", lambda t: t.double(), TypeError, "float64"),
    ("v_a", lambda t: t[0], ValueError, "v_a has 2 dimensions"), ("v_b", lambda t: t.int(), TypeError, "v_b has dtype int32"),
    ("lse_a", lambda t: t.to("meta"), ValueError, "lse_a is on meta"), ("lse_b", lambda t: 0, ValueError, "lse_b is a int"),
    ("v_out", lambda t: t.repeat(1, 1, 2), ValueError, "v_out has shape")])
def test_states_that_do_not_fit_are_not_broadcast(device, name, change, error, part):
    from capillary.torch_ops import merge_states_by_torch
    v, lse = torch.ones(3, 2, 4, device=device), torch.zeros(3, 2, device=device)
    states = {"v_a": v, "lse_a": lse, "v_b": v, "lse_b": lse, "lse_base": "e", "v_out": v.clone(), "lse_out": None}
    states[name] = change(states[name])
    with pytest.raises(error, match=part) as caught:
        merge_states_by_torch(**states)
    assert isinstance(caught.value, capillary.CapillaryError)


def test_an_lse_that_is_nan_is_not_an_empty_side(device):
    v, lse = torch.ones(1, 1, 4, device=device), torch.zeros(1, 1, device=device)
    out, merged = capillary.merge_states(v, lse * torch.nan, v, lse)
    assert out.isnan().all() and merged.isnan().all()
    from capillary.torch_ops import merge_states_by_torch
    out, merged = merge_states_by_torch(v, lse * torch.nan, v, lse, "e", None, None)
    assert out.isnan().all() and merged.isnan().all()


def test_tensors_without_memory_or_of_another_rank_are_named(batch, device):
    planner, q, k, v, table = planned(batch, "bfloat16", device)
    for name, tensors in (("q", (q.to("meta"), k, v, table)), ("v_cache", (q, k, v.to_sparse(), table))):
        with pytest.raises(ValueError, match=f"{name} is a Tensor that cannot be exported"):
            planner.run(*tensors, out=torch.empty_like(q))
    decode = torch.ops.capillary.decode
    for name, tensors in (("q", (q[0], k, v, table)), ("v_cache", (q, k, v[0], table))):
        with pytest.raises(ValueError, match=f"{name} has shape"):
            decode(*tensors, planner.handle)


# --- what only a card can show -------------------------------------------------------------------------------

@cuda_only
def test_tensors_of_mixed_devices(batch, device):
    planner, q, k, v, table = planned(batch, "bfloat16", device)
    for wrong in range(4):
        tensors = [q, k, v, table]
        tensors[wrong] = tensors[wrong].cpu()
        with pytest.raises(ValueError, match="is on cpu; must be on cuda:0"):
            planner.run(*tensors, out=torch.empty_like(q))
    with pytest.raises(ValueError, match="out is on cpu"):
        planner.run(q, k, v, table, out=torch.empty_like(q, device="cpu"))
    with pytest.raises(ValueError, match="must be on cpu"):
        batch_planner = batch.planner("bfloat16", "cpu")
        batch_planner.update(batch.table, batch.lens, 16)
        batch_planner.run(q, k, v, table)
    with pytest.raises(NotImplementedError, match="float32"):
        batch.planner("float32", device)


@cuda_only
def test_unsupported_head_dims_are_named(make_batch, device):
    supported, why = capillary.is_supported(72, device=device)
    assert not supported and "72" in why
    with pytest.raises(NotImplementedError, match="72"):
        make_batch(head_dim=72).planner("bfloat16", device)


def split_batch():
    """One long request, cut into several jobs: its rows meet in the workspace."""
    batch = Batch(num_requests=2, shared_pages=600)
    batch.lens[-1] = 0
    return batch


@cuda_only
def test_a_workspace_that_is_too_small(device):
    batch = split_batch()
    planner, *tensors = planned(batch, "bfloat16", device, cluster_size=1, num_pieces=16, mode="shared-l2")
    needed = planner.explain().workspace_bytes
    assert needed > 0
    with pytest.raises(capillary.WorkspaceTooSmallError) as caught:
        planner.run(*tensors, workspace=torch.empty(needed // 4 - 1, dtype=torch.int32, device=device))
    assert (caught.value.needed_bytes, caught.value.given_bytes) == (needed, needed - 4)
    workspace = torch.full((needed // 4,), -1, dtype=torch.int32, device=device)
    out, lse = planner.run(*tensors, workspace=workspace, return_lse=True)
    assert_state(*host(out, lse), batch.oracle(), "bfloat16")
    assert torch.equal(out, planner.run(*tensors))


@cuda_only
def test_the_current_stream_is_used(make_batch, device):
    batch = make_batch(num_requests=40, shared_pages=200)
    planner, q, k, v, table = planned(batch, "bfloat16", device)
    expected = planner.run(q, k, v, table)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        late = torch.zeros_like(q)
        torch.cuda._sleep(20_000_000)
        late.copy_(q)  # only visible to what comes after it on this stream
        planner.update(batch.table, batch.lens, 16)
        out = planner.run(late, k, v, table)
    side.synchronize()
    assert torch.equal(out, expected)


@cuda_only
def test_host_copies_wait_for_nothing(make_batch, device):
    batch = make_batch(num_requests=12, shared_pages=40)
    planner, *tensors = planned(batch, "bfloat16", device)
    out = torch.empty_like(tensors[0])
    lens = torch.from_numpy(batch.lens).to(device)
    planner.run(*tensors, out=out)  # what is set up once is there
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second
    planner.update(batch.table, batch.lens, batch.page_size)
    planner.run(*tensors, out=out)
    assert not torch.cuda.current_stream().query()  # neither of them waited
    planner.update(tensors[3], lens, batch.page_size)  # and this one has to
    assert torch.cuda.current_stream().query()
    np.testing.assert_allclose(*host(out), batch.oracle()[0], atol=3e-2)


@cuda_only
def test_the_device_of_the_tensors_is_worked_on(batch, device):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two cards")
    planner, *tensors = planned(batch, "bfloat16", "cuda:1")
    assert torch.cuda.current_device() == 0
    assert_state(*host(*planner.run(*tensors, return_lse=True)), batch.oracle(), "bfloat16")
    out = torch.ops.capillary.decode(*tensors, planner.handle)
    out_of_decode, lse = capillary.decode(*tensors, torch.from_numpy(batch.lens).to("cuda:1"), return_lse=True)
    assert torch.equal(out, out_of_decode) and out.device.index == lse.device.index == 1
    assert torch.cuda.current_device() == 0
    with pytest.raises(ValueError, match="cuda:0"):
        planner.run(tensors[0].to("cuda:0"), *tensors[1:])


@cuda_only
def test_a_planner_may_go_while_its_work_is_in_flight(make_batch, device):
    batch = make_batch(num_requests=16, shared_pages=100)
    for _ in range(5):
        planner, q, k, v, table = planned(batch, "bfloat16", device)
        torch.cuda._sleep(20_000_000)
        out, lse = planner.run(q, k, v, table, return_lse=True)
        del planner
        gc.collect()
        assert_state(*host(out, lse), batch.oracle(), "bfloat16")


@cuda_only
def test_plans_follow_each_other_behind_a_slow_stream(make_batch, device):
    batches = [make_batch(seed=seed, num_requests=4 + seed) for seed in range(8)]
    planner = batches[0].planner("bfloat16", device)
    tensors = [batch.torch("bfloat16", device) for batch in batches]
    torch.cuda._sleep(50_000_000)
    results = []
    for batch, tensor in zip(batches, tensors):
        planner.update(batch.table, batch.lens, 16)
        results.append(planner.run(*tensor, return_lse=True))
    for batch, result in zip(batches, results):
        assert_state(*host(*result), batch.oracle(), "bfloat16")


@cuda_only
def test_two_planners_on_two_streams(make_batch, device):
    def work(seed):
        batch = make_batch(seed=seed, num_requests=20 + seed, shared_pages=50)
        with torch.cuda.stream(torch.cuda.Stream()):
            planner, *tensors = planned(batch, "bfloat16", device)
            first = planner.run(*tensors)
            for _ in range(200):
                planner.update(batch.table, batch.lens, 16)
                assert torch.equal(planner.run(*tensors), first)
            assert_state(*host(*planner.run(*tensors, return_lse=True)), batch.oracle(), "bfloat16")

    run_threads(work, 2)


@cuda_only
@pytest.mark.parametrize("through", ["planner", "operator"])
def test_a_graph_runs_every_later_plan(make_batch, device, through):
    batch = make_batch(num_requests=12, shared_pages=40)
    planner, q, k, v, table = planned(batch, "bfloat16", device, cluster_size=2, fixed_grid=True, max_requests=16)
    out = torch.empty_like(q)

    def layers():
        for _ in range(2):
            if through == "planner":
                planner.run(q, k, v, table, out=out)
            else:
                torch.ops.capillary.decode_out(q, k, v, table, planner.handle, out=out)

    layers()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layers()
        with pytest.raises(ValueError, match="plan before the capture"):
            planner.update(batch.table, batch.lens, 16)
    for step in range(4):
        lens = np.maximum(batch.lens - 7 * step, 0).astype(np.int32)
        lens[len(lens) - step:] = 0
        out.fill_(torch.nan)
        planner.update(batch.table, lens, 16)
        graph.replay()
        expected = capillary.oracle_decode(batch.q, batch.k, batch.v, batch.table, lens)[0]
        np.testing.assert_allclose(*host(out), expected, atol=3e-2)


@cuda_only
def test_a_graph_cannot_be_outgrown_in_silence(make_batch, device):
    batch = make_batch(num_requests=12, shared_pages=40)
    planner, q, k, v, table = planned(batch, "bfloat16", device, cluster_size=2, fixed_grid=True,
                                      plan_capacity_bytes=1 << 16)
    out = torch.empty_like(q)
    graph = torch.cuda.CUDAGraph()
    planner.run(q, k, v, table, out=out)
    with torch.cuda.graph(graph):
        planner.run(q, k, v, table, out=out)
    large = make_batch(num_requests=3000, shared_pages=2)
    with pytest.raises(ValueError, match="plan_capacity_bytes"):
        planner.update(large.table, large.lens, 16)


@cuda_only
def test_a_compiled_layer_in_a_graph(batch, device):
    planner, q, k, v, table = planned(batch, "bfloat16", device)
    layer = torch.compile(lambda q: torch.ops.capillary.decode(q + 0, k, v, table, planner.handle) * 2,
                          backend="aot_eager", fullgraph=True)
    layer(q)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(q)
    out.zero_()
    graph.replay()
    np.testing.assert_allclose(*host(out / 2), batch.oracle()[0], atol=3e-2)


@cuda_only
def test_a_cache_beyond_4_gib(device):
    pages = torch.empty(40000, 16, 2, 2048, dtype=torch.bfloat16, device=device)
    assert pages.numel() * 2 > 2**32
    k, v = pages[..., :64], pages[..., 64:128]
    table = np.array([[39999, 3], [39999, 38000]], np.int32)
    lens = np.array([20, 32], np.int32)
    used = torch.randn(3, 16, 2, 128, device=device).bfloat16()
    pages[[3, 38000, 39999], :, :, :128] = used
    q = torch.randn(2, 8, 64, device=device).bfloat16()
    out, lse = capillary.decode(q, k, v, torch.from_numpy(table).to(device), lens, return_lse=True)
    used = used.float().cpu()
    expected = capillary.oracle_decode(q.float().cpu(), used[..., :64], used[..., 64:],
                                       np.array([[2, 0], [2, 1]], np.int32), lens)
    assert_state(*host(out, lse), expected, "bfloat16")


@cuda_only
def test_a_forked_child_is_told(batch, device):
    import os
    planner, *tensors = planned(batch, "bfloat16", device)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            planner.update(batch.table, batch.lens, 16)
            message = "no error"
        except ValueError as error:
            message = str(error)
        os.write(write, message.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert "before this process was forked" in os.read(read, 1000).decode()


@cuda_only
def test_cupy_arrays(batch, device):
    cupy = pytest.importorskip("cupy")
    for name in ("q", "k", "v"):
        setattr(batch, name, getattr(batch, name).astype(np.float16))
    planner = batch.planner("float16", device)
    with cupy.cuda.Stream() as stream:
        planner.update(batch.table, batch.lens, 16, stream=stream)
        arrays = [cupy.asarray(array) for array in (batch.q, batch.k, batch.v, batch.table)]
        out, lse = planner.run(*arrays, return_lse=True, stream=stream)
        stream.synchronize()
    for name in ("q", "k", "v"):
        setattr(batch, name, getattr(batch, name).astype(np.float32))
    assert_state(out.get(), lse.get(), batch.oracle(), "float16")


def test_jax_arrays(batch, device):
    jax = pytest.importorskip("jax")
    where = jax.devices("cpu" if device == "cpu" else "gpu")[0]
    arrays = [jax.device_put(array, where) for array in (batch.q, batch.k, batch.v, batch.table)]
    if device != "cpu":
        arrays[:3] = [array.astype("bfloat16") for array in arrays[:3]]
    dtype = "float32" if device == "cpu" else "bfloat16"
    for name, array in zip(("q", "k", "v"), arrays):
        setattr(batch, name, np.asarray(array.astype("float32")))
    planner = batch.planner(dtype, device)
    stream = None if device == "cpu" else torch.cuda.current_stream()
    planner.update(batch.table, batch.lens, 16, stream=stream)
    jax.block_until_ready(arrays)
    out = torch.empty(batch.q.shape, dtype=getattr(torch, dtype), device=device)
    lse = torch.empty(batch.q.shape[:2], device=device)
    planner.run(*arrays, out=out, lse=lse, stream=stream)
    assert_state(*host(out, lse), batch.oracle(), dtype)
    with pytest.raises(ValueError, match="out is None with arrays of jax"):
        planner.run(*arrays, stream=stream)
    with pytest.raises(ValueError, match="out is read-only"):  # JAX's arrays never change
        planner.run(*arrays, out=arrays[0] * 0, stream=stream)
