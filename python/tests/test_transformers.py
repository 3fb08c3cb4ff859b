# SPDX-License-Identifier: MIT
"""attn_implementation="capillary" on small models with random weights, against Transformers' own sdpa.

Logits are compared token by token along the reference's own sequence, over 64 tokens: free running generation would
compare two texts as soon as one near-tie falls the other way.
"""

import pytest
from conftest import DEVICE

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.0")

from transformers import (  # noqa: E402
    LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
    Qwen3ForCausalLM)

import capillary  # noqa: E402
from capillary.integrations.transformers import PagedCache, explain, register  # noqa: E402

register()
if DEVICE == "cpu":
    torch.set_num_threads(1)  # models so small only wait for each other's threads

NUM_TOKENS = 64
SHAPE = {"vocab_size": 256, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 1024}
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SHAPE)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SHAPE)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SHAPE)),
    "mistral": (MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=None)),
}


def make_model(family="llama", dtype=torch.bfloat16):
    torch.manual_seed(0)
    kind, config = FAMILIES[family]
    return kind(config).to(DEVICE, dtype).eval()


def make_prompts(num=4, shared=384):
    """Prompts with a common beginning, long enough for sharing to pay: a list of lists."""
    generator = torch.Generator().manual_seed(1)
    system = torch.randint(0, 256, (shared,), generator=generator).tolist()
    return [system + torch.randint(0, 256, (4 + 5 * i,), generator=generator).tolist() for i in range(num)]


def pad(prompts):
    """(input_ids, attention_mask), padded on the left."""
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt):] = torch.tensor(prompt)
        mask[row, width - len(prompt):] = 1
    return ids.to(DEVICE), mask.to(DEVICE)


def generate(model, implementation, ids, mask, cache=None, **options):
    model.set_attn_implementation(implementation)
    options = {"max_new_tokens": NUM_TOKENS, "min_new_tokens": NUM_TOKENS, "do_sample": False, "pad_token_id": 0,
               "return_dict_in_generate": True} | options
    return model.generate(input_ids=ids, attention_mask=mask, past_key_values=cache, **options)


