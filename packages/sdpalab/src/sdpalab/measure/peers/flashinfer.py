"""FlashInfer's prefill kernel for one sequence. Source: docs.flashinfer.ai, ``single_prefill_with_kv_cache``.

The kernel has no batch axis; its causal mask is aligned to the bottom right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdpalab.measure.peers.peer import Envelope, Peer

if TYPE_CHECKING:
    import torch

__all__ = ["FlashInfer"]


class FlashInfer(Peer):
    """``single_prefill_with_kv_cache`` on Q [Sq, H, D] and K, V [Hkv, Skv, D]."""

    name, module, package = "flashinfer", "flashinfer", "flashinfer-python"
    envelope = Envelope(head_dims=(64, 128, 256), causal_square_only=True, batches=False)

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool) -> torch.Tensor:
        """K and V in their own layout (``HND``), Q as a transposed view."""
        out: torch.Tensor = self.library().single_prefill_with_kv_cache(
            q[0].transpose(0, 1), k[0], v[0], causal=causal, kv_layout="HND", sm_scale=scale
        )
        return out.transpose(0, 1)[None]
