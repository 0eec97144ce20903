"""``attn_implementation="sdpalab"`` for the models of transformers.

:func:`register` adds :func:`attention` to transformers' AttentionInterface and :func:`mask` to its
AttentionMaskInterface. Both are required: without the mask function transformers makes no mask, and the result of a
padded batch is silently wrong. :func:`recorded` shows the implementations that a model's calls ran.

Every call goes through :func:`sdpalab.scaled_dot_product_attention`, or, in continuous batching, through
:func:`sdpalab.flash_attn_varlen_func`, so :func:`sdpalab.no_fallback` holds here too. transformers accepts only
implementations of certain names for continuous batching: ``register("sdpa", replace=True)`` takes the place of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sdpalab.errors import UserError
from sdpalab.torch_api.explaining import Explanation, explain_call
from sdpalab.torch_api.flash_attn import flash_attn_varlen_func
from sdpalab.torch_api.ops import scaled_dot_product_attention

__all__ = ["attention", "mask", "recorded", "register", "unregister"]

Tensor = torch.Tensor

_NEEDED = "4.53"
"""The first release of transformers with both interfaces."""

_INSTALL = "pip install 'sdpalab[transformers]'"

_WITHOUT_EFFECT = frozenset(
    {
        "cache_position",
        "max_length_k",
        "max_length_q",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "past_key_value",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "seq_idx",
        "use_cache",
    }
)
"""Arguments that models pass to every implementation and that do not affect the result: positions are already in Q and
K, earlier keys are in K and V, and the mask has the visible keys."""

_WIDEST_GROUPED = 256
"""Largest head_dim for which torch's fused attention reads shared K/V heads in place."""

_OF_PAGES = frozenset({"cu_seq_lens_q", "cu_seq_lens_k", "logits_indices", "logits_processor_args", "softcap"})
"""Arguments of continuous batching that :func:`attention` uses, or that do not affect attention."""

_recorders: list[Counter[Explanation]] = []
_replaced: dict[tuple[Any, str], Any] = {}
"""The implementations of transformers that :func:`register` has replaced."""


def register(name: str = "sdpalab", *, replace: bool = False) -> None:
    """Make ``attn_implementation=name`` run the lab's attention in models of transformers; repeated calls change
    nothing.

    Parameters
    ----------
    name : str
    replace : bool
        Whether to take the place of an implementation of transformers, such as ``sdpa``, which :func:`unregister`
        restores.

    Raises
    ------
    UserError
        If transformers is missing or older than 4.53, or if it has an implementation of its own with that name and
        ``replace`` is False.
    """
    for interface, function in _interfaces(name, replace=replace):
        if name in interface() and interface()[name] is not function:
            _replaced[interface, name] = interface()[name]
        interface.register(name, function)


def unregister(name: str = "sdpalab") -> None:
    """Undo :func:`register`: transformers then rejects the name, or has its own implementation again. No effect without
    a registration.

    Raises
    ------
    UserError
        As in :func:`register`.
    """
    for interface, _ in _interfaces(name):
        # The interfaces have no public removal; their classes keep registrations in this dict.
        interface._global_mapping.pop(name, None)
        if (interface, name) in _replaced:
            interface.register(name, _replaced.pop((interface, name)))


def _interfaces(name: str, *, replace: bool = False) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """The two interfaces, each with the function to register under ``name``."""
    try:
        import transformers
    except ImportError as error:
        raise UserError(f"this needs transformers {_NEEDED} or newer: {_INSTALL} ({error})") from None
    kinds = ("AttentionInterface", "AttentionMaskInterface")
    interfaces: tuple[Any, ...] = tuple(getattr(transformers, kind, None) for kind in kinds)
    if None in interfaces:
        raise UserError(
            f"transformers {transformers.__version__} has no registry of masks; this needs {_NEEDED} or "
            f"newer: {_INSTALL}"
        )
    both = tuple(zip(interfaces, (attention, mask), strict=True))
    theirs = any(interface()[name] is not mine for interface, mine in both if name in interface())
    if name == "eager" or (theirs and not replace):
        raise UserError(
            f"transformers already has an attention implementation {name!r}; register another name"
            + ("" if name == "eager" else ", or with replace=True")
        )
    return both[0], both[1]


