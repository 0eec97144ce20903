"""The torch functions with shipped kernels behind them, on the simulator: results, gradients, and which kernels ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sdpalab import (
    UserError,
    attention_with_lse,
    explain,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    no_fallback,
    on_simulator,
    scaled_dot_product_attention,
)

Tensor = torch.Tensor
Function = Callable[..., Any]

Q, K = (1, 17, 2, 64), (1, 21, 1, 64)


def drawn(*shapes: tuple[int, ...], seed: int = 2) -> list[Tensor]:
    """float16 tensors of multiples of 1/64."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).mul(64).round().div(64).half() for shape in shapes]


def with_gradients(function: Function, *tensors: Tensor) -> list[Tensor]:
    leaves = [each.detach().clone().requires_grad_() for each in tensors]
    out = function(*leaves)
    (weights,) = drawn(tuple(out.shape), seed=9)
    return [out, *torch.autograd.grad(out, leaves, weights.to(out.dtype))]


def agree(given: list[Tensor], right: list[Tensor], most: float = 4e-3) -> None:
    for mine, theirs in zip(given, right, strict=True):
        assert mine.shape == theirs.shape
        assert float((mine.double() - theirs).abs().max()) < most * float(theirs.abs().max().clamp(min=1.0))


@pytest.mark.parametrize("kernel", ["flash_backward", "flash_backward_two_pass"])
@pytest.mark.parametrize("window", [(-1, -1), (5, 2)], ids=["causal", "window"])
def test_dense_attention_and_its_gradients(kernel: str, window: tuple[int, int]) -> None:
    def function(*qkv: Tensor) -> Tensor:
        return flash_attn_func(*qkv, causal=window == (-1, -1), window_size=window)

    tensors = drawn(Q, K, K)
    with on_simulator("flash", kernel) as ran, no_fallback():
        given = with_gradients(function, *tensors)
    assert [name for name, _ in ran.launches] == ["flash", kernel]
    agree(given, with_gradients(function, *(each.double() for each in tensors)))


def test_gradients_are_the_differences_of_the_outputs() -> None:
    """The meaning of ``gradcheck``, in float16: a step of 1/64 of all elements, uphill."""
    tensors = drawn(Q, K, K)
    (weights,) = drawn(Q, seed=9)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> float:
        return float((flash_attn_func(q, k, v, causal=True).double() * weights.double()).sum())

    with on_simulator("flash", "flash_backward"), no_fallback():
        _, *gradients = with_gradients(lambda *qkv: flash_attn_func(*qkv, causal=True), *tensors)
        for place, gradient in enumerate(gradients):
            both = []
            for sign in (1, -1):
                moved = list(tensors)
                moved[place] = moved[place] + sign * gradient.sign() / 64
                both.append(loss(*moved))
            slope, wanted = (both[0] - both[1]) * 32, float(gradient.double().abs().sum())
            assert abs(slope - wanted) < 0.02 * wanted, (place, slope, wanted)


def test_a_forward_kernel_without_one_of_the_gradients_does_not_run() -> None:
    tensors = drawn(Q, K, K)
    with on_simulator("flash") as ran:
        with_gradients(flash_attn_func, *tensors)
        assert ran.launches == []
        with no_fallback(), pytest.raises(UserError, match="kernel flash does not take backward"):
            with_gradients(flash_attn_func, *tensors)
        flash_attn_func(*tensors)
    assert [name for name, _ in ran.launches] == ["flash"]


def test_equal_bits_on_request_exclude_unordered_sums() -> None:
    tensors = drawn(Q, K, K)
    for deterministic, name in ((False, "flash_backward"), (True, "flash_backward_two_pass")):
        with on_simulator("flash", "flash_backward", "flash_backward_two_pass") as ran, no_fallback():
            with_gradients(lambda *qkv: flash_attn_func(*qkv, deterministic=deterministic), *tensors)  # noqa: B023
        assert [each for each, _ in ran.launches] == ["flash", name]


