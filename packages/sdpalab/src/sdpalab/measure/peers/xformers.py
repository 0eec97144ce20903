"""xformers. Source: ``xformers.ops.memory_efficient_attention`` and its ``LowerTriangularMask`` (top left)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdpalab.measure.peers.peer import Envelope, Peer

if TYPE_CHECKING:
    import torch

__all__ = ["Xformers"]


class Xformers(Peer):
    """``memory_efficient_attention`` on [B, S, H, D]; it chooses among its kernels itself."""

    name, module, package = "xformers", "xformers.ops", "xformers"
    envelope = Envelope(head_dims=range(8, 257, 8), gqa=False)

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool) -> torch.Tensor:
        """Heads and sequence are transposed as views."""
        ops = self.library()
        mask = ops.LowerTriangularMask() if causal else None
        out: torch.Tensor = ops.memory_efficient_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_bias=mask, scale=scale
        )
        return out.transpose(1, 2)
