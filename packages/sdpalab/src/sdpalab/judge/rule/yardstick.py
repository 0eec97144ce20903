"""The yardstick: the output of torch's scaled_dot_product_attention on the same inputs in the same precision.

The yardstick uses torch's CPU backend ``flash``. Measured with torch 2.13 on standard normal inputs, S from 63 to 4096,
the relative L2 error in float16 (bfloat16) is
- ``flash``: 2.4e-4 to 2.9e-4 (1.8e-3 to 2.3e-3), within 2% of the intended numerics everywhere, because it computes as
  GPU kernels do: float32 accumulators, P rounded to the 16-bit type;
- ``math``: 2.0e-4 (1.6e-3): it converts to float32 first, so only the output is rounded; no kernel that feeds P to
  16-bit tensor cores is as accurate.
Eager attention keeps the scores in the 16-bit type, and has two to three times the error. A window and lengths are
passed to torch as a mask, combined with the problem's own mask.

No torch backend supports a soft cap, ALiBi or sinks, and ``flash`` needs Dv = D. For these the yardstick is composed of
torch's products, tanh and softmax in float32, with the normalised weights and the output rounded to the inputs' type,
as ``flash`` does in one tile. (Flex attention supports them, but needs a C++ compiler on a CPU.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import may_see_none, score_bias, visible_keys, with_padding
from sdpalab.inputs.reference import Rows
from sdpalab.judge.tensors import from_torch, to_torch
from sdpalab.judge.torch_backends import BEYOND_TORCH, Backend, backend_output, sdpa_backend

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from sdpalab.scoring import Scoring

__all__ = ["torch_gradients", "torch_output"]

Array = npt.NDArray[Any]
BLOCK = 1 << 22
"""Scores of a block of rows, 16 MiB."""
MOST_FLOAT16 = 1 << 24
"""Most scores of a head of a float16 problem whose gradients are those of torch's flash attention."""


def torch_output(q: Array, k: Array, v: Array, *, rows: Rows = None, **scoring: Unpack[Scoring]) -> Array:
    """torch's CPU flash attention on ``q`` [B, H, Sq, D] and ``k``, ``v`` [B, Hkv, Skv, D], in their own dtype.

    With ``rows`` only those query rows of every head are computed. Rows that see no key are set to 0.

    Raises
    ------
    MachineError
        If this torch has no such backend, or it fails.
    """
    wanted = np.arange(q.shape[2]) if rows is None else rows
    if any(name in scoring for name in BEYOND_TORCH) or q.shape[3] != v.shape[3]:
        k, v = (with_padding(array, scoring.get("kv_lengths"), 0.0) for array in (k, v))
        q = with_padding(q, scoring.get("q_lengths"), 0.0)
        out = _composed(q[:, :, wanted], k, v, wanted, scoring)
    else:
        out = backend_output(q, k, v, backend=Backend.FLASH, rows=rows, **scoring)
    for b, h in np.ndindex(*q.shape[:2]) if may_see_none(scoring) else ():
        out[b, h, ~visible_keys(wanted, k.shape[2], head=(b, h), **scoring).any(axis=1)] = 0
    return out


def torch_gradients(q: Array, k: Array, v: Array, do: Array, **scoring: Unpack[Scoring]) -> dict[str, Array]:
    """dQ, dK and dV by torch's autograd, in the dtype of ``q``; arguments as
    :func:`sdpalab.judge.rule.gradients.attention_gradients`, all finite.

    The backward pass of the CPU's flash attention where that supports the problem, but not for a long float16 problem:
    without float16 products on the CPU it is 15 times as slow as in bfloat16. Otherwise of the products, tanh and
    softmax in float32 of :func:`torch_output`, for a block of rows at a time.
    """
    import torch

    gradient, group = to_torch(np.ascontiguousarray(do)), q.shape[1] // k.shape[1]
    inputs = [to_torch(np.ascontiguousarray(array)).float() for array in (q, k, v)]
    beyond = may_see_none(scoring) or any(name in scoring for name in BEYOND_TORCH) or q.shape[3] != v.shape[3]
    if not beyond and not (gradient.dtype == torch.float16 and q.shape[2] * k.shape[2] > MOST_FLOAT16):
        leaves = [each.requires_grad_() for each in inputs]
        query, *others = (leaf.to(gradient.dtype) for leaf in leaves)
        key, value = (each.repeat_interleave(group, dim=1) for each in others)
        with sdpa_backend(Backend.FLASH):
            out = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=scoring["causal"], scale=scoring["scale"]
            )
        gradients = list(torch.autograd.grad(out, leaves, gradient))
    else:
        gradients = [torch.zeros_like(each) for each in inputs]
        step = max(32, BLOCK // k.shape[2])
        for b, h in np.ndindex(*q.shape[:2]):
            places = (b, h), (b, h // group), (b, h // group)
            key, value = (each[at].clone().requires_grad_() for each, at in zip(inputs[1:], places[1:], strict=True))
            for start in range(0, q.shape[2], step):
                rows = np.arange(start, min(start + step, q.shape[2]))
                query = inputs[0][b, h, rows].requires_grad_()
                head = _head(query, key, value, rows, (b, h), scoring, gradient.dtype)
                dq, dk, dv = torch.autograd.grad(head, (query, key, value), gradient[b, h, rows])
                gradients[0][b, h, rows] = dq
                gradients[1][places[1]] += dk
                gradients[2][places[2]] += dv
    return {name: from_torch(each.to(gradient.dtype)) for name, each in zip(("dq", "dk", "dv"), gradients, strict=True)}


def _composed(q: Array, k: Array, v: Array, rows: npt.NDArray[np.intp], scoring: Scoring) -> Array:
    """Attention on the query rows ``q`` [B, H, rows, D] in torch operations, head by head."""
    import torch

    query, key, value = (to_torch(np.ascontiguousarray(array)) for array in (q, k, v))
    group = q.shape[1] // k.shape[1]
    heads = [
        _head(query[b, h], key[b, h // group], value[b, h // group], rows, (b, h), scoring, query.dtype)
        for b, h in np.ndindex(*q.shape[:2])
    ]
    return from_torch(torch.stack(heads).reshape(*q.shape[:3], v.shape[3]))


def _head(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rows: npt.NDArray[np.intp],
    head: tuple[int, int],
    scoring: Scoring,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Attention of the query rows ``q`` [rows, D] of one head in float32, [rows, Dv], with P and the result rounded to
    ``dtype``; 0 in rows that see neither a key nor a sink."""
    import torch

    cap, keys = scoring.get("softcap", 0.0), k.shape[0]
    scores = q.float() @ k.float().mT * scoring["scale"]
    if cap:
        scores = cap * torch.tanh(scores / cap)
    bias = score_bias(rows, keys, head=head, **scoring)
    if bias is not None:
        scores = scores + torch.from_numpy(bias).float()
    visible = torch.from_numpy(visible_keys(rows, keys, head=head, **scoring))
    if "sinks" in scoring:
        logit = torch.tensor(float(scoring["sinks"][head[1]])).expand(len(rows), 1)
        weights = torch.softmax(torch.cat((scores.masked_fill(~visible, -torch.inf), logit), 1), -1)[:, :keys]
    else:  # a row without a key sees all of them here, and its weights become 0: a softmax of -inf is NaN
        empty = ~visible.any(dim=1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(~visible & ~empty, -torch.inf), -1) * ~empty
    return (weights.to(dtype).float() @ v.float()).to(dtype)
