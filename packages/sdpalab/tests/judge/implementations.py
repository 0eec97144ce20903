"""Correct implementations of attention that share no code with the judge, and arithmetic that is deliberately worse.

The former must pass whatever they are given, each held to the numerics that it declares; the latter shows how far from
a limit a rounding too many is. Arrays are float16 or bfloat16 throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from gradient_candidates import eager, sdpa
from tiled_attention import (
    FLOAT8,
    Rounding,
    fused_exponent,
    key_by_key,
    online,
    online_float8,
    rounded_query,
    split_kv,
    tree,
    two_pass,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

from sdpalab.bugs.backward import TiledBackward, altered
from sdpalab.inputs import Inputs
from sdpalab.judge.parameters import arguments
from sdpalab.judge.rule.numerics import UNDECLARED, on_architecture
from sdpalab.judge.tensors import extra_tensor, from_torch, to_torch
from sdpalab.judge.torch_backends import Backend, backend_output
from sdpalab.kernels.kernel import Numerics, Quantisation
from sdpalab.problem import Problem

Array = npt.NDArray[Any]
Compute = Callable[[Problem, Inputs], "Array | dict[str, Array]"]


@dataclass(frozen=True)
class Implementation:
    """One way to compute attention; without ``numerics`` it declares nothing, like a user's callable.

    ``overflows`` names kinds of inputs that are too large for the arithmetic.
    """

    name: str
    compute: Compute
    numerics: Numerics = UNDECLARED
    overflows: tuple[str, ...] = ()


def backend(name: Backend, problem: Problem, inputs: Inputs) -> Array:
    """One of torch's own."""
    return backend_output(
        inputs.q, inputs.k, inputs.v, scale=problem.scale, causal=problem.causal, backend=name, device="cpu"
    )


def _tensors(problem: Problem, inputs: Inputs) -> tuple[Any, Any, Any, Any]:
    """q, k and v in float32, K/V heads repeated for their group, and where a key is hidden [Sq, Skv]."""
    q, k, v = (to_torch(array).float() for array in (inputs.q, inputs.k, inputs.v))
    k, v = (tensor.repeat_interleave(problem.group, dim=1) for tensor in (k, v))
    hidden = torch.ones(problem.seq_q, problem.seq_kv, dtype=torch.bool).triu(1)
    return q, k, v, hidden if problem.causal else torch.zeros_like(hidden)


def _dtype(problem: Problem) -> torch.dtype:
    return torch.float16 if problem.dtype == "float16" else torch.bfloat16


def softmax_first(problem: Problem, inputs: Inputs, *, round_p: bool = True) -> Array:
    """The usual attention: softmax in float32, its result in 16 bits (or not), times V."""
    q, k, v, hidden = _tensors(problem, inputs)
    p = torch.softmax((q @ k.mT * problem.scale).masked_fill(hidden, -torch.inf), -1)
    return from_torch(((p.to(_dtype(problem)).float() if round_p else p) @ v).to(_dtype(problem)))


def scaled_query(problem: Problem, inputs: Inputs) -> Array:
    """Q is scaled instead of the scores; the sum is divided out at the end."""
    q, k, v, hidden = _tensors(problem, inputs)
    s = ((q * problem.scale) @ k.mT).masked_fill(hidden, -torch.inf)
    p = torch.exp(s - s.amax(-1, keepdim=True))
    return from_torch((p.to(_dtype(problem)).float() @ v / p.sum(-1, keepdim=True)).to(_dtype(problem)))


def by_log_sum_exp(problem: Problem, inputs: Inputs) -> Array:
    """Weights exp(s - lse), as a backward pass makes them."""
    q, k, v, hidden = _tensors(problem, inputs)
    s = (q @ k.mT * problem.scale).masked_fill(hidden, -torch.inf)
    p = torch.exp(s - torch.logsumexp(s, -1, keepdim=True))
    return from_torch((p.to(_dtype(problem)).float() @ v).to(_dtype(problem)))


