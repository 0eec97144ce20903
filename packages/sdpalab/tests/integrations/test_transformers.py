"""Small random models of transformers: their logits, tokens and gradients with the lab's attention against eager's."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import pytest
import torch

import sdpalab
from sdpalab.integrations import transformers as integration

transformers: Any = None
"""Imported by the first test: it takes seconds, and each worker of pytest-xdist imports every module of tests."""

LAYERS, VOCABULARY, PAD = 2, 64, 0
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": None,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "mistral, no window": lambda: transformers.MistralConfig(**SIZES, sliding_window=None),
    "mistral, a window of 4": lambda: transformers.MistralConfig(**SIZES, sliding_window=4),
    "gemma2, no soft cap": lambda: gemma2(None),
}
LAB = "lab"
"""The name under which the models are tested: transformers holds one with ``sdpa`` in it to a list of its own."""

PROMPT = torch.arange(2, 20).reshape(2, 9)
PADDED = torch.ones(2, 9, dtype=torch.long).index_put((torch.tensor([1, 1, 1]), torch.arange(3)), torch.tensor(0))
"""Mask of the prompts; the second begins with three tokens of padding."""


def gemma2(cap: float | None) -> Any:
    more = {"head_dim": 8, "query_pre_attn_scalar": 9, "sliding_window": 4, "attn_logit_softcapping": cap}
    return transformers.Gemma2Config(**SIZES, **more)


def model_of(config: Any, implementation: str, kind: str = "AutoModelForCausalLM") -> Any:
    """The model with weights from one seed, and a config of its own: two that share one run as the second's."""
    torch.manual_seed(0)
    config = copy.deepcopy(config)
    return getattr(transformers, kind).from_config(config, attn_implementation=implementation).eval()


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[None]:
    global transformers
    reason = "needs transformers: pip install 'sdpalab[transformers]'"
    transformers = pytest.importorskip("transformers", reason=reason)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are so small that several threads mostly wait for each other
    integration.register()
    integration.register(LAB)
    yield
    integration.unregister(LAB)
    integration.unregister()
    torch.set_num_threads(threads)


@cache
def pair(family: str) -> tuple[Any, Any]:
    """One model with eager attention, and the same with the lab's."""
    config = CONFIGS[family]()
    return model_of(config, "eager"), model_of(config, LAB)


def reasons(calls: Any) -> set[str]:
    return {why.reason for why in calls}


@pytest.mark.parametrize("padded", [False, True], ids=["dense", "left-padded"])
@pytest.mark.parametrize("family", CONFIGS)
def test_prefill(family: str, padded: bool) -> None:
    seen = PADDED if padded else torch.ones_like(PROMPT)
    with torch.no_grad(), integration.recorded() as calls:
        eager, ours = (model(PROMPT, attention_mask=seen).logits for model in pair(family))
    assert sum(calls.values()) == LAYERS
    torch.testing.assert_close(ours[seen.bool()], eager[seen.bool()])
    assert (
        "the kernels take no attn_mask: key padding masks and additive bias stay with torch" in reasons(calls)
        or not padded
    )


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("family", ["llama", "mistral, a window of 4"])
def test_generate_with_a_cache_and_padding(family: str, kind: str) -> None:
    asked = {"max_new_tokens": 3, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    with integration.recorded() as calls:
        eager, ours = (
            model.generate(PROMPT, attention_mask=PADDED, cache_implementation=kind, **asked) for model in pair(family)
        )
    assert sum(calls.values()) == 3 * LAYERS
    assert torch.equal(ours.sequences, eager.sequences)
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(eager.logits))


@pytest.mark.parametrize("static", [False, True], ids=["growing cache", "static cache"])
@pytest.mark.parametrize("parts", [(9,), (4, 1, 4)], ids=str)
@pytest.mark.parametrize("family", CONFIGS)
def test_prefill_in_parts(family: str, parts: tuple[int, ...], static: bool) -> None:
    eager, ours = pair(family)
    with torch.no_grad():
        whole = eager(PROMPT).logits
        cache = transformers.StaticCache(ours.config, max_cache_len=16) if static else transformers.DynamicCache()
        logits, start = [], 0
        for part in parts:
            where = torch.arange(start, start + part)
            more = {"past_key_values": cache, "position_ids": where[None], "cache_position": where, "use_cache": True}
            logits.append(ours(PROMPT[:, start : start + part], **more).logits)
            start += part
    torch.testing.assert_close(torch.cat(logits, dim=1), whole)


@pytest.mark.parametrize("family", ["llama", "gemma2, no soft cap"])
def test_gradients(family: str) -> None:
    # The first token that is seen is not predicted: what comes before it is padding, where attention may be anything.
    labels = PROMPT.where(PADDED.bool() & PADDED.roll(1, 1).bool(), -100)
    for model in pair(family):
        model.zero_grad()
        model(PROMPT, attention_mask=PADDED, labels=labels).loss.backward()
    eager, ours = (dict(model.named_parameters()) for model in pair(family))
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter.grad, eager[name].grad, msg=lambda text, name=name: f"{name}: {text}")


PROMPTS = [[2, 3, 4, 5], [6, 7], [8, 9, 10, 11, 12, 13, 14], [15], [16, 17, 18, 19]]