@contextmanager
def recorded() -> Iterator[Counter[Explanation]]:
    """Count the implementations that calls of :func:`attention` run, by explanation, until the ``with`` block ends.

    Calls within compiled code (``torch.compile``) are not counted.
    """
    calls: Counter[Explanation] = Counter()
    _recorders.append(calls)
    try:
        yield calls
    finally:
        _recorders[:] = [other for other in _recorders if other is not calls]


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    sliding_window: int | None = None,
    cache: Any = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention with the arguments that a model of transformers passes.

    Parameters
    ----------
    module : torch.nn.Module
        The model's attention layer; its ``is_causal`` (default True) applies if the argument ``is_causal`` is None.
    query : Tensor
        [B, H, Sq, D].
    key, value : Tensor
        [B, Hkv, Skv, D] and [B, Hkv, Skv, Dv], earlier keys of a cache included; Hkv divides H.
    attention_mask : Tensor or None
        [B, 1 or H, Sq, Skv]: bool (True is seen) or added to the scores. It replaces ``is_causal``. Without a mask, a
        causal row sees the keys up to its own; the last row belongs to the last key.
    dropout, scaling : float
        Dropout probability, and factor of the scores (None: 1 / sqrt(D)).
    position_bias : Tensor, optional
        [1 or B, H, Sq, Skv], added to the scores.
    sliding_window : int, optional
        Largest number of keys that a row sees; the mask contains it.
    cache : transformers' PagedAttentionCache, optional
        Pages of continuous batching, to which the new keys are written; Q is [1, H, all rows, D], and ``cu_seq_lens_q``
        and ``cu_seq_lens_k`` have the ends of its sequences, which are causal.

    Returns
    -------
    out : Tensor
        [B, Sq, H, Dv], contiguous.
    weights : None
        Only eager attention returns weights.

    Raises
    ------
    UserError
        For arguments that neither a kernel nor torch's own function supports, such as a soft cap or attention sinks;
        within :func:`sdpalab.no_fallback` for calls that no kernel computes.
    """
    if cache is not None:
        return _with_pages(module, query, key, value, dropout, scaling, sliding_window, cache, others), None
    rows, keys, heads = query.shape[2], key.shape[2], query.shape[1]
    _refuse(module, attention_mask, keys, {"sliding_window": sliding_window, **others})
    causal = rows > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if attention_mask is None and causal and (rows != keys or position_bias is not None):
        attention_mask = torch.ones(rows, keys, dtype=torch.bool, device=query.device).tril(keys - rows)[None, None]
    if position_bias is not None:
        attention_mask = _with_bias(attention_mask, position_bias)
    causal = causal and attention_mask is None

    grouped = heads != key.shape[1]
    if grouped and (attention_mask is not None or key.shape[3] > _WIDEST_GROUPED or key.shape[3] != value.shape[3]):
        # torch has no fused attention for this with shared heads, and would compute all scores in memory.
        query, key, value = _ungrouped(query, key, value, attention_mask)
        grouped = False
    arguments = (query, key, value, attention_mask, dropout, causal, scaling, grouped)
    _record(scaled_dot_product_attention, *arguments)
    out = scaled_dot_product_attention(*arguments)
    return out.reshape(out.shape[0], heads, rows, out.shape[3]).transpose(1, 2).contiguous(), None


def _with_pages(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float,
    scaling: float | None,
    sliding_window: int | None,
    cache: Any,
    others: dict[str, Any],
) -> Tensor:
    """Attention of the packed sequences of continuous batching, [1, all rows, H, Dv]."""
    if not getattr(module, "is_causal", True):
        raise UserError(f"{type(module).__name__} is not causal, and continuous batching has causal sequences")
    key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=others)
    of_cache = {name: value for name, value in others.items() if name not in ("read_index", "write_index", *_OF_PAGES)}
    _refuse(module, None, 0, of_cache)
    q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))
    ends = others["cu_seq_lens_q"].to(torch.int32), others["cu_seq_lens_k"].to(torch.int32)
    arguments = (q, k, v, *ends, others["max_length_q"], others["max_length_k"], dropout, scaling, True)
    window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)
    softcap = float(others.get("softcap") or 0.0)
    _record(flash_attn_varlen_func, *arguments, window, softcap)
    out = flash_attn_varlen_func(*arguments, window, softcap)
    assert isinstance(out, Tensor), "no log-sum-exp is asked for"
    return out[None]


def _record(function: Any, *arguments: Any, **more: Any) -> None:
    if _recorders and not torch.compiler.is_compiling():
        why = explain_call(function, *arguments, **more)
        for calls in _recorders:
            calls[why] += 1


def mask(**arguments: Any) -> Tensor | None:
    """The mask of transformers' ``sdpa`` for the same arguments, except where its None would be ambiguous.

    Without padding, ``sdpa`` returns None for a causal mask that begins at the first key. This includes the first
    tokens of a static cache, whose other keys are still empty. :func:`attention` cannot distinguish that from a later
    part of a prompt, whose rows end at the last key: both have more keys than rows. The static cache therefore gets a
    mask.
    """
    from transformers import AttentionMaskInterface

    # Releases 4 pass the rows as positions in the cache.
    rows = arguments["q_length"] if "q_length" in arguments else arguments["cache_position"].shape[0]
    clear = rows in (1, arguments["kv_length"])
    arguments["allow_is_causal_skip"] = arguments.get("allow_is_causal_skip", True) and clear
    sdpa_mask = _replaced.get((AttentionMaskInterface, "sdpa")) or AttentionMaskInterface()["sdpa"]
    result: Tensor | None = sdpa_mask(**arguments)
    return result


def _refuse(module: torch.nn.Module, attention_mask: Tensor | None, keys: int, asked: dict[str, Any]) -> None:
    """Raise UserError for an argument that would change the result but is not supported."""
    for name, given in asked.items():
        if given is None or given is False or name in _WITHOUT_EFFECT:
            continue
        if name == "sliding_window" and (attention_mask is not None or keys <= given):
            continue
        # Sequences packed into one row: their mask separates them, and a single sequence needs none.
        if name in ("cu_seq_lens_q", "cu_seq_lens_k") and (attention_mask is not None or given.numel() == 2):
            continue
        without = " without a mask" if name == "sliding_window" or name.startswith("cu_seq_lens") else ""
        raise UserError(
            f"{type(module).__name__} uses {name}{without}, which sdpalab does not compute; load this model with "
            "the attn_implementation 'eager', or another that has it"
        )


def _with_bias(attention_mask: Tensor | None, bias: Tensor) -> Tensor:
    if attention_mask is None:
        return bias
    if attention_mask.dtype == torch.bool:
        return bias.masked_fill(~attention_mask, float("-inf"))
    return bias + attention_mask


def _ungrouped(q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K and V with equal numbers of heads.

    With one query row, the heads that share a K/V head become rows of it, as their positions do not matter; with
    several rows, K and V are repeated for each head.
    """
    group = q.shape[1] // k.shape[1]
    if q.shape[2] == 1 and (attention_mask is None or attention_mask.shape[1] == 1):
        return q.reshape(q.shape[0], k.shape[1], group, q.shape[3]), k, v
    return q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
