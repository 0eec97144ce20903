"""FlashAttention 2, 3 and 4: three packages, one call.

Source: the README of the repository Dao-AILab/flash-attention. Since 2.1 a causal mask is aligned to the bottom right.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from sdpalab.judge.tensors import extra_tensor
from sdpalab.measure.peers.peer import Envelope, Peer

if TYPE_CHECKING:
    import torch

    from sdpalab.inputs import Inputs
    from sdpalab.problem import Problem

__all__ = ["FLASH_ATTENTION_PEERS", "FlashAttention"]


class FlashAttention(Peer):
    """``flash_attn_func`` of one generation, on [B, S, H, D]."""

    def __init__(self, name: str, module: str, package: str, envelope: Envelope) -> None:
        self.name, self.module, self.package, self.envelope = name, module, package, envelope

    def prepared(
        self, problem: Problem, inputs: Inputs, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> Callable[[], torch.Tensor]:
        """Window, soft cap and slopes are arguments of the function."""
        call = super().prepared(problem, inputs, q, k, v)
        further: dict[str, Any] = {}
        if problem.window_size is not None:
            further["window_size"] = problem.window_size
        if problem.softcap:
            further["softcap"] = problem.softcap
        if inputs.alibi_slopes is not None:
            further["alibi_slopes"] = extra_tensor(inputs.alibi_slopes).to(q.device)
        return partial(call, **further)

    def run(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool, **further: Any
    ) -> torch.Tensor:
        """Discards the log-sum-exp, which some releases return, too."""
        function = self.library().flash_attn_func
        rows = (each.transpose(1, 2) for each in (q, k, v))
        result = function(*rows, softmax_scale=scale, causal=causal, **further)
        out: torch.Tensor = result[0] if isinstance(result, tuple) else result
        return out.transpose(1, 2)


FLASH_ATTENTION_PEERS = (
    FlashAttention(
        "fa2",
        "flash_attn.flash_attn_interface",
        "flash-attn",
        Envelope(
            head_dims=range(8, 257, 8),
            causal_square_only=True,
            features=("window_size", "softcap", "alibi_slopes", "backward"),
        ),
    ),
    FlashAttention(
        "fa3",
        "flash_attn_interface",
        "flash_attn_3 (folder hopper of Dao-AILab/flash-attention)",
        Envelope(
            head_dims=range(8, 257, 8),
            archs=range(90, 91),
            causal_square_only=True,
            features=("window_size", "softcap", "backward"),
        ),
    ),
    FlashAttention(
        "fa4",
        "flash_attn.cute",
        "flash-attn-4",
        Envelope(head_dims=range(8, 129, 8), archs=range(90, 104), causal_square_only=True),
    ),
)
