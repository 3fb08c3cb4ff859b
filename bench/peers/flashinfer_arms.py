# SPDX-License-Identifier: MIT
"""FlashInfer: batch decode on tensor cores, every request alone; and cascade, one launch a level of the tree plus merges,
with the backend that it picks and with fa2 forced. Paged caches, HND, the workload's page size."""
import torch

from arm import Absent, Step

WORKSPACE_BYTES = 512 << 20


def load():
    try:
        import flashinfer  # pylint: disable=import-outside-toplevel
    except ImportError as error:
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


def workspace(batch):
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=batch.device)


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


def decode_steps(batch):
    flashinfer, tree = load(), batch.tree
    indptr, indices, last = index_arrays(tree.rows(), [last_page_len(tree)] * tree.num_requests, batch.device)

    def make(graph):
        buffers = {}
        if graph:
            names = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")
            buffers = dict(zip(names, buffers_like((indptr, indices, last), batch.device)), use_cuda_graph=True)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(batch), "HND", use_tensor_cores=True, **buffers)

        def plan():
            wrapper.plan(indptr, indices, last, *model_args(tree), **DTYPES)

        plan()
        return Step("decode", lambda copy: wrapper.run(batch.q, batch.caches[copy]), lambda out: out, batch.copies,
                    batch.bytes_of_one, batch.worst_error, plan=plan)

    step = make(False)
    step.capturable = make(True)
    yield step


def cascade_levels(tree):
    """(request boundaries, pages of the nodes, last page lengths) of the levels that own pages."""
    for depth, level in enumerate(tree.levels):
        if not any(level.pages):
            continue
        leaf = depth == len(tree.levels) - 1
        yield level.requests, level.pages, [last_page_len(tree) if leaf else tree.page_size] * len(level.pages)


class CascadeOfParts:
    """The cascade put together from FlashInfer's public parts, with the backend of its prefill kernel named."""

    def __init__(self, flashinfer, batch, qo, kv, backend, graph):
        self.flashinfer, self.qo, self.kv = flashinfer, qo, kv
        self.levels = []
        shared = workspace(batch)  # the levels run one after the other
        names = ("qo_indptr_buf", "paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")
        for qo_indptr, arrays in zip(qo, kv):
            buffers = {}
            if graph:
                buffers = dict(zip(names, buffers_like((qo_indptr, *arrays), batch.device)), use_cuda_graph=True)
            self.levels.append(flashinfer.BatchPrefillWithPagedKVCacheWrapper(
                shared, "HND", backend=backend, **buffers))

    def plan(self, *model, **dtypes):
        for level, qo_indptr, kv in zip(self.levels, self.qo, self.kv):
            level.plan(qo_indptr, *kv, *model, causal=False, **dtypes)

    def run(self, q, cache):
        out, lse = self.levels[-1].run(q, cache, return_lse=True)
        for level in self.levels[:-1]:
            self.flashinfer.merge_state_in_place(out, lse, *level.run(q, cache, return_lse=True))
        return out


def cascade_steps(batch, backend):
    flashinfer, tree = load(), batch.tree
    qo, kv = [], []
    for requests, pages, last in cascade_levels(tree):
        qo.append(int32(requests, "cpu"))
        kv.append(index_arrays(pages, last, batch.device))

    def make(graph):
        if backend == "auto":
            buffers = {}
            if graph:
                names = ("qo_indptr_buf_arr", "paged_kv_indptr_buf_arr", "paged_kv_indices_buf_arr",
                         "paged_kv_last_page_len_buf_arr")
                columns = (qo, *zip(*kv))
                buffers = {name: buffers_like(column, batch.device) for name, column in zip(names, columns)}
                buffers["use_cuda_graph"] = True
            wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(len(qo), workspace(batch), "HND", **buffers)

            def plan():
                wrapper.plan(qo, *map(list, zip(*kv)), *model_args(tree), **DTYPES)
        else:
            wrapper = CascadeOfParts(flashinfer, batch, qo, kv, backend, graph)

            def plan():
                wrapper.plan(*model_args(tree), **DTYPES)

        plan()
        return Step("cascade", lambda copy: wrapper.run(batch.q, batch.caches[copy]), lambda out: out, batch.copies,
                    batch.bytes_of_one, batch.worst_error, plan=plan)

    step = make(False)
    step.capturable = make(True)
    yield step