@pytest.fixture
def in_place_of_sdpa() -> Iterator[None]:
    interfaces = transformers.AttentionInterface(), transformers.AttentionMaskInterface()
    theirs = [interface["sdpa"] for interface in interfaces]
    integration.register("sdpa", replace=True)
    integration.register("sdpa", replace=True)
    yield
    integration.unregister("sdpa")
    assert [interface["sdpa"] for interface in interfaces] == theirs


@pytest.mark.parametrize("window", [None, 3])
def test_continuous_batching_with_a_paged_cache(window: int | None, in_place_of_sdpa: None) -> None:
    if not hasattr(transformers, "ContinuousBatchingConfig"):
        pytest.skip("this transformers has no configuration of continuous batching")
    # With large weights each token depends on the keys that attention sees.
    sizes = {**SIZES, "initializer_range": 1.0}
    family = transformers.LlamaConfig if window is None else partial(transformers.MistralConfig, sliding_window=window)
    eager, served = (model_of(family(**sizes), name) for name in ("eager", "sdpa"))
    few = transformers.ContinuousBatchingConfig(num_blocks=8, block_size=4, max_batch_tokens=8)
    config = transformers.GenerationConfig(max_new_tokens=5, do_sample=False, eos_token_id=-1, pad_token_id=PAD)
    with integration.recorded() as calls:
        outputs = served.generate_batch(PROMPTS, generation_config=config, continuous_batching_config=few)
    assert {why.reason for why in calls} == {"the tensors are not on a CUDA GPU"}
    assert sum(calls.values()) > 5 * LAYERS  # the prompts do not fit into one batch
    tokens = {tuple(each.prompt_ids): each.generated_tokens for each in outputs.values()}
    for prompt in PROMPTS:
        right = eager.generate(torch.tensor([prompt]), max_new_tokens=5, do_sample=False)[0, len(prompt) :].tolist()
        assert tokens[tuple(prompt)] == right


def test_without_the_mask_interface_a_padded_batch_is_wrong() -> None:
    config = CONFIGS["llama"]()
    transformers.AttentionInterface.register("maskless", integration.attention)
    try:
        with torch.no_grad():
            eager, maskless, ours = (
                model_of(config, name)(PROMPT, attention_mask=PADDED).logits[1, 3:]
                for name in ("eager", "maskless", "sdpalab")
            )
    finally:
        transformers.AttentionInterface._global_mapping.pop("maskless")
    torch.testing.assert_close(ours, eager)
    assert (maskless - eager).abs().max() > 1e-3


def test_an_encoder_and_the_attention_to_it_see_every_key() -> None:
    config = transformers.BartConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=64,
        pad_token_id=PAD,
    )
    eager, ours = (model_of(config, name, "AutoModelForSeq2SeqLM") for name in ("eager", "sdpalab"))
    for seen in (torch.ones_like(PROMPT), PADDED.flip(1)):
        asked = {"attention_mask": seen, "decoder_input_ids": PROMPT[:, :7]}
        with torch.no_grad(), integration.recorded() as calls:
            torch.testing.assert_close(ours(PROMPT, **asked).logits, eager(PROMPT, **asked).logits)
        assert sum(calls.values()) == 3 * LAYERS


def test_a_relative_position_bias_is_added() -> None:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=32, num_layers=LAYERS, num_heads=4, pad_token_id=PAD
    )
    eager, ours = (model_of(config, name, "AutoModelForSeq2SeqLM") for name in ("eager", "sdpalab"))
    asked = {"attention_mask": PADDED, "decoder_input_ids": PROMPT[:, :7]}
    with torch.no_grad(), integration.recorded() as calls:
        torch.testing.assert_close(ours(PROMPT, **asked).logits, eager(PROMPT, **asked).logits)
    if not calls:
        pytest.skip(f"T5 of transformers {transformers.__version__} has no attention but its own")
    assert sum(calls.values()) == 3 * LAYERS


def test_a_soft_cap_is_refused() -> None:
    model = model_of(gemma2(50.0), LAB)
    with pytest.raises(sdpalab.UserError, match=r"Gemma2Attention uses softcap, .* 'eager'"):
        model(PROMPT)
    with pytest.raises(ValueError, match=r"uses softcap|does not support an attention implementation through torch"):
        model_of(gemma2(50.0), "sdpalab")(PROMPT)


def test_no_fallback_holds_within_a_model() -> None:
    model = model_of(CONFIGS["llama"](), "sdpalab")
    with torch.no_grad(), sdpalab.no_fallback(), pytest.raises(sdpalab.UserError, match="not on a CUDA GPU"):
        model(PROMPT)


def test_registering_twice_is_once_and_unregistering_ends_it() -> None:
    integration.register()
    assert transformers.AttentionInterface()["sdpalab"] is integration.attention
    assert transformers.AttentionMaskInterface()["sdpalab"] is integration.mask
    integration.unregister()
    integration.unregister()
    assert "sdpalab" not in transformers.AttentionInterface()
    with pytest.raises(ValueError, match="sdpalab"):
        model_of(CONFIGS["llama"](), "sdpalab")
    integration.register()


@pytest.mark.parametrize("name", ["sdpa", "eager", "flash_attention_2"])
def test_the_names_of_transformers_stay_its_own(name: str) -> None:
    before = dict(transformers.AttentionInterface()), dict(transformers.AttentionMaskInterface())
    for change in (integration.register, integration.unregister):
        with pytest.raises(sdpalab.UserError, match=f"already has an attention implementation '{name}'"):
            change(name)
    assert before == (dict(transformers.AttentionInterface()), dict(transformers.AttentionMaskInterface()))
