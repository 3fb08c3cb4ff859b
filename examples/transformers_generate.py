# SPDX-License-Identifier: MIT
"""Transformers on Capillary: sixteen samples of one prompt share its pages. A small model with random weights."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from capillary.integrations.transformers import PagedCache, explain, register

register()
device = "cuda" if torch.cuda.is_available() else "cpu"
config = LlamaConfig(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                     num_attention_heads=8, num_key_value_heads=2, head_dim=64)
model = LlamaForCausalLM(config).to(device, torch.bfloat16)
model.set_attn_implementation("capillary")

prompt = torch.randint(0, 512, (1, 200), device=device)
cache = PagedCache(config, prompt)
texts = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), past_key_values=cache, do_sample=True,
                       num_return_sequences=16, max_new_tokens=16, pad_token_id=0)
print(texts[:, -16:])
print(explain())
