# SPDX-License-Identifier: MIT
"""Tokens/s of decoding requests that share a long prompt, in Transformers: transformers_tokens.py ARM:REQUESTS...

A model of Llama's shape with random weights (1.2e9 parameters: 16 layers, 32/8 heads of 64) decodes greedily. Arms:

capillary (PagedCache), sdpa, sdpa-static, eager (dense caches): the shared prompt is prefilled once and its cache
repeated for every request, so that they begin alike, and only decode steps are timed; as many as fit into --seconds,
judged by two before, and at most --tokens.
batch-capillary, batch-sdpa, batch-flash: generate_batch, timed whole, prompts and all, after a small one.

Prints one JSON object an arm, as soon as it is known; one that failed has an "error". A step is the plain forward pass:
no graphs, so that what a step costs the host is in it for every arm alike.
"""

import argparse
import gc
import json
import sys
import time

import torch
import transformers
from transformers import DynamicCache, GenerationConfig, LlamaConfig, LlamaForCausalLM, StaticCache

from capillary.integrations.transformers import PagedCache, explain, register

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # the CPU only to see that this works
WARM_STEPS, TRIAL_STEPS = 3, 2


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def make_model(layers):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=32000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers,
                         num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=8192)
    with torch.device(DEVICE):
        return LlamaForCausalLM(config).bfloat16().eval()


def repeated_cache(model, arm, requests, shared, tokens):
    """The cache of one prompt, prefilled, for so many requests."""
    prompt = torch.randint(0, 32000, (1, shared), device=DEVICE)
    cache = PagedCache(model.config, prompt) if arm == "capillary" else DynamicCache(config=model.config)
    model(input_ids=prompt, past_key_values=cache, logits_to_keep=1)
    if arm != "sdpa-static":
        cache.batch_repeat_interleave(requests)
        return cache
    static = StaticCache(config=model.config, max_cache_len=shared + tokens + WARM_STEPS + TRIAL_STEPS)
    for index, layer in enumerate(cache.layers):
        static.update(layer.keys.expand(requests, -1, -1, -1), layer.values.expand(requests, -1, -1, -1), index)
    return static


@torch.no_grad()
def steps(model, arm, requests, options):
    """(seconds, tokens a request) of decode steps."""
    model.set_attn_implementation(arm.removesuffix("-static"))
    cache = repeated_cache(model, arm, requests, options.shared, options.tokens)
    ids = torch.randint(0, 32000, (requests, 1), device=DEVICE)
    position = options.shared

    def decode(count):
        nonlocal ids, position
        wait()
        begin = time.perf_counter()
        for _ in range(count):
            positions = torch.full((requests, 1), position, device=DEVICE)
            logits = model(input_ids=ids, position_ids=positions, past_key_values=cache).logits
            ids = logits[:, -1].argmax(-1, keepdim=True)
            position += 1
        wait()
        return time.perf_counter() - begin

    decode(WARM_STEPS)
    a_step = decode(TRIAL_STEPS) / TRIAL_STEPS
    count = max(min(options.tokens, int(options.seconds / a_step)), 4)
    return decode(count), count


@torch.no_grad()
def batch(model, arm, requests, options):
    """(seconds, tokens a request) of generate_batch from prompts to the last token."""
    model.set_attn_implementation({"batch-capillary": "paged|capillary", "batch-sdpa": "paged|sdpa",
                                   "batch-flash": "paged|flash_attention_2"}[arm])
    generator = torch.Generator().manual_seed(0)

    def generate(requests, shared, tokens):
        system = torch.randint(0, 32000, (shared,), generator=generator).tolist()
        prompts = [system + torch.randint(0, 32000, (8,), generator=generator).tolist() for _ in range(requests)]
        config = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
        engine = transformers.ContinuousBatchingConfig(
            block_size=256, num_blocks=2 * requests + 4 * (shared // 256 + 2), max_batch_tokens=max(4096, requests))
        begin = time.perf_counter()
        outputs = model.generate_batch(prompts, generation_config=config, continuous_batching_config=engine)
        wait()
        seconds = time.perf_counter() - begin
        made = sum(len(output.generated_tokens) for output in outputs.values())
        if made != requests * tokens:
            raise RuntimeError(f"{made} tokens were made, {requests * tokens} were asked for")
        return seconds

    generate(2, 256, 4)
    return generate(requests, options.shared, options.tokens), options.tokens


def measured(model, arm, requests, options):
    """What is printed of one arm."""
    result = {"arm": arm, "requests": requests, "shared": options.shared}
    try:
        seconds, tokens = (batch if arm.startswith("batch-") else steps)(model, arm, requests, options)
    except Exception as error:  # the other arms are worth having all the same
        return result | {"error": f"{type(error).__name__}: {error}"[:500]}
    result |= {"tokens_s": round(requests * tokens / seconds, 1), "ms_a_step": round(seconds / tokens * 1e3, 2),
               "steps": tokens, "layers": options.layers, "torch": torch.__version__,
               "transformers": transformers.__version__}
    if DEVICE == "cuda":
        result |= {"memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1),
                   "gpu": torch.cuda.get_device_name()}
    if "capillary" in arm:
        explanation = explain()
        result |= {"path": explanation.path, "sharing": round(explanation.sharing, 2),
                   "cluster_size": explanation.cluster_size, "profile": explanation.profile_where}
    return result


def arm_and_requests(text):
    arm, _, requests = text.partition(":")
    return arm, int(requests)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arms", nargs="+", type=arm_and_requests, metavar="ARM:REQUESTS")
    parser.add_argument("--shared", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--layers", type=int, default=16)
    options = parser.parse_args()
    register()
    model = make_model(options.layers)
    failed = False
    for arm, requests in options.arms:
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
        result = measured(model, arm, requests, options)
        failed |= "error" in result
        print(json.dumps(result), flush=True)
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
    sys.exit(failed)


if __name__ == "__main__":
    main()
