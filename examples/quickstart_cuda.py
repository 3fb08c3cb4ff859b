# SPDX-License-Identifier: MIT
"""The decode step of quickstart.py on a Hopper GPU, on PyTorch tensors and PyTorch's current stream."""

import torch

import capillary

block_table = torch.tensor([[0, 1, 2, -1], [0, 1, 3, 4]], dtype=torch.int32, device="cuda")
seq_lens = torch.tensor([40, 60], dtype=torch.int32)  # here or on the GPU
k_cache = torch.randn(5, 16, 2, 64, dtype=torch.bfloat16, device="cuda")
v_cache = torch.randn_like(k_cache)
q = torch.randn(2, 8, 64, dtype=torch.bfloat16, device="cuda")
out = capillary.decode(q, k_cache, v_cache, block_table, seq_lens)
print(out.shape, capillary.explain(), sep="\n")
