# SPDX-License-Identifier: MIT
"""One decode step of two requests that share two pages, on NumPy arrays."""

import numpy as np

import capillary

block_table = np.array([[0, 1, 2, -1], [0, 1, 3, 4]], np.int32)  # pages of every request; 0 and 1 are shared
seq_lens = np.array([40, 60], np.int32)  # tokens
k_cache = np.random.standard_normal((5, 16, 2, 64)).astype(np.float32)  # [pages, page_size, kv_heads, head_dim]
v_cache = np.random.standard_normal((5, 16, 2, 64)).astype(np.float32)
q = np.random.standard_normal((2, 8, 64)).astype(np.float32)  # [requests, q_heads, head_dim]
out = capillary.decode(q, k_cache, v_cache, block_table, seq_lens)
print(out.shape, capillary.explain(), sep="\n")