def einsum_bshd(problem: Problem, inputs: Inputs) -> Array:
    """The layout [B, S, H, D], and einsum."""
    q, k, v, hidden = _tensors(problem, inputs)
    q, k, v = (tensor.transpose(1, 2).contiguous() for tensor in (q, k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) * problem.scale + torch.zeros(()).masked_fill(hidden, -torch.inf)
    p = torch.softmax(s, -1).to(_dtype(problem)).float()
    return from_torch(torch.einsum("bhij,bjhd->bihd", p, v).to(_dtype(problem)).transpose(1, 2))


def row_chunks(problem: Problem, inputs: Inputs, *, rows: int = 7) -> Array:
    """A few rows at a time, P in 16 bits, times a reciprocal at the end."""
    q, k, v, hidden = _tensors(problem, inputs)
    parts = []
    for start in range(0, problem.seq_q, rows):
        s = (q[:, :, start : start + rows] @ k.mT * problem.scale).masked_fill(hidden[start : start + rows], -torch.inf)
        p = torch.exp(s - s.amax(-1, keepdim=True))
        parts.append(p.to(_dtype(problem)).float() @ v * p.sum(-1, keepdim=True).reciprocal())
    return from_torch(torch.cat(parts, 2).to(_dtype(problem)))


def rounded_once(problem: Problem, inputs: Inputs) -> Array:
    """The best there is: torch in float64, rounded at the end."""
    q, k, v, hidden = (x.double() if x.dtype == torch.float32 else x for x in _tensors(problem, inputs))
    s = (q @ k.mT * problem.scale).masked_fill(hidden, -torch.inf)
    return from_torch((torch.softmax(s, -1) @ v).to(_dtype(problem)))


HALF = Rounding(accumulator=np.float16, accumulate_every=8)
"""The tensor cores of sm_75 to sm_89; those of sm_70 round twice, and those of sm_90 half as often."""
BEFORE = Numerics(normalise="before")
P32 = Numerics(probabilities="float32")
P8 = Numerics(probabilities="float8_e4m3fn", probability_scale=256.0)

CORRECT: tuple[Implementation, ...] = (
    Implementation("torch flash", partial(backend, Backend.FLASH), Numerics()),
    Implementation("torch math", partial(backend, Backend.MATH), P32),
    Implementation("softmax first", softmax_first),
    Implementation("softmax first, P in float32", partial(softmax_first, round_p=False), P32),
    Implementation("scaled query", scaled_query, Numerics()),
    Implementation("log-sum-exp", by_log_sum_exp),
    Implementation("einsum [B, S, H, D]", einsum_bshd),
    Implementation("row chunks, reciprocal", row_chunks, Numerics()),
    *(Implementation(f"online, tile {tile}", partial(online, tile=tile), Numerics()) for tile in (16, 32, 64, 128)),
    Implementation("online, base e", partial(online, tile=48, base=0), Numerics()),
    Implementation("online, tiles in reverse", partial(online, tile=16, reverse=True), Numerics()),
    Implementation("online, reciprocal", partial(online, tile=80, reciprocal=True), Numerics()),
    Implementation("online, lazy rescale", partial(online, tile=32, lazy=8.0), Numerics()),
    Implementation("online, P in float32", partial(online, rounding=Rounding(p_type=np.float32)), P32),
    Implementation("fused exponent", fused_exponent, Numerics()),
    Implementation("two passes", two_pass, Numerics()),
    Implementation("two passes, P normalised", partial(two_pass, tile=64, first=True), BEFORE),
    Implementation("key by key", key_by_key, P32),
    *(Implementation(f"split KV {n}", partial(split_kv, splits=n), Numerics()) for n in (2, 3, 7)),
    Implementation("tree of tiles", tree, Numerics()),
    Implementation("float64, rounded once", rounded_once, P32),
)
"""With the problem's numerics, or P in float32."""

DECLARED_LESS: tuple[Implementation, ...] = (
    Implementation("P in float8", partial(online, rounding=Rounding(p_type=FLOAT8, p_scale=256.0)), P8),
    Implementation(
        "P in bfloat16", partial(online, rounding=Rounding(p_type=ml_dtypes.bfloat16)), Numerics("float32", "bfloat16")
    ),
    Implementation("float16 accumulator", partial(online, rounding=HALF), Numerics("float16"), ("huge",)),
    *(
        Implementation(
            f"float16 accumulator, {arch}",
            partial(online, rounding=replace(HALF, accumulate_every=terms)),
            on_architecture(Numerics("float16"), arch),
            ("huge",),
        )
        for arch, terms in (("sm_70", 4), ("sm_90", 16))
    ),
    Implementation(
        "float8, a scale a head",
        partial(online_float8, rows=0),
        Numerics("float32", "float8_e4m3fn", 256.0, Quantisation(rows=0)),
    ),
    Implementation(
        "float8, a scale for 64 rows",
        partial(online_float8, rows=64),
        Numerics("float32", "float8_e4m3fn", 256.0, Quantisation(rows=64)),
    ),
)
"""Correct by what they declare, and by nothing else."""

WORSE: tuple[Implementation, ...] = (
    *(
        Implementation(
            f"16-bit accumulator, every {n} keys", partial(online, tile=n, rounding=Rounding(accumulator=None))
        )
        for n in (16, 32, 64, 128)
    ),
    Implementation(
        "bfloat16 accumulator, every 64 keys", partial(online, rounding=Rounding(accumulator=ml_dtypes.bfloat16))
    ),
    Implementation("16-bit sum of weights", partial(online, rounding=Rounding(sum_type=None))),
    Implementation("16-bit scores", partial(online, rounding=Rounding(score_type=None))),
    Implementation("scaled Q in 16 bits", rounded_query),
    Implementation("P in bfloat16", partial(online, rounding=Rounding(p_type=ml_dtypes.bfloat16))),
    Implementation("P in float8", partial(online, rounding=Rounding(p_type=FLOAT8, p_scale=256.0))),
    Implementation("P chopped", partial(online, rounding=Rounding(chop_p=True))),
    Implementation("output chopped", partial(online, rounding=Rounding(chop_output=True))),
    Implementation("Q, K, V in float8", partial(online_float8, rows=64, rounding=Rounding())),
)
"""Arithmetic of fewer bits that is not declared: held to what a kernel of the problem's dtype declares."""


def by_autograd(
    function: Callable[..., Any], problem: Problem, inputs: Inputs, backend: Any = None
) -> dict[str, Array]:
    """The gradients of a function by torch's autograd, with one of torch's own backends if the function uses it."""
    leaves = [to_torch(array.copy()).requires_grad_() for array in inputs.qkv]
    with sdpa_kernel(backend) if backend else nullcontext():
        out = function(*leaves, **arguments(function, problem, {}))
        assert inputs.do is not None
        gradients = torch.autograd.grad(out, leaves, to_torch(inputs.do.copy()))
    return {name: from_torch(each) for name, each in zip(("dq", "dk", "dv"), gradients, strict=True)}


def tiled(problem: Problem, inputs: Inputs, *, wide: bool = False, **steps: Any) -> dict[str, Array]:
    """The catalogue's right backward pass with other tiles, orders or roundings."""
    tensors = {name: extra_tensor(array.copy()) for name, array in inputs.arrays.items()}
    if wide:
        tensors = {name: each.double() if each.is_floating_point() else each for name, each in tensors.items()}
    q, k, v = (tensors.pop(name) for name in "qkv")
    function = altered(**steps)
    results = function(q, k, v, **arguments(function, problem, tensors))
    return {name: from_torch(each.to(_dtype(problem))) for name, each in zip(problem.outputs, results, strict=True)}


EVERY_HEAD = Numerics(partial_rows=1 << 20)
"""dK and dV of each query head are rounded before the sum over the group, as in FlashAttention-2."""
FLOAT32 = Numerics(probabilities="float32", score_gradients="float32")

GRADIENTS: tuple[Implementation, ...] = (
    Implementation("backward: torch flash", partial(by_autograd, sdpa, backend=SDPBackend.FLASH_ATTENTION)),
    Implementation("backward: torch math", partial(by_autograd, sdpa, backend=SDPBackend.MATH)),
    Implementation("backward: autograd of a softmax", partial(by_autograd, eager)),
    Implementation("backward: float64, rounded once", partial(tiled, wide=True), FLOAT32),
    Implementation("backward: P and dS in float32", partial(tiled, rounded=lambda self, weights: weights), FLOAT32),
    *(
        Implementation(
            f"backward: tiles of {rows} queries and {keys} keys", partial(tiled, row_tile=rows, tile=keys), Numerics()
        )
        for rows, keys in ((16, 16), (64, 128), (128, 64), (1, 256))
    ),
    Implementation(
        "backward: tiles in reverse",
        partial(
            tiled,
            starts=lambda self, seq_kv: range(0, seq_kv, self.tile)[::-1],
            row_starts=lambda self, first_key, seq_q: range(0, seq_q, self.row_tile)[::-1],
        ),
        Numerics(),
    ),
    Implementation(
        "backward: delta from P and dP",
        partial(
            tiled,
            tile=1 << 20,
            score_gradient=lambda self, p, dp, delta: p * (dp - (p * dp).sum(-1, keepdim=True)),
        ),
        Numerics(),
    ),
    Implementation(
        "backward: 16 bits for each query head",
        partial(tiled, of_group=lambda self, heads, group: TiledBackward.of_group(self, self.rounded(heads), group)),
        EVERY_HEAD,
        ("huge",),
    ),
)
"""Right gradients: torch's own, and explicit ones with other tiles, orders and roundings."""
