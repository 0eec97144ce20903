"""SageAttention: Q K^T in INT8, P V in FP8 or FP16. Source: ``sageattention.sageattn``, thu-ml/SageAttention.

The tolerance is the same as for all others, that of 16-bit arithmetic; if quantisation exceeds it, the table has the
reason instead of a time.
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
        """The call quantises its inputs, and its time includes that."""
        out: torch.Tensor = self.library().sageattn(q, k, v, tensor_layout="HND", is_causal=causal, sm_scale=scale)
        return out
