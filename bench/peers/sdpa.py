# SPDX-License-Identifier: MIT
"""PyTorch's scaled_dot_product_attention on contiguous copies of the caches, by cuDNN and by FlashAttention. The copies
are made beforehand and cost nothing here.

Whole steps: every request alone, [requests, kv_heads, group, head_dim] queries, the query heads of a KV head as so many
rows, which reads each key once; and the same with enable_gqa, if the backend takes it. The faster counts.
Shared prefixes: rows of all requests on the root's keys as one long sequence, without the leaves."""
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import timing
from arm import Absent, Step

BACKENDS = {"sdpa_cudnn": SDPBackend.CUDNN_ATTENTION, "sdpa_flash": SDPBackend.FLASH_ATTENTION,
            "sdpa_math": SDPBackend.MATH}
# Of all rows' keys, the root's part from which a workload is as good as one long sequence.
ROOT_SHARE = 0.9
ROOT_ROWS = 128


def attend(backend, q, k, v, gqa):
    with sdpa_kernel(backend):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=gqa)


def require_memory(batch, bytes_needed):
    if batch.device.type != "cuda":
        return
    torch.cuda.empty_cache()  # what earlier peers gave back counts as free only then
    free, _ = torch.cuda.mem_get_info(batch.device)
    if bytes_needed > 0.85 * free:
        raise Absent(f"contiguous copies need {bytes_needed / 1e9:.0f} GB, {free / 1e9:.0f} GB are free")


def whole_steps(name, batch):
    """Steps that do all of the batch, one a form."""
    tree = batch.tree
    flat_bytes = tree.flat_tokens * tree.token_bytes
    copies = timing.num_copies(flat_bytes)
    require_memory(batch, flat_bytes * (copies + 1.5))
    caches = [batch.keys_of(batch.table, tree.seq_len, copy % batch.copies) for copy in range(copies)]
    for form in ("rows", "gqa") if tree.group > 1 else ("rows",):
        gqa = form == "gqa"
        q = batch.q.view(tree.num_requests, -1, 1 if gqa else tree.group, tree.head_dim)

        def run(copy, q=q, gqa=gqa):
            return attend(BACKENDS[name], q, *caches[copy], gqa)

        yield Step(form, run, lambda out: out.reshape(tree.num_requests, tree.q_heads, tree.head_dim), copies,
                   flat_bytes, batch.worst_error)


def prefix_steps(name, batch):
    """The step over the root's keys alone, where the root is nearly all there is."""
    tree = batch.tree
    tokens = tree.root_tokens
    rows = tree.num_requests * tree.group
    if tokens < ROOT_SHARE * tree.seq_len or rows < ROOT_ROWS:
        return
    prefix_bytes = tokens * tree.token_bytes
    copies = timing.num_copies(prefix_bytes)
    ids = batch.table[:1, :tokens // tree.page_size]
    caches = [batch.keys_of(ids, tokens, copy % batch.copies) for copy in range(copies)]
    q = batch.q.view(tree.num_requests, tree.kv_heads, tree.group, tree.head_dim)
    q = q.permute(1, 0, 2, 3).reshape(1, tree.kv_heads, rows, tree.head_dim).contiguous()

    def run(copy):
        return attend(BACKENDS[name], q, *caches[copy], False)

    def unfold(out):
        out = out.view(tree.kv_heads, tree.num_requests, tree.group, tree.head_dim)
        return out.permute(1, 0, 2, 3).reshape(tree.num_requests, tree.q_heads, tree.head_dim)

    def worst_error(out):
        return batch.worst_error(out, lambda query: ids[0], tokens)

    yield Step("prefix", run, unfold, copies, prefix_bytes, worst_error,
               flops=4 * rows * tokens * tree.kv_heads * tree.head_dim)
