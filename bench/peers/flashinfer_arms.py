# SPDX-License-Identifier: MIT
"""FlashInfer: batch decode on tensor cores, every request alone; and cascade, one launch a level of the tree plus merges,
with the backend that it picks and with fa2 forced. Paged caches, HND, the workload's page size.

A wrapper made for CUDA graphs keeps its buffers and pads its grid, so that one graph may serve later steps; one that is not
plans for this step alone, as ours does, and is captured as well as long as it is not planned again. Both are set up.
"""
import functools

import torch

from arm import Absent, Step

# A graph-mode plan reserves partials for the worst batch of so many rows: 0.6 GB for 1024 rows of 32 heads in 256 nodes.
WORKSPACE_BYTES = 2 << 30


def load():
    try:
        import flashinfer  # pylint: disable=import-outside-toplevel
    except (ImportError, OSError, RuntimeError) as error:
        raise Absent(f"flashinfer cannot be imported: {error}") from error
    return flashinfer


def version():
    try:
        return getattr(load(), "__version__", "unknown")
    except Absent:
        return None


def int32(values, device):
    return torch.tensor(values, dtype=torch.int32, device=device)


def buffers_like(arrays, device):
    """Device buffers for a captured wrapper, as large as this plan needs."""
    return [torch.empty_like(array, device=device) for array in arrays]


@functools.lru_cache(maxsize=None)
def workspace(device):
    """One for all wrappers: what it holds lives for a launch, and none run side by side."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def index_arrays(pages_of, last_len_of, device):
    """indptr, indices, last page lengths of lists of pages, as all FlashInfer wrappers take them. Their plans read the
    first and the last on the host, so these stay there, as they do in engines."""
    indptr, indices = [0], []
    for pages in pages_of:
        indices.extend(pages)
        indptr.append(len(indices))
    return int32(indptr, "cpu"), int32(indices, device), int32(last_len_of, "cpu")


def last_page_len(tree):
    return (tree.seq_len - 1) % tree.page_size + 1


def model_args(tree):
    return (tree.q_heads, tree.kv_heads, tree.head_dim, tree.page_size)


DTYPES = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}


def step_of(form, batch, make):
    """The step that make(graph) -> (wrapper, plan) sets up; eager and checked as planned for itself."""
    wrapper, plan = make(False)
    for_graphs, plan_for_graphs = make(True)
    plan()
    plan_for_graphs()

    def runner(planned):
        return lambda copy: planned.run(batch.q, batch.caches[copy])

    return Step(form, runner(wrapper), lambda out: out, batch.copies, batch.bytes_of_one, batch.worst_error, plan=plan,
                captures={"this step": runner(wrapper), "graphs": runner(for_graphs)})


def decode_steps(batch):
    flashinfer, tree = load(), batch.tree
    indptr, indices, last = index_arrays(tree.rows(), [last_page_len(tree)] * tree.num_requests, batch.device)

    def make(graph):
        buffers = {}
        if graph:
            names = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")
            buffers = dict(zip(names, buffers_like((indptr, indices, last), batch.device)), use_cuda_graph=True)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(batch.device), "HND", use_tensor_cores=True, **buffers)

        def plan():
            wrapper.plan(indptr, indices, last, *model_args(tree), **DTYPES)

        return wrapper, plan

    yield step_of("decode", batch, make)


def cascade_levels(tree):
    """(request boundaries, pages of the nodes, last page lengths) of the levels that own pages."""
    for depth, level in enumerate(tree.levels):
        if not any(level.pages):
            continue
        leaf = depth == len(tree.levels) - 1
        yield level.requests, level.pages, [last_page_len(tree) if leaf else tree.page_size] * len(level.pages)


class CascadeOfParts:
    """The cascade put together from FlashInfer's public parts, with the backend of its prefill kernel named. Outputs are
    allocated once: a run without one fills it with zeros first."""

    def __init__(self, flashinfer, batch, qo, kv, backend, graph):
        self.flashinfer, self.qo, self.kv = flashinfer, qo, kv
        self.levels = []
        names = ("qo_indptr_buf", "paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")
        for qo_indptr, arrays in zip(qo, kv):
            buffers = {}
            if graph:
                buffers = dict(zip(names, buffers_like((qo_indptr, *arrays), batch.device)), use_cuda_graph=True)
            self.levels.append(flashinfer.BatchPrefillWithPagedKVCacheWrapper(
                workspace(batch.device), "HND", backend=backend, **buffers))
        self.partials = [{"out": torch.empty_like(batch.q), "return_lse": True,
                          "lse": torch.empty(batch.q.shape[:2], dtype=torch.float32, device=batch.device)} for _ in qo]

    def plan(self, *model, **dtypes):
        for level, qo_indptr, kv in zip(self.levels, self.qo, self.kv):
            level.plan(qo_indptr, *kv, *model, causal=False, **dtypes)

    def run(self, q, cache):
        out, lse = self.levels[-1].run(q, cache, **self.partials[-1])
        for level, partial in zip(self.levels[:-1], self.partials):
            self.flashinfer.merge_state_in_place(out, lse, *level.run(q, cache, **partial))
        return out


def cascade_steps(batch, backend):
    flashinfer, tree = load(), batch.tree
    qo, kv = [], []
    for requests, pages, last in cascade_levels(tree):
        qo.append(int32(requests, "cpu"))
        kv.append(index_arrays(pages, last, batch.device))
    if len(qo) < 2:  # nothing is shared: decode is the same launch
        return

    def make(graph):
        if backend == "auto":
            buffers = {}
            if graph:
                names = ("qo_indptr_buf_arr", "paged_kv_indptr_buf_arr", "paged_kv_indices_buf_arr",
                         "paged_kv_last_page_len_buf_arr")
                columns = (qo, *zip(*kv))
                buffers = {name: buffers_like(column, batch.device) for name, column in zip(names, columns)}
                buffers["use_cuda_graph"] = True
            wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(len(qo), workspace(batch.device), "HND", **buffers)

            def plan():
                wrapper.plan(qo, *map(list, zip(*kv)), *model_args(tree), **DTYPES)
        else:
            wrapper = CascadeOfParts(flashinfer, batch, qo, kv, backend, graph)

            def plan():
                wrapper.plan(*model_args(tree), **DTYPES)

        return wrapper, plan

    yield step_of("cascade", batch, make)
