# SPDX-License-Identifier: MIT
"""What FlashInfer's wrappers are given, held against stand-ins with their signatures that compute plain attention on the
CPU. Needs PyTorch, but neither FlashInfer nor a card. `python3 -m unittest` here."""
import math
import pathlib
import sys
import types
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).parent))
try:
    import torch
except ImportError:
    torch = None
if torch:
    import batch as batches  # pylint: disable=wrong-import-position
    import flashinfer_arms  # pylint: disable=wrong-import-position
    import trees  # pylint: disable=wrong-import-position
    torch.set_num_threads(1)  # small tensors


class Prefill:
    """BatchPrefillWithPagedKVCacheWrapper, without a mask."""

    def __init__(self, workspace, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf=None, paged_kv_indptr_buf=None,
                 paged_kv_indices_buf=None, paged_kv_last_page_len_buf=None, backend="auto"):
        assert workspace.dtype == torch.uint8 and kv_layout == "HND" and backend in ("auto", "fa2")
        self.buffers = (qo_indptr_buf, paged_kv_indptr_buf, paged_kv_indices_buf, paged_kv_last_page_len_buf)
        assert all((buffer is not None) == use_cuda_graph for buffer in self.buffers)

    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim,
             page_size, causal=False, q_data_type="float16", kv_data_type=None):
        assert not causal and q_data_type == kv_data_type == torch.bfloat16
        given = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(part.dtype == torch.int32 for part in given)
        for buffer, part in zip(self.buffers, given):
            assert buffer is None or buffer.shape == part.shape
        self.planned, self.model = [part.tolist() for part in given], (num_qo_heads, num_kv_heads, head_dim, page_size)

    def run(self, q, cache, out=None, lse=None, return_lse=False):
        (queries, indptr, indices, last), (q_heads, kv_heads, head_dim, page_size) = self.planned, self.model
        assert q.shape == (queries[-1], q_heads, head_dim) and cache[0].shape[1:] == (kv_heads, page_size, head_dim)
        out = torch.full_like(q, math.nan) if out is None else out
        lse = torch.full(q.shape[:2], math.nan) if lse is None else lse
        for i, short in enumerate(last):
            pages = torch.tensor(indices[indptr[i]:indptr[i + 1]])
            tokens = (len(pages) - 1) * page_size + short
            k, v = (part[pages].transpose(0, 1).reshape(kv_heads, -1, head_dim)[:, :tokens].float() for part in cache)
            rows = slice(queries[i], queries[i + 1])
            grouped = q[rows].float().view(-1, kv_heads, q_heads // kv_heads, head_dim)
            scores = torch.einsum("nhgd,htd->nhgt", grouped, k) / math.sqrt(head_dim)
            out[rows] = torch.einsum("nhgt,htd->nhgd", scores.softmax(-1), v).reshape(-1, q_heads, head_dim).to(q.dtype)
            lse[rows] = scores.logsumexp(-1).reshape(-1, q_heads)
        return (out, lse) if return_lse else out


class Decode:
    """BatchDecodeWithPagedKVCacheWrapper."""

    def __init__(self, workspace, kv_layout="NHD", use_cuda_graph=False, use_tensor_cores=False, paged_kv_indptr_buffer=None,
                 paged_kv_indices_buffer=None, paged_kv_last_page_len_buffer=None):
        assert use_tensor_cores
        queries = torch.empty_like(paged_kv_indptr_buffer) if use_cuda_graph else None
        self.prefill = Prefill(workspace, kv_layout, use_cuda_graph, queries, paged_kv_indptr_buffer, paged_kv_indices_buffer,
                               paged_kv_last_page_len_buffer)
        self.run = self.prefill.run

    def plan(self, indptr, indices, last_page_len, *model, **dtypes):
        self.prefill.plan(torch.arange(len(indptr), dtype=torch.int32), indptr, indices, last_page_len, *model, **dtypes)


def merge_state_in_place(v, s, v_other, s_other):
    total = torch.logaddexp(s, s_other)
    v.copy_(v.float() * (s - total).exp()[..., None] + v_other.float() * (s_other - total).exp()[..., None])
    s.copy_(total)


class Cascade:
    """MultiLevelCascadeAttentionWrapper."""

    def __init__(self, num_levels, workspace, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf_arr=None,
                 paged_kv_indptr_buf_arr=None, paged_kv_indices_buf_arr=None, paged_kv_last_page_len_buf_arr=None):
        columns = (qo_indptr_buf_arr, paged_kv_indptr_buf_arr, paged_kv_indices_buf_arr, paged_kv_last_page_len_buf_arr)
        buffers = list(zip(*columns)) if use_cuda_graph else [(None,) * 4] * num_levels
        assert len(buffers) == num_levels
        self.levels = [Prefill(workspace, kv_layout, use_cuda_graph, *level) for level in buffers]

    def plan(self, queries, indptr, indices, last, *model, **dtypes):
        for level, *given in zip(self.levels, queries, indptr, indices, last):
            level.plan(*given, *model, **dtypes)

    def run(self, q, cache):
        out, lse = self.levels[-1].run(q, cache, return_lse=True)
        for level in self.levels[:-1]:
            merge_state_in_place(out, lse, *level.run(q, cache, return_lse=True))
        return out


@unittest.skipUnless(torch, "PyTorch is not installed")
class Arms(unittest.TestCase):
    def setUp(self):
        stand_in = types.SimpleNamespace(
            BatchDecodeWithPagedKVCacheWrapper=Decode, BatchPrefillWithPagedKVCacheWrapper=Prefill,
            MultiLevelCascadeAttentionWrapper=Cascade, merge_state_in_place=merge_state_in_place)
        for name, value in (("load", lambda: stand_in), ("WORKSPACE_BYTES", 16)):
            patch = mock.patch.object(flashinfer_arms, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        patch = mock.patch.object(batches.timing, "COLD_BYTES", 1)  # one copy does
        patch.start()
        self.addCleanup(patch.stop)

    def batch(self, nodes, tokens):
        workload = {"name": "w", "nodes": nodes, "tokens": tokens, "page": 16}
        return batches.Batch(trees.make_tree(workload, "8/2", head_dim=32), torch.device("cpu"))

    def test_every_set_up_computes_the_step(self):
        for nodes, tokens in (([1, 6], [40, 21]), ([2, 3, 7], [32, 16, 9]), ([1, 2, 2, 9], [5, 5, 70, 1]), ([1, 4], [32, 0])):
            batch = self.batch(nodes, tokens)
            for steps in (flashinfer_arms.decode_steps(batch), flashinfer_arms.cascade_steps(batch, "auto"),
                          flashinfer_arms.cascade_steps(batch, "fa2")):
                for step in steps:
                    self.assertEqual(set(step.captures), {"this step", "graphs"})
                    step.plan()  # again, as it is timed
                    for run in (step.run, *step.captures.values()):
                        for _ in range(2):  # outputs that are kept are written anew
                            with self.subTest(nodes=nodes, form=step.form):
                                self.assertLess(step.worst_error(step.unfold(run(0))), batches.TOLERANCE)

    def test_flat_batches_have_no_cascade(self):
        self.assertEqual(list(flashinfer_arms.cascade_steps(self.batch([5], [90]), "auto")), [])
        self.assertEqual(len(list(flashinfer_arms.cascade_steps(self.batch([1, 5], [64, 9]), "fa2"))), 1)


if __name__ == "__main__":
    unittest.main()
