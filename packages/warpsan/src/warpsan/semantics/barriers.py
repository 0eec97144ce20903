"""Barriers of a block and of a cluster, fences, and numbers of registers (PTX ISA, "bar", "barrier.cluster", "fence",
"setmaxnreg"). ``bar.warp`` is in :mod:`.warp`."""

from __future__ import annotations

from warpsan.analysis.derived import derived
from warpsan.checks.orders import LEVELS, SAME_CLUSTER, SAME_GPU, fence_order, is_memory_fence
from warpsan.engine import layout
from warpsan.engine.assembler import Assembler, native
from warpsan.engine.clocks import fence_proxies, fence_warp
from warpsan.engine.communication import orders_by_memory, relaxed_arrivals, relaxed_waits
from warpsan.engine.initialised import fence_mbarriers
from warpsan.engine.map_fences import fence_maps
from warpsan.engine.mbarriers import acquire_observed
from warpsan.engine.watch import fence_memory
from warpsan.ptx.grammar import Form, known_form
from warpsan.ptx.ir import Entry, Instruction
from warpsan.ptx.synchronising import (
    BarrierReduction,
    BlockBarrier,
    BulkCopy,
    ClusterAction,
    ProxyFence,
    RegisterCount,
    TensorCopy,
    TensorMapFence,
)
from warpsan.semantics.mbarriers import wide_row

__all__: list[str] = []

_BARRIERS = {"sync": layout.END_BARRIER, "arrive": layout.END_ARRIVE}


@native("bar", "barrier")
def _barrier(asm: Assembler, instruction: Instruction, form: BlockBarrier) -> None:
    operands = instruction.operands
    asm.end |= {"end": _BARRIERS[form.action], "end_token": int(form.aligned), "end_pc": instruction.pc}
    if form.action == "sync" and len(operands) == 1 and form.aligned:
        asm.end["end_c"] = 1  # the code of __syncthreads(), if the barrier is the first
    asm.end["end_a"] = asm.source(operands[0], "u32")
    asm.end["end_b"] = asm.source(operands[1], "u32") if len(operands) > 1 else -1


@native("bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red")
def _reduce(asm: Assembler, instruction: Instruction, form: BarrierReduction) -> None:
    """All threads get the number of predicates that hold, or whether all or any do."""
    target, barrier, *threads, predicate = instruction.operands
    asm.end |= {"end": layout.END_REDUCE, "end_token": int(form.aligned), "end_pc": instruction.pc}
    row, _ = asm.target(target, form.type.name)
    asm.end |= {"target": ("popc", "and", "or").index(form.operation), "end_d": row}
    asm.end["end_c"] = asm.source(predicate, "pred")
    asm.end["end_a"] = asm.source(barrier, "u32")
    asm.end["end_b"] = asm.source(threads[0], "u32") if threads else -1


@native("barrier.cluster")
def _cluster(asm: Assembler, instruction: Instruction, form: ClusterAction) -> None:
    """All threads of the cluster that have not exited take part; a thread waits for the phase in which it arrived."""
    asm.end["end"] = layout.END_CLUSTER_ARRIVE if form.action == "arrive" else layout.END_CLUSTER_WAIT
    asm.end |= {"end_a": int(form.order == "relaxed"), "end_pc": instruction.pc}


@native("setmaxnreg")
def _setmaxnreg(asm: Assembler, instruction: Instruction, form: RegisterCount) -> None:
    """Values stay. A warp that requests more registers than its block has left waits until others release some."""
    asm.end |= {"end": layout.END_REGISTERS, "end_a": form.wanted, "end_b": int(form.action == "inc")}
    asm.end |= {"end_c": int(asm.checked and "maxnreg" in asm.entry.directives), "end_pc": instruction.pc}


# ---- fences ----------------------------------------------------------------------------------------------------------


@derived
def copies_complete(entry: Entry) -> bool:
    """Whether bulk copies complete on mbarriers, whose initialisation is then checked."""
    forms = (known_form(each, BulkCopy) or known_form(each, TensorCopy) for each in entry.instructions)
    return any(form is not None and form.completes for form in forms)


@native("fence", "membar")
def _fence(asm: Assembler, instruction: Instruction, form: Form) -> None:
    """Instructions run one after the other here: a fence changes no value; only the checks use it."""
    if asm.checked and not isinstance(form, ProxyFence | TensorMapFence):
        order = fence_order(instruction)
        if relaxed_arrivals(asm.entry) and order.release:
            asm.call("fence", fence_warp, [int(order.level >= SAME_CLUSTER), int(is_memory_fence(instruction))])
        if relaxed_waits(asm.entry) and order.acquire:
            asm.call("fence.observed", acquire_observed, [int(order.level >= SAME_CLUSTER)])
        if orders_by_memory(asm.entry):
            operands = [order.acquire, order.release, min(order.level, SAME_GPU), order.sequential]
            asm.call("fence.memory", fence_memory, list(map(int, operands)))
        if order.release and order.level >= SAME_CLUSTER and copies_complete(asm.entry):
            asm.call("fence.mbarriers", fence_mbarriers, [])
    if isinstance(form, TensorMapFence):
        row, bits, offset = asm.address(instruction.operands[0]) if instruction.operands else (0, 64, 0)
        if asm.checked:
            wide = wide_row(asm, row, bits) if instruction.operands else 0
            operands = [wide, offset, min(LEVELS[form.scope], SAME_GPU), int(form.order == "acquire")]
            asm.call("fence.maps", fence_maps, operands)
    if asm.checked and isinstance(form, ProxyFence):
        asm.call("fence.proxy", fence_proxies, [int(each in form.spaces) for each in ("shared", "global")])
        if "shared" in form.spaces and copies_complete(asm.entry):
            asm.call("fence.mbarriers", fence_mbarriers, [])
