"""torch's FlexAttention, compiled: a Triton kernel that torch.compile makes for the mask and the shapes.

Source: torch.nn.attention.flex_attention. Compilation and the block mask, which depends on lengths only, are not
timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from sdpalab.judge.tensors import extra_tensor
from sdpalab.measure.peers.peer import Envelope, Peer, library_missing

if TYPE_CHECKING:
    import torch

    from sdpalab.inputs import Inputs
    from sdpalab.problem import Problem

__all__ = ["FlexAttention"]


class FlexAttention(Peer):
    """``torch.compile(flex_attention)``, with a block mask for hidden keys and a score_mod for other changes of scores.

    Both are compiled into the kernel. Windows and caps are constants; lengths, masks and slopes are tensors.
    """

    name, module, package = "flex", "torch.nn.attention.flex_attention", "torch"
    envelope = Envelope(
        head_dims=range(16, 257, 16), features=("window_size", "softcap", "kv_lengths", "attn_mask", "alibi_slopes")
    )

    def why_not_there(self) -> str | None:
        """The compiled function also needs Triton on a GPU."""
        return super().why_not_there() or library_missing(self.name, "triton", "triton")

    def prepared(
        self, problem: Problem, inputs: Inputs, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> Callable[[], torch.Tensor]:
        """A call with the mask of the problem's features."""
        if not problem.features:
            return super().prepared(problem, inputs, q, k, v)
        scoring = FlexScoring.of(problem, inputs, q.device)
        return partial(
            _compiled(),
            q,
            k,
            v,
            score_mod=scoring.score_mod(),
            block_mask=scoring.block_mask(),
            scale=problem.scale,
            enable_gqa=problem.group > 1,
        )

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool) -> torch.Tensor:
        """The first call with new shapes compiles."""
        mask = _causal_mask(q.shape[2], k.shape[2], str(q.device)) if causal else None
        out: torch.Tensor = _compiled()(q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
        return out


@dataclass(frozen=True)
class FlexScoring:
    """The masks and biases of a problem as FlexAttention's two functions; tensors are on the call's device."""

    problem: Problem
    device: torch.device
    lengths: torch.Tensor | None
    mask: torch.Tensor | None
    slopes: torch.Tensor | None

    @classmethod
    def of(cls, problem: Problem, inputs: Inputs, device: torch.device) -> FlexScoring:
        """Scoring with copies of the arrays of ``inputs``."""
        arrays = (inputs.kv_lengths, inputs.attn_mask, inputs.alibi_slopes)
        return cls(problem, device, *(None if each is None else extra_tensor(each).to(device) for each in arrays))

    def score_mod(self) -> Callable[..., Any] | None:
        """:meth:`changed` as a function; None if it changes no visible score."""
        form = self.problem.mask_form
        if not (self.problem.softcap or self.slopes is not None or (form and form.type == "float")):
            return None

        def changed(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:  # torch counts all parameters, including self
            return self.changed(score, b, h, i, j)

        return changed

    def block_mask(self) -> Any:
        """Blocks of visible keys; None if all keys are visible."""
        from torch.nn.attention.flex_attention import create_block_mask

        problem, form = self.problem, self.problem.mask_form
        if not (problem.causal or problem.window_size or self.lengths is not None or form):
            return None
        batch = problem.batch if self.lengths is not None or (form and form.per_batch) else None
        heads = problem.heads if form and form.per_head else None

        def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
            return self.seen(b, h, i, j)

        return create_block_mask(seen, batch, heads, problem.seq_q, problem.seq_kv, device=str(self.device))

    def seen(self, b: Any, h: Any, i: Any, j: Any) -> Any:
        """Whether row i of a head sees key j."""
        left, right = self.problem.window_size or (-1, 0 if self.problem.causal else -1)
        seen = j >= 0
        if right >= 0:
            seen = seen & (j <= i + right)
        if left >= 0:
            seen = seen & (j >= i - left)
        if self.lengths is not None:
            seen = seen & (j < self.lengths[b])
        if self.mask is None:
            return seen
        masked = self._masked(b, h, i, j)
        return seen & (masked > -math.inf if masked.is_floating_point() else masked)

    def changed(self, score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        """The scaled score of row i and key j with soft cap and biases."""
        import torch

        if cap := self.problem.softcap:
            score = cap * torch.tanh(score / cap)
        if self.slopes is not None:
            score = score - self.slopes[h] * (i - j).abs()
        form = self.problem.mask_form
        return score + self._masked(b, h, i, j) if form and form.type == "float" else score

    def _masked(self, b: Any, h: Any, i: Any, j: Any) -> Any:
        form = self.problem.mask_form
        assert form is not None
        assert self.mask is not None
        return self.mask[b if form.per_batch else 0, h if form.per_head else 0, i, j]


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Any]:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return compiled


@lru_cache(maxsize=64)
def _causal_mask(seq_q: int, seq_kv: int, device: str) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, i, j: i >= j, None, None, seq_q, seq_kv, device=device)
