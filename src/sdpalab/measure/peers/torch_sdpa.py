"""torch's scaled_dot_product_attention: each backend by itself, and torch's own choice among them.

What each takes: ``torch/nn/attention`` and the checks of ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sdpalab.measure.peers.peer import Envelope, Peer

if TYPE_CHECKING:
    import torch

__all__ = ["TORCH_PEERS", "TorchSdpa"]


class TorchSdpa(Peer):
    """One backend, a member of ``torch.nn.attention.SDPBackend``; None is torch's own choice: what users get."""

    module, package = "torch.nn.attention", "torch"

    def __init__(self, name: str, backend: str | None, envelope: Envelope) -> None:
        self.name, self.backend, self.envelope = name, backend, envelope

    def scope(self) -> AbstractContextManager[Any]:
        """Restricts the whole process to the backend."""
        if self.backend is None:
            return nullcontext()
        from torch.nn.attention import SDPBackend, sdpa_kernel

        only: AbstractContextManager[Any] = sdpa_kernel(getattr(SDPBackend, self.backend))
        return only

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool) -> torch.Tensor:
        """As a user calls it; ``enable_gqa`` only where it is needed."""
        from torch.nn.functional import scaled_dot_product_attention

        gqa = q.shape[1] != k.shape[1]
        out: torch.Tensor = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=gqa)
        return out


_ANY = Envelope(head_dims=range(1, 1025), archs=range(50, 130))

TORCH_PEERS = (
    TorchSdpa("torch", None, _ANY),
    TorchSdpa("torch flash", "FLASH_ATTENTION", Envelope(head_dims=range(8, 257, 8), causal_square_only=True)),
    TorchSdpa("torch cudnn", "CUDNN_ATTENTION", Envelope(head_dims=range(8, 257, 8))),
    TorchSdpa("torch efficient", "EFFICIENT_ATTENTION", replace(_ANY, head_dims=range(8, 1025, 8), gqa=False)),
    TorchSdpa("torch math", "MATH", _ANY),
)
