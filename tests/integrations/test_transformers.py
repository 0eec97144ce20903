"""Small random models of transformers: their logits, tokens and gradients with the lab's attention against eager's."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import sdpalab
from sdpalab.integrations import transformers as integration

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'sdpalab[transformers]'")

LAYERS, VOCABULARY, PAD = 2, 64, 0
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
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
"""What is seen of the prompt where the second begins with three tokens of padding."""


def gemma2(cap: float | None) -> Any:
    more = {"head_dim": 16, "query_pre_attn_scalar": 9, "sliding_window": 4, "attn_logit_softcapping": cap}
    return transformers.Gemma2Config(**SIZES, **more)


def model_of(config: Any, implementation: str) -> Any:
    """The model with weights from one seed, and a config of its own: two that share one run as the second's."""
    torch.manual_seed(0)
    config = copy.deepcopy(config)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    integration.register()
    integration.register(LAB)
    yield
    integration.unregister(LAB)
    integration.unregister()


@pytest.fixture(params=list(CONFIGS))
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """One model with eager attention, and the same with the lab's."""
    config = CONFIGS[request.param]()
    return model_of(config, "eager"), model_of(config, LAB)


def reasons(calls: Any) -> set[str]:
    return {why.reason for why in calls}


@pytest.mark.parametrize("padded", [False, True], ids=["dense", "left-padded"])
def test_prefill(pair: tuple[Any, Any], padded: bool) -> None:
    seen = PADDED if padded else torch.ones_like(PROMPT)
    with torch.no_grad(), integration.recorded() as calls:
        eager, ours = (model(PROMPT, attention_mask=seen).logits for model in pair)
    assert sum(calls.values()) == LAYERS
    torch.testing.assert_close(ours[seen.bool()], eager[seen.bool()])
    assert "the kernels take no attn_mask" in reasons(calls) or not padded


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_with_a_cache_and_padding(pair: tuple[Any, Any], cache: str) -> None:
    asked = {"max_new_tokens": 5, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    with integration.recorded() as calls:
        eager, ours = (
            model.generate(PROMPT, attention_mask=PADDED, cache_implementation=cache, **asked) for model in pair
        )
    assert sum(calls.values()) == 5 * LAYERS
    assert torch.equal(ours.sequences, eager.sequences)
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(eager.logits))


@pytest.mark.parametrize("static", [False, True], ids=["growing cache", "static cache"])
@pytest.mark.parametrize("parts", [(9,), (4, 5), (4, 1, 4), (1, 8)], ids=str)
def test_prefill_in_parts(pair: tuple[Any, Any], parts: tuple[int, ...], static: bool) -> None:
    eager, ours = pair
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


def test_gradients(pair: tuple[Any, Any]) -> None:
    for model in pair:
        model(PROMPT, attention_mask=PADDED, labels=PROMPT.where(PADDED.bool(), -100)).loss.backward()
    eager, ours = (dict(model.named_parameters()) for model in pair)
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter.grad, eager[name].grad, msg=lambda text, name=name: f"{name}: {text}")


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


def test_an_encoder_sees_both_ways() -> None:
    sizes = {name: SIZES[name] for name in SIZES if name not in ("num_key_value_heads", "eos_token_id")}
    config = transformers.BertConfig(**sizes)
    right_padded = PADDED.flip(1)
    for seen in (torch.ones_like(PROMPT), right_padded):
        outputs = []
        for name in ("eager", "sdpalab"):
            torch.manual_seed(0)
            model = transformers.AutoModel.from_config(copy.deepcopy(config), attn_implementation=name).eval()
            with torch.no_grad(), integration.recorded() as calls:
                outputs.append(model(PROMPT, attention_mask=seen).last_hidden_state[seen.bool()])
            assert sum(calls.values()) == (LAYERS if name == "sdpalab" else 0)
        torch.testing.assert_close(*outputs)


def test_a_relative_position_bias_is_added() -> None:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=32, num_layers=LAYERS, num_heads=4, pad_token_id=PAD
    )
    outputs = []
    for name in ("eager", "sdpalab"):
        torch.manual_seed(0)
        try:
            model = transformers.AutoModelForSeq2SeqLM.from_config(copy.deepcopy(config), attn_implementation=name)
        except ValueError as error:
            pytest.skip(f"T5 of transformers {transformers.__version__} takes no other attention: {error}")
        with torch.no_grad():
            outputs.append(model.eval()(PROMPT, attention_mask=PADDED, decoder_input_ids=PROMPT[:, :7]).logits)
    torch.testing.assert_close(*outputs)


def test_a_soft_cap_is_refused() -> None:
    model = model_of(gemma2(50.0), LAB)
    with pytest.raises(sdpalab.UserError, match=r"Gemma2Attention asks for softcap, .* 'eager'"):
        model(PROMPT)
    with pytest.raises(
        ValueError, match=r"asks for softcap|does not support an attention implementation through torch"
    ):
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


@pytest.mark.parametrize("name", ["sdpa", "eager", "flash_attention_2"])
def test_the_names_of_transformers_stay_its_own(name: str) -> None:
    before = dict(transformers.AttentionInterface()), dict(transformers.AttentionMaskInterface())
    for change in (integration.register, integration.unregister):
        with pytest.raises(sdpalab.UserError, match=f"already has an attention implementation '{name}'"):
            change(name)
    assert before == (dict(transformers.AttentionInterface()), dict(transformers.AttentionMaskInterface()))
