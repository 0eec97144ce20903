"""FlashAttention 2, 3 and 4: three packages, one call.

Source: the README of the repository Dao-AILab/flash-attention. Since 2.1 a causal mask is aligned to the bottom right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdpalab.measure.peers.peer import Envelope, Peer

if TYPE_CHECKING:
    import torch

__all__ = ["FLASH_ATTENTION_PEERS", "FlashAttention"]


class FlashAttention(Peer):
    """``flash_attn_func`` of one generation, on [B, S, H, D]."""

    def __init__(self, name: str, module: str, package: str, envelope: Envelope) -> None:
        self.name, self.module, self.package, self.envelope = name, module, package, envelope

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool) -> torch.Tensor:
        """Some releases return the LSE too, which is left out."""
        function = self.library().flash_attn_func
        result = function(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), softmax_scale=scale, causal=causal)
        out: torch.Tensor = result[0] if isinstance(result, tuple) else result
        return out.transpose(1, 2)


FLASH_ATTENTION_PEERS = (
    FlashAttention(
        "fa2",
        "flash_attn.flash_attn_interface",
        "flash-attn",
        Envelope(head_dims=range(8, 257, 8), causal_square_only=True),
    ),
    FlashAttention(
        "fa3",
        "flash_attn_interface",
        "flash_attn_3 (folder hopper of Dao-AILab/flash-attention)",
        Envelope(head_dims=range(8, 257, 8), archs=range(90, 91), causal_square_only=True),
    ),
    FlashAttention(
        "fa4",
        "flash_attn.cute",
        "flash-attn-4",
        Envelope(head_dims=range(8, 129, 8), archs=range(90, 104), causal_square_only=True),
    ),
)