@torch.no_grad()
def forced_logits(model, implementation, ids, mask, continuation, cache=None):
    """Logits of every step when the continuation is fed token by token: [steps, batch, vocabulary]."""
    model.set_attn_implementation(implementation)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    output = model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
    logits, cache = [output.logits[:, -1].float()], output.past_key_values
    last = positions[:, -1:]
    for step in range(continuation.shape[1] - 1):
        mask = torch.cat((mask, torch.ones_like(mask[:, :1])), dim=1)
        last = last + 1
        output = model(input_ids=continuation[:, step:step + 1], attention_mask=mask, position_ids=last,
                       past_key_values=cache, use_cache=True)
        logits.append(output.logits[:, -1].float())
    return torch.stack(logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_match_within_rounding(family):
    model = make_model(family)
    ids, mask = pad(make_prompts())
    continuation = generate(model, "sdpa", ids, mask).sequences[:, ids.shape[1]:]
    ours = forced_logits(model, "capillary", ids, mask, continuation, PagedCache(model.config, ids, mask))
    reference = forced_logits(model, "sdpa", ids, mask, continuation)
    eager = forced_logits(model, "eager", ids, mask, continuation)
    exact = forced_logits(model.float(), "eager", ids, mask, continuation)
    # Rounding, by the measure of the models themselves: as far from fp32 as Transformers' own two kernels are.
    allowed = max((reference - exact).abs().max(), (eager - exact).abs().max())
    assert (ours - exact).abs().max() <= 1.5 * allowed
    assert ours.isfinite().all() and ours.shape[0] == NUM_TOKENS
    explanation = explain()
    assert explanation.path == "shared" and explanation.sharing > 1.5
    assert explanation.num_runs == model.config.num_hidden_layers
    assert explanation.device.startswith(DEVICE)


@pytest.mark.parametrize("options", [
    {}, {"num_return_sequences": 3, "num_beams": 3}, {"num_beams": 4}], ids=["greedy", "samples-of-beams", "beams"])
def test_generation_is_that_of_sdpa(options):
    # fp32 has no near-ties to fall either way; the kernel has no fp32, so that a card compares the logits alone.
    if DEVICE != "cpu":
        pytest.skip("compares texts in fp32, which the CPU alone decodes")
    model = make_model(dtype=torch.float32)
    ids, mask = pad(make_prompts(6, shared=512))  # so much that sharing pays
    reference = generate(model, "sdpa", ids, mask, **options)
    cache = PagedCache(model.config, ids, mask)
    ours = generate(model, "capillary", ids, mask, cache, **options)
    assert torch.equal(reference.sequences, ours.sequences)
    assert cache.explain().path == "shared"


@pytest.mark.parametrize("options", [{"num_return_sequences": 16, "do_sample": True}, {"num_beams": 6}],
                         ids=["samples", "beams"])
def test_samples_and_beams_share_pages(options):
    model = make_model()
    ids, mask = pad(make_prompts(2, shared=1024))  # so much that sharing pays
    cache = PagedCache(model.config, ids, mask)
    generate(model, "capillary", ids, mask, cache, max_new_tokens=32, min_new_tokens=32, **options)
    table, lens = cache.block_table()
    assert len(lens) == 2 * max(options.values())
    forest = capillary.PrefixForest.from_block_table(table, lens, 16)
    assert forest.flat_tokens > 2 * forest.unique_tokens
    explanation = cache.explain()
    assert explanation.path == "shared" and explanation.sharing > 2


def test_parallel_samples_match_along_their_own_text():
    model = make_model()
    ids, mask = pad(make_prompts(2))
    texts = generate(model, "capillary", ids, mask, PagedCache(model.config, ids, mask), num_return_sequences=4,
                     do_sample=True).sequences[:, ids.shape[1]:]
    rows, row_mask = ids.repeat_interleave(4, 0), mask.repeat_interleave(4, 0)
    ours = forced_logits(model, "capillary", rows, row_mask, texts, PagedCache(model.config, ids, mask))
    reference = forced_logits(model, "sdpa", rows, row_mask, texts)
    exact = forced_logits(model.float(), "sdpa", rows, row_mask, texts)
    assert (ours - exact).abs().max() <= 1.5 * (reference - exact).abs().max()


@torch.no_grad()
def beam_logits(model, implementation, ids, mask, cache, beams):
    """Logits of every step of beams: (which row each row goes on from, its next token) after every step."""
    model.set_attn_implementation(implementation)
    last = (mask.cumsum(1) - 1)[:, -1:]
    output = model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0),
                   past_key_values=cache, use_cache=True)
    logits = [output.logits[:, -1].float()]
    for source, tokens in beams:
        output.past_key_values.reorder_cache(source)
        mask, last = torch.cat((mask, torch.ones_like(mask[:, :1])), dim=1), last + 1
        output = model(input_ids=tokens[:, None], attention_mask=mask, position_ids=last,
                       past_key_values=output.past_key_values, use_cache=True)
        logits.append(output.logits[:, -1].float())
    return torch.stack(logits)


def test_beams_match_along_one_search():
    """Beams that die out and fork at random: both sides keep the same ones, whatever their scores would have been."""
    model, width = make_model(), 4
    ids, mask = (tensor.repeat_interleave(width, 0) for tensor in pad(make_prompts(2)))
    generator = torch.Generator().manual_seed(2)
    groups = torch.arange(2).repeat_interleave(width) * width
    beams = [((groups + torch.randint(0, width, groups.shape, generator=generator)).to(DEVICE),
              torch.randint(0, 256, groups.shape, generator=generator).to(DEVICE)) for _ in range(NUM_TOKENS - 1)]
    cache = PagedCache(model.config, ids, mask)
    ours = beam_logits(model, "capillary", ids, mask, cache, beams)
    reference = beam_logits(model, "sdpa", ids, mask, None, beams)
    exact = beam_logits(model.float(), "sdpa", ids, mask, None, beams)
    assert ours.isfinite().all() and ours.shape[0] == NUM_TOKENS
    assert (ours - exact).abs().max() <= 1.5 * (reference - exact).abs().max()
    explanation = cache.explain()
    assert explanation.path == "shared" and explanation.num_runs == model.config.num_hidden_layers
    assert (cache.block_table()[0][:width, 25] == cache.block_table()[0][0, 25]).all()  # of generated tokens, too


