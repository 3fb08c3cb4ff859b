# SPDX-License-Identifier: MIT
"""The tensors of one step, shared by all peers, and the plain attention that each is checked against first."""
import math

import torch

import timing

# As tools/device: relative Frobenius error of a row.
TOLERANCE = 1.5e-2
CHECKED_QUERIES = 48


class Batch:
    """Random bf16 data of a tree. caches[c] is copy c of (K, V), each [pages, kv_heads, page_size, head_dim] (HND)."""

    def __init__(self, tree, device, seed=1):
        self.tree = tree
        self.device = device
        self.bytes_of_one = tree.num_pages * tree.page_size * tree.token_bytes
        self.copies = timing.num_copies(self.bytes_of_one)
        generator = torch.Generator(device).manual_seed(seed)
        shape = (tree.num_pages, tree.kv_heads, tree.page_size, tree.head_dim)

        def normal(*dims):
            return torch.randn(*dims, device=device, dtype=torch.bfloat16, generator=generator)

        self.q = normal(tree.num_requests, tree.q_heads, tree.head_dim)
        first = (normal(*shape), normal(*shape))
        self.caches = [first] + [tuple(part.clone() for part in first) for _ in range(self.copies - 1)]
        self.references = {}
        self.table = torch.tensor(tree.rows(), dtype=torch.int32, device=device).view(tree.num_requests, -1)

    def keys_of(self, page_ids, num_tokens, copy=0):
        """K and V of consecutive pages, contiguous: [..., kv_heads, num_tokens, head_dim]."""
        tree, ids = self.tree, page_ids.long()
        parts = []
        for cache in self.caches[copy]:
            gathered = cache[ids]  # [..., pages, kv_heads, page_size, head_dim]
            gathered = gathered.movedim(-3, -4)
            shape = (*ids.shape[:-1], tree.kv_heads, ids.shape[-1] * tree.page_size, tree.head_dim)
            parts.append(gathered.reshape(shape)[..., :num_tokens, :].contiguous())
        return parts

    def checked_queries(self):
        rows, count = self.tree.num_requests, min(self.tree.num_requests, CHECKED_QUERIES)
        return [i * (rows - 1) // max(count - 1, 1) for i in range(count)]

    def reference(self, page_ids_of, num_tokens):
        """fp32 attention of the checked queries over num_tokens of the pages that page_ids_of(query) gives:
        [checked queries, q_heads, head_dim]. Kept: all peers are held against the same."""
        tree = self.tree
        if num_tokens not in self.references:
            wants = []
            for query in self.checked_queries():
                k, v = (part.float() for part in self.keys_of(page_ids_of(query), num_tokens))
                q = self.q[query].float().view(tree.kv_heads, tree.group, tree.head_dim)
                weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(tree.head_dim), dim=-1)
                wants.append((weights @ v).view(tree.q_heads, tree.head_dim))
            self.references[num_tokens] = torch.stack(wants)
        return self.references[num_tokens]

    def worst_error(self, out, page_ids_of=None, num_tokens=None):
        """Largest relative error of a (query, head) row of out [requests, q_heads, head_dim] against fp32 attention over
        the query's own pages, or over those that page_ids_of(query) gives. NaN counts as infinite."""
        want = self.reference(page_ids_of or (lambda query: self.table[query]), num_tokens or self.tree.seq_len)
        got = out[torch.tensor(self.checked_queries(), device=self.device)].float()
        error = float(((got - want).norm(dim=-1) / want.norm(dim=-1)).max())
        return error if error == error else math.inf
