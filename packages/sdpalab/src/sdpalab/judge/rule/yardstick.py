"""The yardstick: the output of torch's scaled_dot_product_attention on the same inputs in the same precision.

The yardstick uses torch's CPU backend ``flash``. Measured with torch 2.13 on standard normal inputs, S from 63 to 4096,
the relative L2 error in float16 (bfloat16) is
- ``flash``: 2.4e-4 to 2.9e-4 (1.8e-3 to 2.3e-3), within 2% of the intended numerics everywhere, because it computes as
  GPU kernels do: float32 accumulators, P rounded to the 16-bit type;
- ``math``: 2.0e-4 (1.6e-3): it converts to float32 first, so only the output is rounded; no kernel that feeds P to
  16-bit tensor cores is as accurate.
Eager attention keeps the scores in the 16-bit type, and has two to three times the error. A window and lengths are
passed to torch as a mask, combined with the problem's own mask.

No torch backend supports a soft cap, ALiBi or sinks. For these the yardstick is composed of torch's products, tanh and
softmax in float32, with the normalised weights and the output rounded to the inputs' type, as ``flash`` does in one
tile. (Flex attention supports them, but needs a C++ compiler on a CPU.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import may_see_none, score_bias, visible_keys, with_padding
from sdpalab.judge.rule.reference import Rows
from sdpalab.judge.tensors import from_torch, to_torch
from sdpalab.judge.torch_backends import BEYOND_TORCH, Backend, backend_output

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdpalab.scoring import Scoring

__all__ = ["torch_output"]

Array = npt.NDArray[Any]


def torch_output(q: Array, k: Array, v: Array, *, rows: Rows = None, **scoring: Unpack[Scoring]) -> Array:
    """torch's CPU flash attention on ``q`` [B, H, Sq, D] and ``k``, ``v`` [B, Hkv, Skv, D], in their own dtype.

    With ``rows`` only those query rows of every head are computed. Rows that see no key are set to 0.

    Raises
    ------
    MachineError
        If this torch has no such backend, or it fails.
    """
    wanted = np.arange(q.shape[2]) if rows is None else rows
    if any(name in scoring for name in BEYOND_TORCH):
        k, v = (with_padding(array, scoring.get("kv_lengths"), 0.0) for array in (k, v))
        out = _composed(q[:, :, wanted], k, v, wanted, scoring)
    else:
        out = backend_output(q, k, v, backend=Backend.FLASH, rows=rows, **scoring)
    for b, h in np.ndindex(*q.shape[:2]) if may_see_none(scoring) else ():
        out[b, h, ~visible_keys(wanted, k.shape[2], head=(b, h), **scoring).any(axis=1)] = 0
    return out


def _composed(q: Array, k: Array, v: Array, rows: npt.NDArray[np.intp], scoring: Scoring) -> Array:
    """Attention on the query rows ``q`` [B, H, rows, D] in torch operations, head by head."""
    import torch

    group, cap, keys = q.shape[1] // k.shape[1], scoring.get("softcap", 0.0), k.shape[2]
    query, key, value = (to_torch(np.ascontiguousarray(array)) for array in (q, k, v))
    out = torch.empty_like(query)
    for b, h in np.ndindex(*q.shape[:2]):
        scores = query[b, h].float() @ key[b, h // group].float().mT * scoring["scale"]
        if cap:
            scores = cap * torch.tanh(scores / cap)
        bias = score_bias(rows, keys, head=(b, h), **scoring)
        if bias is not None:
            scores += torch.from_numpy(bias).float()
        visible = torch.from_numpy(visible_keys(rows, keys, head=(b, h), **scoring))
        scores = scores.masked_fill(~visible, -torch.inf)
        if "sinks" in scoring:
            logit = torch.tensor(float(scoring["sinks"][h]))
            scores = torch.cat((scores, logit.expand(len(rows), 1)), 1)
        weights = torch.softmax(scores, -1)[:, :keys].nan_to_num(0.0).to(query.dtype)
        out[b, h] = (weights.float() @ value[b, h // group].float()).to(query.dtype)
    return from_torch(out)