@torch.no_grad()
def test_one_prompt_for_many_requests():
    model = make_model()
    prompt = torch.randint(0, 256, (1, 90), device=DEVICE)
    following = torch.randint(0, 256, (5, 4), device=DEVICE)
    logits = {}
    for implementation in ("sdpa", "capillary"):
        model.set_attn_implementation(implementation)
        cache = (PagedCache(model.config, prompt) if implementation == "capillary"
                 else transformers.DynamicCache(config=model.config))
        model(input_ids=prompt, past_key_values=cache)
        cache.batch_repeat_interleave(5)
        for step in range(following.shape[1]):
            positions = torch.full((5, 1), 90 + step, device=DEVICE)
            output = model(input_ids=following[:, step:step + 1], position_ids=positions, past_key_values=cache)
        logits[implementation] = output.logits.float()
    torch.testing.assert_close(logits["capillary"], logits["sdpa"], atol=3e-2, rtol=3e-2)
    table, lens = cache.block_table()
    assert (table[:, :5] == table[0, :5]).all() and (lens == 94).all()
    assert len(set(table[:, 5])) == 5  # the prompt's last, partial page is everybody's own


def test_continuous_batching_shares_blocks():
    if DEVICE == "cpu":
        pytest.importorskip("psutil", reason="Transformers asks it for the memory that is free")
    dtype = torch.float32 if DEVICE == "cpu" else torch.bfloat16
    model = make_model(dtype=dtype)
    prompts = make_prompts(6)
    config = transformers.GenerationConfig(max_new_tokens=24, do_sample=False, eos_token_id=-1, pad_token_id=0)
    engine = transformers.ContinuousBatchingConfig(block_size=16, num_blocks=256, max_batch_tokens=512)
    results = {}
    for implementation in ("paged|sdpa", "paged|capillary"):
        model.set_attn_implementation(implementation)
        outputs = model.generate_batch(prompts, generation_config=config, continuous_batching_config=engine)
        results[implementation] = [output.generated_tokens for output in outputs.values()]
    assert len(results["paged|capillary"]) == len(prompts)
    assert all(len(tokens) == 24 for tokens in results["paged|capillary"])
    if DEVICE == "cpu":
        assert results["paged|capillary"] == results["paged|sdpa"]
    else:
        # bf16: near-ties may fall either way, but not at the first token of a prompt's sdpa prefill.
        same = [a[0] == b[0] for a, b in zip(*results.values())]
        assert sum(same) >= len(same) - 1
    explanation = explain()
    assert explanation.path == "shared" and explanation.sharing > 1.5


def test_a_dense_cache_is_not_passed_off_as_ours(caplog):
    from capillary.integrations import transformers as integration
    integration._said.clear()
    model = make_model()
    ids, mask = pad(make_prompts(2))
    with caplog.at_level("WARNING", "capillary"):
        ours = generate(model, "capillary", ids, mask, max_new_tokens=3, min_new_tokens=3)
    assert [record for record in caplog.records if "PagedCache" in record.message]
    reference = generate(model, "sdpa", ids, mask, max_new_tokens=3, min_new_tokens=3)
    assert torch.equal(ours.sequences, reference.sequences)


def test_what_the_cache_refuses():
    model = make_model()
    ids, mask = pad(make_prompts(2))
    hole = mask.clone()
    hole[0, -3] = 0
    with pytest.raises(ValueError, match="padding_side"):
        PagedCache(model.config, ids, hole)
    with pytest.raises(NotImplementedError, match="sliding"):
        PagedCache(MistralConfig(**SHAPE, sliding_window=64), ids, mask)
    with pytest.raises(ValueError, match="page_size is 0"):
        PagedCache(model.config, ids, mask, page_size=0)
    cache = PagedCache(model.config, ids[:1], mask[:1])
    with pytest.raises(ValueError, match="no step has run"):
        cache.explain()
    with pytest.raises(ValueError, match="input_ids that the cache was made with"):
        generate(model, "capillary", ids[:, 1:], mask[:, 1:], cache)
    cache = PagedCache(model.config, ids, mask)
    generate(model, "capillary", ids, mask, cache, max_new_tokens=2, min_new_tokens=2)
    with pytest.raises(NotImplementedError, match="must be one a step"):
        model(input_ids=ids[:, :4], past_key_values=cache)
