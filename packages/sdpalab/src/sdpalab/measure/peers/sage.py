"""SageAttention: Q K^T in INT8, P V in FP8 or FP16. Source: ``sageattention.sageattn``, thu-ml/SageAttention.

It is held to the same tolerance as all others, that of 16-bit arithmetic; where its quantisation exceeds that, the
table has the reason in place of a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdpalab.measure.peers.peer import Envelope, Peer

if TYPE_CHECKING:
    import torch

__all__ = ["SageAttention"]


class SageAttention(Peer):
    """``sageattn`` in the layout ``HND``, [B, H, S, D]."""

    name, module, package = "sage", "sageattention", "sageattention"
    envelope = Envelope(head_dims=range(8, 129, 8), causal_square_only=True)
    precision = "fp8"

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool) -> torch.Tensor:
        """Quantising is part of the call, and of its time."""
        out: torch.Tensor = self.library().sageattn(q, k, v, tensor_layout="HND", is_causal=causal, sm_scale=scale)
        return out
