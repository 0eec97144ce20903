"""torch's FlexAttention, compiled: a Triton kernel that torch.compile makes for the mask and the shapes.

Source: torch.nn.attention.flex_attention. Compiling and the block mask, which depends on the lengths only, come before
what is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sdpalab.measure.peers.peer import Envelope, Peer, library_missing

if TYPE_CHECKING:
    import torch

__all__ = ["FlexAttention"]


class FlexAttention(Peer):
    """``torch.compile(flex_attention)``, with a block mask if causal."""

    name, module, package = "flex", "torch.nn.attention.flex_attention", "torch"
    envelope = Envelope(head_dims=range(16, 257, 16))

    def missing_reason(self) -> str | None:
        """Compiled for a GPU it needs Triton too."""
        return super().missing_reason() or library_missing(self.name, "triton", "triton")

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool) -> torch.Tensor:
        """The first call with new shapes compiles."""
        mask = _causal_mask(q.shape[2], k.shape[2], str(q.device)) if causal else None
        out: torch.Tensor = _compiled()(q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
        return out


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
