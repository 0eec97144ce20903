"""torch's scaled_dot_product_attention: each backend by itself, and torch's own choice.

Supported problems: ``torch/nn/attention`` and the checks of ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpalab.judge.tensors import to_torch_mask
from sdpalab.judge.torch_backends import joined_mask
from sdpalab.measure.peers.peer import Envelope, Peer

if TYPE_CHECKING:
    import torch

    from sdpalab.inputs import Inputs
    from sdpalab.problem import Problem

__all__ = ["TORCH_PEERS", "TorchSdpa"]


class TorchSdpa(Peer):
    """One backend, a member of ``torch.nn.attention.SDPBackend``; None is torch's own choice, the default for users."""

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

    def prepared(
        self, problem: Problem, inputs: Inputs, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> Callable[[], torch.Tensor]:
        """Window and lengths become a mask, combined with the problem's own and the causal one."""
        if not {*problem.features} - {"backward"}:
            return super().prepared(problem, inputs, q, k, v)
        joined = joined_mask(inputs.q, inputs.k, np.arange(problem.seq_q), problem.scoring_with(inputs.arrays))
        mask = to_torch_mask(joined).to(q.device)
        return partial(self.run, q, k, v, scale=problem.scale, causal=False, attn_mask=mask)

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        scale: float,
        causal: bool,
        attn_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A user's call; ``enable_gqa`` only if needed."""
        from torch.nn.functional import scaled_dot_product_attention

        out: torch.Tensor = scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        return out


_ANY = Envelope(
    head_dims=range(1, 1025), archs=range(50, 130), features=("window_size", "kv_lengths", "attn_mask", "backward")
)

TORCH_PEERS = (
    TorchSdpa("torch", None, _ANY),
    TorchSdpa(
        "torch flash",
        "FLASH_ATTENTION",
        Envelope(head_dims=range(8, 257, 8), causal_square_only=True, features=("backward",)),
    ),
    TorchSdpa("torch cudnn", "CUDNN_ATTENTION", replace(_ANY, head_dims=range(8, 257, 8), archs=Envelope.archs)),
    TorchSdpa("torch efficient", "EFFICIENT_ATTENTION", replace(_ANY, head_dims=range(8, 1025, 8), gqa=False)),
    TorchSdpa("torch math", "MATH", _ANY),
)
