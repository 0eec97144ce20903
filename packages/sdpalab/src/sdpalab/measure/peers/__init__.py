"""Peers: other implementations of attention, one small adapter each, and the choice of peers for a problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sdpalab.errors import UserError
from sdpalab.measure.peers.flash_attn import FLASH_ATTENTION_PEERS, FlashAttention
from sdpalab.measure.peers.flashinfer import FlashInfer
from sdpalab.measure.peers.flex import FlexAttention
from sdpalab.measure.peers.peer import Envelope, Peer
from sdpalab.measure.peers.sage import SageAttention
from sdpalab.measure.peers.torch_sdpa import TORCH_PEERS, TorchSdpa
from sdpalab.measure.peers.xformers import Xformers
from sdpalab.problem import Problem

__all__ = [
    "PEERS",
    "Envelope",
    "FlashAttention",
    "FlashInfer",
    "FlexAttention",
    "Peer",
    "SageAttention",
    "Selection",
    "TorchSdpa",
    "Xformers",
    "peers_named",
    "select",
]

PEERS: tuple[Peer, ...] = (
    *TORCH_PEERS,
    FlexAttention(),
    *FLASH_ATTENTION_PEERS,
    FlashInfer(),
    SageAttention(),
    Xformers(),
)
"""All peers, those of torch first."""


@dataclass(frozen=True)
class Selection:
    """Peers that can be measured on a problem, and one sentence with the reason for each other peer."""

    peers: tuple[Peer, ...]
    refused: tuple[str, ...]


def select(problem: Problem, arch: int, peers: Sequence[Peer] = PEERS) -> Selection:
    """Select from ``peers`` by problem and GPU, and then by installed libraries.

    Parameters
    ----------
    problem : Problem
    arch : int
        Compute capability, 90 for 9.0.
    """
    reasons = {peer.name: peer.why_not(problem, arch) or peer.why_not_there() for peer in peers}
    return Selection(
        peers=tuple(peer for peer in peers if reasons[peer.name] is None),
        refused=tuple(reason for reason in reasons.values() if reason is not None),
    )


def peers_named(names: Sequence[str]) -> tuple[Peer, ...]:
    """The peers with these names, in the order of :data:`PEERS`; all peers for an empty sequence.

    Raises
    ------
    UserError
        If a name has no peer.
    """
    known = [peer.name for peer in PEERS]
    for name in names:
        if name not in known:
            raise UserError(f"there is no peer {name!r}; the peers are {', '.join(known)}")
    return tuple(peer for peer in PEERS if not names or peer.name in names)
