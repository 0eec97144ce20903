"""The problem of a task, recognised by the outputs of its reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

__all__ = ["FORMS", "TaskProblem", "as_dense", "attention", "close", "from_dense", "recognised"]

_DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
_NAMES = {**{name: dtype for dtype, name in _DTYPES.items()}}
_AGREES = 2e-3
"""Largest relative L2 distance of a reference in float32 from attention."""


FORMS = {"bhsd": "[B, H, S, D]", "bshd": "[B, S, H, D]", "nsd": "[B*H, S, D]", "sd": "[S, D]"}
"""Orders of the arrays of a task, by name."""


def as_dense(tensor: torch.Tensor, form: str) -> torch.Tensor:
    """An array of a task as [B, H, S, D]."""
    if form == "bshd":
        return tensor.transpose(1, 2)
    return tensor.reshape((1,) * (4 - tensor.dim()) + tuple(tensor.shape)) if form in ("nsd", "sd") else tensor


def from_dense(tensor: torch.Tensor, form: str) -> torch.Tensor:
    """An array [B, H, S, D] in the order of a task; a view."""
    if form == "bshd":
        return tensor.transpose(1, 2)
    return tensor.reshape(tensor.shape[{"nsd": 1, "sd": 2}[form] :]) if form in ("nsd", "sd") else tensor


def recognised(reference: Callable[..., Any], inputs: Sequence[Any], numbers: Sequence[int] = ()) -> dict[str, Any]:
    """``problem``: fields of the problem that a reference computes on its inputs Q, K and V, and ``form``: the order of
    its arrays; or ``refused``. ``numbers`` of the task may be the size of a window."""
    if len(inputs) != 3 or any(not isinstance(each, torch.Tensor) or not 2 <= each.dim() <= 4 for each in inputs):
        shapes = ", ".join(str(list(getattr(each, "shape", ()))) for each in inputs)
        return {"refused": f"its inputs are {shapes}: attention takes Q, K and V as [B, H, S, D]"}
    dtype = _DTYPES.get(inputs[0].dtype, "")
    if not dtype:
        return {"refused": f"its inputs have dtype {inputs[0].dtype}"}
    forms = {4: ("bhsd", "bshd"), 3: ("nsd",), 2: ("sd",)}.get(inputs[0].dim(), ())
    refusals = []
    for form in forms:
        stated = _recognised_in(form, reference, inputs, dtype, numbers)
        if "problem" in stated:
            return stated
        refusals.append(str(stated["refused"]))
    return {"refused": refusals[0]}


def _recognised_in(
    form: str, reference: Callable[..., Any], inputs: Sequence[torch.Tensor], dtype: str, numbers: Sequence[int]
) -> dict[str, Any]:
    """The problem of a reference whose arrays have one order."""
    torch.manual_seed(7)
    dense = [torch.randn(as_dense(each, form).shape) for each in inputs]
    q, k, v = dense
    if q.shape[-1] != k.shape[-1] or k.shape[:3] != v.shape[:3] or q.shape[1] % k.shape[1] or len(q) != len(k):
        shapes = [list(each.shape) for each in inputs]
        return {"refused": f"Q is {shapes[0]}, K {shapes[1]} and V {shapes[2]}, which is no attention"}
    output = reference(*(from_dense(each, form).contiguous() for each in dense))
    expected = from_dense(torch.empty(*q.shape[:3], v.shape[3]), form).shape
    if not isinstance(output, torch.Tensor) or output.shape != expected:
        return {"refused": "its reference returns no tensor of the shape of O"}
    fields = {
        "batch": q.shape[0],
        "heads": q.shape[1],
        "kv_heads": k.shape[1],
        "head_dim": q.shape[3],
        "seq_q": q.shape[2],
        "seq_kv": k.shape[2],
        "dtype": dtype,
        **({"head_dim_v": v.shape[3]} if v.shape[3] != q.shape[3] else {}),
    }
    for causal, scale, window in product((False, True), (None, 1.0), (None, *_windows(numbers))):
        if window is not None and causal and window[1] > 0:
            continue
        guess = attention(q, k, v, causal=causal, scale=scale, window=window)
        if _distance(as_dense(output, form), guess) < _AGREES:
            further = {**({"scale": scale} if scale else {}), **({"window_size": list(window)} if window else {})}
            return {"problem": {**fields, "causal": causal, **further}, "form": form}
    return {"refused": "its reference is not attention of Q, K and V: softmax(scale Q K^T) V, with or without a mask"}


def _windows(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Windows whose size may be one of the numbers: to the left of a row, or on both sides."""
    sizes = [n for n in dict.fromkeys(numbers) if 2 <= n < 4096]
    sides = [side for n in sizes for side in (n, n - 1, n // 2)]
    return list(dict.fromkeys([(side, right) for side in sides for right in (0, side)]))


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
    rows: Sequence[int] = (),
    keys: Sequence[int] = (),
) -> torch.Tensor:
    """Attention in float32, [B, H, S, D]; with lengths, a causal mask is aligned to the last valid key."""
    group = q.shape[1] // k.shape[1]
    k, v = (each.float().repeat_interleave(group, 1) for each in (k, v))
    scores = (q.float() @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
    for b in range(q.shape[0]):
        m, n = (rows[b] if rows else q.shape[2]), (keys[b] if keys else k.shape[2])
        hidden = j >= n
        if causal:
            hidden = hidden | (j > i + ((n - m) if keys else 0))
        if window is not None:
            hidden = hidden | (j < i - window[0]) | (j > i + window[1])
        scores[b].masked_fill_(hidden, float("-inf"))
    return torch.nan_to_num(torch.softmax(scores, -1)) @ v


def close(output: Any, expected: torch.Tensor, atol: float, rtol: float, says: str) -> dict[str, Any]:
    """The verdict of ``torch.allclose``."""
    fits = isinstance(output, torch.Tensor) and output.shape == expected.shape
    return {"accepts": fits and torch.allclose(output.float(), expected.float(), atol=atol, rtol=rtol), "own": says}


@dataclass(frozen=True)
class TaskProblem:
    """The problem of a flashinfer-bench definition."""

    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    causal: bool
    ragged: bool
    decode: bool

    @classmethod
    def of_definition(cls, definition: Mapping[str, Any]) -> TaskProblem:
        """The problem that the names of inputs and axes describe."""
        inputs = definition["inputs"]
        axes = {name: int(axis["value"]) for name, axis in definition.get("axes", {}).items() if "value" in axis}
        keys = inputs["k_cache"] if "k_cache" in inputs else inputs["k"]
        _, heads, head_dim = (axes.get(name, 0) for name in inputs["q"]["shape"])
        return cls(
            heads=heads,
            kv_heads=axes.get(keys["shape"][-2], 0),
            head_dim=head_dim,
            dtype=str(inputs["q"]["dtype"]),
            causal="causal" in definition["name"] or "causal" in definition.get("tags", ()),
            ragged="qo_indptr" in inputs,
            decode="k_cache" in inputs and "qo_indptr" not in inputs,
        )

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of :class:`sdpalab.problem.Problem`."""
        rows = 1 if self.decode else 40
        fields: dict[str, Any] = {
            "batch": 2,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "seq_q": rows,
            "seq_kv": 100,
            "head_dim": self.head_dim,
            "dtype": self.dtype,
            "causal": self.causal,
            "kv_lengths": [100, 61],
        }
        fields |= {"q_lengths": [40, 13]} if self.ragged else {}
        return fields | ({"bottom_right": True} if self.causal else {})

    def sample(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Q, K, V and the keyword arguments of a small problem."""
        fields, dtype = self.fields, _NAMES[self.dtype]
        torch.manual_seed(42)
        q = torch.randn(2, self.heads, fields["seq_q"], self.head_dim).to(dtype)
        k, v = (torch.randn(2, self.kv_heads, 100, self.head_dim).to(dtype) for _ in range(2))
        lengths: dict[str, Any] = {}
        lengths |= {name: torch.tensor(fields[name]) for name in ("q_lengths", "kv_lengths") if name in fields}
        return q, k, v, lengths

    def checked(self, call: Callable[[], Any], q: Any, k: Any, v: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """``problem``, if the reference computes it; or ``refused``."""
        output = call()
        output = output[0] if isinstance(output, tuple) else output
        rows, keys = (given[name].tolist() if name in given else () for name in ("q_lengths", "kv_lengths"))
        expected = attention(q, k, v, causal=self.causal, rows=rows, keys=keys)
        for b, n in enumerate(rows):
            expected[b, :, n:] = 0
        if _distance(output.float(), expected) > 2e-2:
            return {"refused": "its reference is not attention by the names of its inputs"}
        return {"problem": self.fields}


def _distance(output: torch.Tensor, expected: torch.Tensor) -> float:
    return float((output - expected).norm() / expected.norm())
