"""FlashAttention's functions: its arguments and their meaning, by a certified kernel or by torch.

Differences from flash_attn 2.8: every dtype that torch's attention takes, on every device; a row that sees no key has
a log-sum-exp of -inf; ``flash_attn_varlen_func`` has ``seqused_k``, as FlashAttention-3. Arguments without an
implementation raise UserError: dropout, rotary embeddings, ``cache_batch_idx`` and ``cache_leftpad``.

Source: docstrings of flash_attn/flash_attn_interface.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec

import torch

from sdpalab.errors import UserError
from sdpalab.torch_api.calls import AttentionCall
from sdpalab.torch_api.flash import append, attend
from sdpalab.torch_api.flash_attn_checks import check_lengths, check_tensors, refuse, settings_of
from sdpalab.torch_inputs import autocast, needs_gradients

__all__ = ["CALLS", "FlashCall", "flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]

Tensor = torch.Tensor
Outputs = Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, None]
Arguments = ParamSpec("Arguments")


class FlashCall(NamedTuple):
    """A call in the lab's form.

    Attributes
    ----------
    call : AttentionCall
    returns : int
        Number of results: O; O and the log-sum-exp; or both and None.
    deterministic : bool
        Whether its gradients must have equal bits from run to run.
    new : (Tensor, Tensor) or None
        Keys and values to write into the cache first.
    """

    call: AttentionCall
    returns: int = 1
    deterministic: bool = False
    new: tuple[Tensor, Tensor] | None = None


CALLS: dict[Callable[..., Any], Callable[..., FlashCall]] = {}
"""The call of each function, with the same parameters; nothing runs."""


def _public(build: Callable[Arguments, FlashCall]) -> Callable[Arguments, Outputs]:
    """A function that runs the call that ``build`` makes of its arguments."""

    @functools.wraps(build)
    def function(*arguments: Arguments.args, **named: Arguments.kwargs) -> Outputs:
        request = build(*arguments, **named)
        call = request.call
        if request.new is not None:
            k, v = request.new
            assert call.seqused_k is not None, "appended keys have lengths"
            append(call.k, call.v, k, v, call.seqused_k - k.shape[1], call.block_table)
        out, lse = attend(call, lse=request.returns > 1, deterministic=request.deterministic)
        return out if request.returns == 1 else (out, lse) if request.returns == 2 else (out, lse, None)

    signature = inspect.signature(build).replace(return_annotation=Outputs)
    function.__signature__ = signature  # type: ignore[attr-defined]
    CALLS[function] = build
    return function


@_public
def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> FlashCall:
    """Attention of dense sequences, as flash_attn's function of the same name; differentiable.

    Parameters
    ----------
    q : Tensor
        [B, Sq, H, D].
    k, v : Tensor
        [B, Skv, Hkv, D] and [B, Skv, Hkv, Dv]; Hkv divides H.
    dropout_p : float
        0.
    softmax_scale : float, optional
        Factor of the scores. Default: 1 / sqrt(D).
    causal : bool
        The mask is aligned to the bottom right: the last query sees the last key.
    window_size : (int, int)
        Keys to the left and to the right of a query's position that it sees; -1 is no bound.
    softcap : float
        A score s becomes softcap * tanh(s / softcap); 0 is none.
    alibi_slopes : Tensor, optional
        float32 [H] or [B, H]: slope * abs(i + Skv - Sq - j) is subtracted from the scores. It has no gradient.
    deterministic : bool
        Whether gradients have equal bits from run to run.
    return_attn_probs : bool
        Whether the result is (out, softmax_lse, None); flash_attn returns probabilities for dropout alone.

    Returns
    -------
    out : Tensor
        [B, Sq, H, Dv], contiguous.
    softmax_lse : Tensor
        float32 [B, H, Sq]: natural logarithm of the sum of the exponentials of a row's scores. Differentiable.

    Raises
    ------
    UserError
        If the tensors do not match or an argument has no implementation; within :func:`sdpalab.no_fallback` if no
        certified kernel covers the call.
    """
    refuse("flash_attn_func", dropout_p=dropout_p)
    check_tensors(q, k, v, q_rank=4, kv_rank=4)
    if not q.shape[0] == k.shape[0]:
        raise UserError(f"q has a batch of {q.shape[0]}, and k of {k.shape[0]}")
    settings = settings_of(q, softmax_scale, causal, window_size, softcap, alibi_slopes, q.shape[0])
    q, k, v = autocast(q, k, v)
    return FlashCall(AttentionCall(q, k, v, **settings), 3 if return_attn_probs else 1, deterministic)


@_public
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    seqused_k: Tensor | None = None,
) -> FlashCall:
    """Attention of packed sequences, as flash_attn's function of the same name; differentiable without pages.

    Parameters
    ----------
    q : Tensor
        [Tq, H, D]; sequence b has rows ``cu_seqlens_q[b]`` to ``cu_seqlens_q[b + 1]``.
    k, v : Tensor
        [Tk, Hkv, D] and [Tk, Hkv, Dv]; with ``block_table`` pages [pages, page size, Hkv, D].
    cu_seqlens_q, cu_seqlens_k : Tensor
        int32 [B + 1]. With ``block_table`` and ``seqused_k`` the second may be None.
    max_seqlen_q, max_seqlen_k : int
        Longest sequences.
    dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
        As in :func:`flash_attn_func`; alignment is by each sequence's lengths.
    block_table : Tensor, optional
        int32 [B, pages of a sequence].
    seqused_k : Tensor, optional
        int32 [B]: valid keys of each sequence, by default all.

    Returns
    -------
    out : Tensor
        [Tq, H, Dv]. Rows behind the last sequence are arbitrary.
    softmax_lse : Tensor
        float32 [H, Tq].

    Raises
    ------
    UserError
        As :func:`flash_attn_func`; on a CPU also if a length or a page index is out of range.
    """
    refuse("flash_attn_varlen_func", dropout_p=dropout_p)
    check_tensors(q, k, v, q_rank=3, kv_rank=3 if block_table is None else 4)
    if cu_seqlens_k is None and (block_table is None or seqused_k is None):
        raise UserError("flash_attn_varlen_func needs cu_seqlens_k, or block_table with seqused_k")
    if block_table is not None and needs_gradients(q, k, v):
        raise UserError("flash_attn_varlen_func has no gradients with block_table: a cache of pages is not trained")
    batch = cu_seqlens_q.shape[0] - 1
    check_lengths(batch, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    check_lengths(batch, seqused_k=seqused_k, block_table=block_table)
    settings = settings_of(q, softmax_scale, causal, window_size, softcap, alibi_slopes, batch)
    if block_table is not None and seqused_k is None and cu_seqlens_k is not None:
        seqused_k = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
    q, k, v = autocast(q, k, v)
    call = AttentionCall(
        *(q, k, v, cu_seqlens_q, None if block_table is not None else cu_seqlens_k, seqused_k, block_table),
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        **settings,
    )
    return FlashCall(call, 3 if return_attn_probs else 1, deterministic)


@_public
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> FlashCall:
    """Attention to a cache of keys and values, as flash_attn's function of the same name; without gradients.

    Parameters
    ----------
    q : Tensor
        [B, Sq, H, D].
    k_cache, v_cache : Tensor
        [B, S, Hkv, D] and [B, S, Hkv, Dv]; with ``block_table`` pages [pages, page size, Hkv, D].
    k, v : Tensor, optional
        [B, Snew, Hkv, D]: written in place into the cache behind the ``cache_seqlens`` keys, before the attention.
    cache_seqlens : int or Tensor, optional
        int32 [B]: valid keys of each batch entry before the call. Default, without ``k``: all rows of the cache.
    block_table : Tensor, optional
        int32 [B, pages of a sequence]; needs ``cache_seqlens``.
    softmax_scale, causal, window_size, softcap, alibi_slopes
        As in :func:`flash_attn_func`; the last query is aligned to the last valid key.
    rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad
        None.
    rotary_interleaved, num_splits
        Without effect.
    return_softmax_lse : bool
        Whether the result is (out, softmax_lse).

    Returns
    -------
    out : Tensor
        [B, Sq, H, Dv], contiguous.
    softmax_lse : Tensor
        float32 [B, H, Sq].

    Raises
    ------
    UserError
        If the tensors do not match, gradients are required, or an argument has no implementation; on a CPU also if a
        length or a page index is out of range, before anything is written.
    """
    name = "flash_attn_with_kvcache"
    refuse(
        name,
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad,
    )
    check_tensors(q, k_cache, v_cache, q_rank=4, kv_rank=4)
    batch = q.shape[0]
    if (k is None) != (v is None):
        raise UserError(f"{name} takes k and v together")
    if cache_seqlens is None and (k is not None or block_table is not None):
        raise UserError(f"{name} needs cache_seqlens with {'k' if k is not None else 'block_table'}")
    if block_table is None and k_cache.shape[0] != batch:
        raise UserError(f"q has a batch of {batch}, and k_cache of {k_cache.shape[0]}")
    if needs_gradients(q, k_cache, v_cache, k, v):
        raise UserError(f"{name} has no gradients: call it under torch.no_grad()")
    lengths = (
        torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
        if isinstance(cache_seqlens, int)
        else cache_seqlens
    )
    check_lengths(batch, cache_seqlens=lengths, block_table=block_table)
    if k is not None and v is not None and lengths is not None:
        for cache, new, both in ((k_cache, k, "k"), (v_cache, v, "v")):
            wanted = (batch, k.shape[1], *cache.shape[2:])
            if new.shape != wanted or new.dtype != cache.dtype:
                raise UserError(
                    f"{both} must be {cache.dtype} {wanted} as {both}_cache, not {new.dtype} {tuple(new.shape)}"
                )
        lengths = lengths + k.shape[1]
    settings = settings_of(q, softmax_scale, causal, window_size, softcap, alibi_slopes, batch)
    call = AttentionCall(q, k_cache, v_cache, seqused_k=lengths, block_table=block_table, **settings)
    return FlashCall(call, 2 if return_softmax_lse else 1, new=None if k is None or v is None else (k, v))
