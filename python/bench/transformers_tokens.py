# SPDX-License-Identifier: MIT
"""Tokens/s of decoding requests that share a long prompt, in Transformers: transformers_tokens.py IMPLEMENTATION REQUESTS

A model of Llama's shape with random weights (1.2e9 parameters: 16 layers, 32/8 heads of 64) decodes greedily. The
shared prompt is prefilled once and its cache repeated for every request, so that the implementations begin alike and
only decode steps are timed. Implementations: capillary (PagedCache), sdpa, sdpa-static, eager (dense caches), and
batch-capillary, batch-sdpa, batch-flash: generate_batch, timed whole. Prints one JSON object.
"""

import argparse
import json
import time

import torch
import transformers
from transformers import DynamicCache, GenerationConfig, LlamaConfig, LlamaForCausalLM, StaticCache

from capillary.integrations.transformers import PagedCache, explain, register


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # the CPU only to see that this works


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def make_model(layers):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=32000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers,
                         num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=8192)
    with torch.device(DEVICE):
        return LlamaForCausalLM(config).bfloat16().eval()


@torch.no_grad()
def steps(model, implementation, requests, shared, tokens):
    """Seconds of `tokens` decode steps after three that are not timed."""
    model.set_attn_implementation(implementation.removesuffix("-static"))
    prompt = torch.randint(0, 32000, (1, shared), device=DEVICE)
    total = shared + tokens + 8
    if implementation == "capillary":
        cache = PagedCache(model.config, prompt)
        model(input_ids=prompt, past_key_values=cache, logits_to_keep=1)
        cache.batch_repeat_interleave(requests)
    else:
        cache = DynamicCache(config=model.config)
        model(input_ids=prompt, past_key_values=cache, logits_to_keep=1)
        if implementation == "sdpa-static":
            static = StaticCache(config=model.config, max_cache_len=total)
            for index, layer in enumerate(cache.layers):
                static.update(layer.keys.expand(requests, -1, -1, -1), layer.values.expand(requests, -1, -1, -1), index)
            cache = static
        else:
            cache.batch_repeat_interleave(requests)
    ids = torch.randint(0, 32000, (requests, 1), device=DEVICE)
    for step in range(tokens + 3):
        if step == 3:
            wait()
            begin = time.perf_counter()
        positions = torch.full((requests, 1), shared + step, device=DEVICE)
        logits = model(input_ids=ids, position_ids=positions, past_key_values=cache).logits
        ids = logits[:, -1].argmax(-1, keepdim=True)
    wait()
    return time.perf_counter() - begin


@torch.no_grad()
def batch(model, implementation, requests, shared, tokens):
    """Seconds of generate_batch from prompts to the last token."""
    model.set_attn_implementation({"batch-capillary": "paged|capillary", "batch-sdpa": "paged|sdpa",
                                   "batch-flash": "paged|flash_attention_2"}[implementation])
    generator = torch.Generator().manual_seed(0)
    system = torch.randint(0, 32000, (shared,), generator=generator).tolist()
    prompts = [system + torch.randint(0, 32000, (8,), generator=generator).tolist() for _ in range(requests)]
    config = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    engine = transformers.ContinuousBatchingConfig(block_size=256, num_blocks=2 * requests + 4 * (shared // 256 + 2),
                                                   max_batch_tokens=max(4096, requests))
    begin = time.perf_counter()
    outputs = model.generate_batch(prompts, generation_config=config, continuous_batching_config=engine)
    wait()
    seconds = time.perf_counter() - begin
    made = sum(len(output.generated_tokens) for output in outputs.values())
    if made != requests * tokens:
        raise RuntimeError(f"{made} tokens were made, {requests * tokens} were asked for")
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("implementation")
    parser.add_argument("requests", type=int)
    parser.add_argument("--shared", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--layers", type=int, default=16)
    arguments = parser.parse_args()
    register()
    model = make_model(arguments.layers)
    timed = batch if arguments.implementation.startswith("batch-") else steps
    seconds = timed(model, arguments.implementation, arguments.requests, arguments.shared, arguments.tokens)
    result = {"implementation": arguments.implementation, "requests": arguments.requests, "shared": arguments.shared,
              "tokens_s": round(arguments.requests * arguments.tokens / seconds, 1),
              "ms_a_step": round(seconds / arguments.tokens * 1e3, 2), "layers": arguments.layers,
              "torch": torch.__version__, "transformers": transformers.__version__}
    if DEVICE == "cuda":
        result |= {"memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1),
                   "gpu": torch.cuda.get_device_name()}
    if "capillary" in arguments.implementation:
        explanation = explain()
        result |= {"path": explanation.path, "sharing": round(explanation.sharing, 2),
                   "cluster_size": explanation.cluster_size, "mode": explanation.mode}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
