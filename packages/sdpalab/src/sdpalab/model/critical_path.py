"""The critical path of one CTA on wgmma, from its launch to its last store, phase by phase.

On small problems an SM has one or two CTAs, and throughput does not determine their time: copies, products and softmax
of a tile depend on each other. The replay of the machine code (:mod:`sdpalab.model.replay`) has the clock of each
instruction. A phase ends where the warp with the last store issues a product or has waited for one.

Warps of a cluster that merge their partial results take two paths: one sends; the other waits for the data, merges and
stores. The critical path is that of a sender, the latency of its last store to the other SM, and the keeper's code
after its wait. All CTAs of a cluster are assumed to run alike. The data cross the network between the SMs at a rate of
its own, concurrently with the sending instructions.

Launch and store outside the SM are not on the path: the time of an empty kernel contains them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sdpalab.compile.sass import SassInstruction
from sdpalab.errors import UserError
from sdpalab.model.matching import roles_of
from sdpalab.model.operations import CLUSTER_CLOCKS, Act, Memory, Operation, operations
from sdpalab.model.pipes import Pipes, pipes_of
from sdpalab.model.replay import replay
from warpsan.gpus import Gpu
from warpsan.profile import Counters

__all__ = ["CLUSTER_BYTES_PER_CLOCK", "CLUSTER_CLOCKS", "CriticalPath", "Phase", "critical_path"]

CLUSTER_BYTES_PER_CLOCK = 14.1
"""Bytes per clock that an SM sends to another one, with all SMs in clusters of two sending. Assumed: about 3.3 TB/s
over 132 SMs at 1.755 GHz, without a source; not yet measured."""
_SEND = re.compile(r"st\.async\S*?(?:\.v(\d))?\.[bfus](\d+)")
_SENDS = ("STAS",)
_STORES = ("UTMASTG",)
_Trace = list[tuple[float, int, int]]


@dataclass(frozen=True)
class Phase:
    """A part of the path: its content and its clocks; modelled."""

    name: str
    clocks: float


@dataclass(frozen=True)
class CriticalPath:
    """The phases in order, and the clock rate in MHz."""

    phases: tuple[Phase, ...]
    clock_mhz: float

    @property
    def clocks(self) -> float:
        """Clocks of all phases."""
        return sum(phase.clocks for phase in self.phases)

    @property
    def microseconds(self) -> float:
        """Microseconds of all phases."""
        return self.clocks / self.clock_mhz


def critical_path(
    code: Sequence[SassInstruction],
    counters: Counters,
    memory: Memory,
    gpu: Gpu,
    ctas: int = 1,
    sms: int | None = None,
) -> CriticalPath | None:
    """The critical path of a CTA among ``ctas`` resident CTAs of its SM.

    Parameters
    ----------
    code : sequence of SassInstruction
        Machine code of the whole function.
    counters : Counters
        Counts of the launch on the simulator.
    memory : Memory
    gpu : Gpu
    ctas : int
        Resident CTAs of the SM, which start together.
    sms : int or None
        Number of SMs with such CTAs, which share the bandwidth of L2; None for all SMs of the GPU.

    Returns
    -------
    CriticalPath or None
        None without wgmma, since a warp's products are then no phases.

    Raises
    ------
    UserError
        If the counts fit no path, or one without copies, or if ``model/pipes.json`` has no figures for the GPU.
    """
    way = _Way([_together(one) for one in code], counters, memory, _pipes(gpu, sms or gpu.sms), ctas)
    if not any(one.act is Act.WGMMA for one in way.operations):
        return None
    sends, stores = (_places(code, bases) for bases in (_SENDS, _STORES))
    if not stores:
        raise UserError("the machine code on wgmma has no TMA store that would end a path")
    keeper = way.phases(stores[:1], "store")
    if not sends:
        return CriticalPath(tuple(keeper), gpu.clock_mhz)
    phases = way.phases(sends[:1], "send")
    in_network = max(0.0, ctas * _sent_bytes(counters) / CLUSTER_BYTES_PER_CLOCK - phases[-1].clocks)
    phases += [Phase("to the other SM", in_network + CLUSTER_CLOCKS), Phase("merge and store", keeper[-1].clocks)]
    return CriticalPath(tuple(phases), gpu.clock_mhz)


def _pipes(gpu: Gpu, sms: int) -> Pipes:
    """Pipes of the GPU with L2 shared by ``sms`` SMs only; the port of an SM limits its share."""
    pipes = pipes_of(gpu)
    share = pipes.l2_bytes_per_clk_sm * gpu.sms / min(sms, gpu.sms)
    return replace(pipes, l2_bytes_per_clk_sm=min(float(gpu.l2_bytes_per_clk_sm), share))


def _sent_bytes(counters: Counters) -> float:
    """Mean bytes that a CTA sends to others."""
    sent = ((_SEND.match(each.text), each.lanes) for each in counters.by_instruction)
    return sum(int(send[1] or 1) * int(send[2]) / 8 * lanes for send, lanes in sent if send) / len(counters.by_cta)


def _together(one: SassInstruction) -> SassInstruction:
    """The instruction; a branch that only diverged warps take counts as no branch."""
    return replace(one, opcode="NOP", target=None) if one.opcode.startswith("BRA.DIV") else one


def _places(code: Sequence[SassInstruction], bases: Sequence[str]) -> list[int]:
    return [place for place, one in enumerate(code) if one.base in bases]


class _Way:
    """One launch, whose CTAs are replayed on the path through given places."""

    def __init__(
        self, code: Sequence[SassInstruction], counters: Counters, memory: Memory, pipes: Pipes, ctas: int
    ) -> None:
        self.code, self.counters, self.pipes, self.ctas = code, counters, pipes, ctas
        self.operations: tuple[Operation, ...] = operations(code, pipes, memory)
        self.shared_bytes = memory.shared_bytes

    def phases(self, through: Sequence[int], end: str) -> list[Phase]:
        """Phases of the last warp to end among those that pass these places; ``end`` is the name of the last phase."""
        roles = roles_of(self.code, self.counters, through)
        of_warp = {warp: role for role in roles for warp in role.warps}
        trace: _Trace = []
        paths = [of_warp[warp].path for warp in sorted(of_warp)]
        replay(self.operations, paths, self.ctas, self.pipes, self.shared_bytes, trace)
        through_them = {warp for warp, path in enumerate(paths) if set(through) <= set(path)}
        last = max(trace, key=lambda event: (event[1] % len(paths) in through_them, event[0]))[1]
        return self._cut([(clock, place) for clock, warp, place in trace if warp == last], trace, end)

    def _cut(self, events: Sequence[tuple[float, int]], trace: _Trace, end: str) -> list[Phase]:
        """Phases between the first copy, the first product of each group and the waits for them."""
        copied = [clock for clock, _, place in trace if self.operations[place].act is Act.COPY]
        if not copied:
            raise UserError("the counts fit no path through the machine code that copies anything")
        acts = [(clock, self.operations[place].act) for clock, place in events]
        behind = max(number for number, (_, act) in enumerate(acts) if act is Act.WGMMA_WAIT)
        cuts = [("start", min(copied))]
        issued = False
        for number, (clock, act) in enumerate(acts):
            if act is Act.WGMMA and not issued:
                cuts.append(("first copies" if len(cuts) == 1 else "softmax", clock))
            elif act is Act.WGMMA_WAIT:
                cuts.append(("products" if issued else "softmax beside a product", clock))
            elif act is Act.DATA_WAIT and number > behind:
                cuts.append(("wait for the other CTA", clock))
            issued = act is Act.WGMMA or (issued and act is not Act.WGMMA_WAIT)
        cuts.append((end, acts[-1][0]))
        starts = [0.0, *(clock for _, clock in cuts)]
        return [Phase(name, clock - start) for (name, clock), start in zip(cuts, starts, strict=False)]