def test_torchs_function_and_the_log_sum_exp() -> None:
    q, k, v = (each.transpose(1, 2) for each in drawn(Q, K, K))

    def function(*qkv: Tensor) -> Tensor:
        return scaled_dot_product_attention(*qkv, is_causal=True, enable_gqa=True)

    def with_lse(*qkv: Tensor) -> Tensor:
        out, lse = attention_with_lse(*qkv, is_causal=True, enable_gqa=True)
        return out * lse[..., None].to(out.dtype)

    for each, count in ((function, 2), (with_lse, 1)):  # torch computes the gradient that arrives by the log-sum-exp
        with on_simulator("flash", "flash_backward") as ran, no_fallback():
            given = with_gradients(each, q, k, v)
        assert len(ran.launches) == count
        agree(given, with_gradients(each, *(tensor.double() for tensor in (q, k, v))), 1e-2)
    with on_simulator("flash"):
        assert explain(q, k, v, None, 0.0, True, None, True).reason.startswith("flash runs on the simulator sm_89")


def test_compiled_code_runs_the_kernels_of_both_passes() -> None:
    def function(*qkv: Tensor) -> Tensor:
        return 2 * flash_attn_func(*qkv, causal=True)

    tensors = drawn(Q, K, K)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    with on_simulator("flash", "flash_backward") as ran, no_fallback():
        given = with_gradients(compiled, *tensors)
    assert [name for name, _ in ran.launches] == ["flash", "flash_backward"]
    agree(given, with_gradients(function, *(each.double() for each in tensors)))


def ends(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def test_packed_sequences() -> None:
    q, k, v = drawn((43, 4, 64), (47, 2, 64), (47, 2, 64))
    arguments = (ends(3, 0, 30, 1), ends(5, 4, 30, 2), 30, 30)

    def function(*qkv: Tensor) -> list[Tensor]:
        out, lse, _ = flash_attn_varlen_func(*qkv, *arguments, causal=True, return_attn_probs=True)
        return [out[:34], lse[:, :34]]

    with on_simulator("flash_varlen") as ran, no_fallback():
        given = function(q, k, v)
    assert [name for name, _ in ran.launches] == ["flash_varlen"]
    agree(given, function(*(each.double() for each in (q, k, v))))
    # Another number of rows has the same plan, and so the same problem.
    with on_simulator("flash_varlen") as ran:
        for rows in (40, 42, 43):
            flash_attn_varlen_func(q[:rows], k, v, *arguments, causal=True)
    assert len({problem for _, problem in ran.launches}) == 1


@pytest.mark.parametrize("form", ["pages", "one page", "dense", "packed queries"])
def test_a_cache(form: str) -> None:
    size, lengths, columns = 16, torch.tensor([15, 2, 0], dtype=torch.int32), 1 if form == "one page" else 2
    q, new_k, new_v = drawn((3, 1, 4, 64), (3, 1, 2, 64), (3, 1, 2, 64))
    shape = (3, 32, 2, 64) if form == "dense" else (9, size, 2, 64)
    cache = drawn(shape, shape, seed=5)
    table = torch.tensor([[7, 3], [1, 8], [4, -1]], dtype=torch.int32)[:, :columns]
    more: dict[str, Any] = {} if form == "dense" else {"block_table": table}

    def function(dtype: torch.dtype) -> list[Tensor]:
        k, v = (each.to(dtype, copy=True) for each in cache)
        given = (q.to(dtype), k, v, new_k.to(dtype), new_v.to(dtype))
        if form == "packed queries":
            flash_attn_with_kvcache(*given, cache_seqlens=lengths, **more)
            used = {"block_table": table, "seqused_k": lengths + 1}
            return [flash_attn_varlen_func(given[0][:, 0], k, v, ends(1, 1, 1), None, 1, 32, causal=True, **used), k]
        out, lse = flash_attn_with_kvcache(*given, cache_seqlens=lengths, causal=True, return_softmax_lse=True, **more)
        return [out, lse, k]

    with on_simulator("flash_decode") as ran, no_fallback():
        given = function(torch.float16)
    assert {name for name, _ in ran.launches} == {"flash_decode"}
    agree(given, function(torch.float64))


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(UserError, match="there is no kernel 'flesh'"), on_simulator("flesh"):
        pass
    with (
        on_simulator("flash"),
        pytest.raises(UserError, match="on_simulator is active already"),
        on_simulator("flash"),
    ):
        pass
    with no_fallback(), pytest.raises(UserError, match="not on a CUDA GPU"):
        flash_attn_func(*drawn(Q, K, K))
