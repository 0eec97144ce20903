"""Stand-ins for attention libraries that are not installed: each does what its documentation says of the call, only.

They take the documented layout and keywords and no others, align a causal mask as documented, and compute in float64.
An adapter that swaps two axes, forgets the scale or calls by another name gets an error, or a wrong output.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


def attention(
    q: Any,
    k: Any,
    v: Any,
    scale: float,
    causal: bool,
    *,
    bottom_right: bool,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    slopes: Any = None,
) -> Any:
    """[B, H, Sq, D] over [B, Hkv, Skv, D]."""
    group, shift = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2] if bottom_right else 0
    key, value = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = q.double() @ key.transpose(-1, -2) * scale
    rows, keys = torch.arange(q.shape[2])[:, None] + shift, torch.arange(k.shape[2])
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * (rows - keys).abs()
    left, right = window[0], 0 if causal else window[1]
    if right >= 0:
        scores = scores.masked_fill(keys > rows + right, float("-inf"))
    if left >= 0:
        scores = scores.masked_fill(keys < rows - left, float("-inf"))
    return (scores.softmax(-1) @ value).to(q.dtype)


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
) -> Any:
    """FlashAttention: [B, S, H, D]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    extras = {"window": window_size, "softcap": softcap, "slopes": alibi_slopes}
    return attention(q, k, v, softmax_scale, causal, bottom_right=True, **extras).transpose(1, 2)


def flash_attn_func_with_lse(*args: Any, **options: Any) -> Any:
    """Releases that return the LSE as well."""
    return flash_attn_func(*args, **options), None


def single_prefill_with_kv_cache(
    q: Any, k: Any, v: Any, *, causal: bool = False, kv_layout: str = "NHD", sm_scale: float | None = None
) -> Any:
    """FlashInfer: Q [Sq, H, D]; K and V [Skv, Hkv, D], or [Hkv, Skv, D] in the layout HND."""
    assert q.ndim == 3
    k, v = (x if kv_layout == "HND" else x.transpose(0, 1) for x in (k, v))
    out = attention(q.transpose(0, 1)[None], k[None], v[None], sm_scale, causal, bottom_right=True)
    return out[0].transpose(0, 1)


def sageattn(
    q: Any, k: Any, v: Any, tensor_layout: str = "HND", is_causal: bool = False, sm_scale: float | None = None
) -> Any:
    """SageAttention: [B, H, S, D] in the layout HND."""
    assert tensor_layout == "HND"
    return attention(q, k, v, sm_scale, is_causal, bottom_right=False)


class LowerTriangularMask:
    """xformers' causal mask, aligned to the top left."""


def memory_efficient_attention(q: Any, k: Any, v: Any, attn_bias: Any = None, p: float = 0.0, scale: Any = None) -> Any:
    """xformers: [B, S, H, D], as many K/V heads as query heads."""
    assert attn_bias is None or isinstance(attn_bias, LowerTriangularMask)
    assert q.shape[2] == k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return attention(q, k, v, scale, attn_bias is not None, bottom_right=False).transpose(1, 2)


def module(name: str, **contents: Any) -> ModuleType:
    """A module with these contents."""
    created = ModuleType(name)
    vars(created).update(contents)
    return created


LIBRARIES = {
    "fa2": [module("flash_attn"), module("flash_attn.flash_attn_interface", flash_attn_func=flash_attn_func)],
    "fa3": [module("flash_attn_interface", flash_attn_func=flash_attn_func_with_lse)],
    "fa4": [module("flash_attn"), module("flash_attn.cute", flash_attn_func=flash_attn_func_with_lse)],
    "flashinfer": [module("flashinfer", single_prefill_with_kv_cache=single_prefill_with_kv_cache)],
    "sage": [module("sageattention", sageattn=sageattn)],
    "xformers": [
        module("xformers"),
        module(
            "xformers.ops",
            memory_efficient_attention=memory_efficient_attention,
            LowerTriangularMask=LowerTriangularMask,
        ),
    ],
}
"""Modules to install for each peer, packages first."""
