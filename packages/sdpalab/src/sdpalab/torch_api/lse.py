"""``attention_with_lse``: attention with the log-sum-exp of its rows, for merging parts of a softmax.

A proven kernel writes both results in one pass. Without one, torch's own function computes the output, and a second
product of Q and K in float32 gives the log-sum-exp.
"""

from __future__ import annotations

import torch

from sdpalab.errors import UserError
from sdpalab.torch_api.flash import attend
from sdpalab.torch_api.ops import call_of
from sdpalab.torch_inputs import check_together, why_not_shapes

__all__ = ["attention_with_lse"]

Tensor = torch.Tensor


def attention_with_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention and the log-sum-exp of its rows, by a certified kernel if there is one.

    Parameters
    ----------
    q : Tensor
        [B, H, Sq, D].
    k, v : Tensor
        [B, Hkv, Skv, D], Skv at least 1; Hkv other than H needs ``enable_gqa``.
    is_causal, scale, enable_gqa
        As in torch's ``scaled_dot_product_attention``; ``is_causal`` is aligned to the top left.

    Returns
    -------
    out : Tensor
        [B, H, Sq, D] of the dtype of ``q``.
    lse : Tensor
        float32 (float64 for float64 inputs) [B, H, Sq]: natural logarithm of the sum of exp(scale * q k) over the keys
        that a row sees. It allows merging two parts of a softmax (FlashAttention-2, Dao 2023, section 3.1).

    Raises
    ------
    UserError
        If the tensors do not match, or within :func:`sdpalab.no_fallback` if no certified kernel covers the call.
    """
    check_together(q, k, v, enable_gqa)
    wrong = why_not_shapes(q, k, v)
    if wrong is None and not enable_gqa and q.shape[1] != k.shape[1]:
        wrong = f"{k.shape[1]} heads of k and v for {q.shape[1]} of q need enable_gqa=True"
    if wrong is None and not k.shape[2]:
        wrong = "without a key there is no sum, and no logarithm of it"
    if wrong is not None:
        raise UserError(f"attention_with_lse: {wrong}")
    return attend(call_of(q, k, v, is_causal, scale), lse=True)
