# SPDX-License-Identifier: MIT
"""How an engine embeds Capillary: pages from a radix cache, one plan a step, one run a layer.

Three requests with a common system prompt decode eight tokens; the keys and values are random. Uses PyTorch on a CUDA
device where both are there, NumPy otherwise.
"""

import numpy as np

import capillary

LAYERS, Q_HEADS, KV_HEADS, DIM, PAGE_SIZE, PAGES = 2, 8, 2, 64, 16, 64

try:
    import torch
    device = "cuda" if capillary.is_supported(DIM)[0] and torch.cuda.is_available() else "cpu"
except ImportError:
    device = "cpu"
rng = np.random.default_rng(0)


def random_array(*shape):
    """Stands for what the model computes."""
    values = rng.standard_normal(shape).astype(np.float16)
    return values if device == "cpu" else torch.from_numpy(values).to(device)


# Prompts: the cache gives equal prefixes the same pages, in whole pages.
pool = capillary.RadixCache(PAGES, PAGE_SIZE)
system = rng.integers(0, 1000, 64)
tokens = [np.concatenate((system, rng.integers(0, 1000, n))).astype(np.int32) for n in (5, 12, 30)]
pages = []
for prompt in tokens:
    _, shared = pool.match_prefix(prompt)
    own = pool.allocate_pages(-(-len(prompt) // PAGE_SIZE) - len(shared))
    whole = len(prompt) // PAGE_SIZE
    node, owned, _ = pool.insert(prompt, np.array((shared + own)[:whole], np.int32))
    pool.lock(node)  # until the request ends
    pages.append(owned + (shared + own)[whole:])
caches = [(random_array(PAGES, PAGE_SIZE, KV_HEADS, DIM), random_array(PAGES, PAGE_SIZE, KV_HEADS, DIM))
          for _ in range(LAYERS)]

planner = capillary.Planner(Q_HEADS, KV_HEADS, DIM, dtype="float16", device=device)
table = np.full((len(tokens), 16), -1, np.int32)
seq_lens = np.array([len(prompt) for prompt in tokens], np.int32)
for row, ids in enumerate(pages):
    table[row, :len(ids)] = ids
for step in range(8):
    for row in range(len(seq_lens)):
        if seq_lens[row] % PAGE_SIZE == 0:
            table[row, seq_lens[row] // PAGE_SIZE] = pool.allocate_pages(1)[0]
    seq_lens += 1
    # From host copies: nothing here waits for the device.
    rows = np.arange(len(seq_lens), dtype=np.int32) if step > 0 else None
    planner.update(table, seq_lens, PAGE_SIZE, previous_row=rows)
    device_table = table if device == "cpu" else torch.from_numpy(table).to(device)
    for k_cache, v_cache in caches:
        q = random_array(len(seq_lens), Q_HEADS, DIM)
        out = planner.run(q, k_cache, v_cache, device_table)
print(planner.explain())
