"""A benchmark: one problem, one clock, peers and kernels of the lab in the same rounds, with an empty kernel beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sdpalab.errors import UserError
from sdpalab.inputs import make_inputs
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.measure.clocks import LEAST_GRAPH_CALLS, Clock, EagerClock, GraphClock, StreamClock
from sdpalab.measure.floor import check_floor, gpu_of_device
from sdpalab.measure.l2 import copies_beyond_l2
from sdpalab.measure.peers import Peer
from sdpalab.measure.samples import ClockKind, L2State
from sdpalab.measure.session import MeasuredSession, measure
from sdpalab.measure.stopping import StoppingRule
from sdpalab.measure.subjects import empty_subject, kernel_subject, peer_subject, precision_of
from sdpalab.measure.throttle import watch_for
from sdpalab.problem import Problem

if TYPE_CHECKING:
    import torch

    from sdpalab.run import GpuExecutor

__all__ = ["CudaDevice", "benchmark", "cuda_device", "graph_calls"]


@dataclass(frozen=True)
class CudaDevice:
    """The GPU that is measured: torch's handle, the driver's name, compute capability (90), L2 in bytes, UUID."""

    torch: torch.device
    name: str
    arch: int
    l2_bytes: int
    uuid: str


def cuda_device() -> CudaDevice:
    """torch's current CUDA device.

    Raises
    ------
    UserError
        If torch sees none.
    """
    import torch

    if not torch.cuda.is_available():
        raise UserError(
            "torch sees no GPU here, and only on one can anything be timed; without it 'sdpalab speed-of-light' gives "
            "the floors of a shape, and 'sdpalab judge' and 'sdpalab sanitize' run a kernel on the simulator"
        )
    ordinal = torch.cuda.current_device()
    about = torch.cuda.get_device_properties(ordinal)
    return CudaDevice(
        torch=torch.device("cuda", ordinal),
        name=about.name,
        arch=10 * about.major + about.minor,
        l2_bytes=int(about.L2_cache_size),
        uuid=f"GPU-{about.uuid}",
    )


def graph_calls(copies: int) -> int:
    """Calls of a graph: the least multiple of ``copies`` that is enough, so that a replay ends where it began."""
    return copies * -(-LEAST_GRAPH_CALLS // copies)


def benchmark(
    problem: Problem,
    peers: Sequence[Peer],
    kernels: Sequence[tuple[Kernel, Config]],
    device: CudaDevice,
    *,
    clock: ClockKind = ClockKind.GPU,
    l2: L2State = L2State.WARM,
    rule: StoppingRule | None = None,
    executor: GpuExecutor | None = None,
    seed: int = 0,
) -> MeasuredSession:
    """Measure peers and kernels on one problem, interleaved, outputs checked against the judge's rule.

    Parameters
    ----------
    problem : Problem
    peers : sequence of Peer
        Those that take it (:func:`sdpalab.measure.peers.select`).
    kernels : sequence of (Kernel, Config)
        Judged before; they and the empty kernel need the executor.
    device : CudaDevice
    clock, l2
        What is timed, and where the inputs are.
    rule : StoppingRule, optional
    executor : GpuExecutor, optional
        On the same device. Without it there is no empty kernel.
    seed : int
        Of the inputs and of the rounds that are checked.

    Raises
    ------
    UserError, MachineError
        If a kernel does not build, or cannot be launched.
    """
    inputs = make_inputs(problem, "normal", seed)
    rotated = l2 is L2State.COLD and clock is not ClockKind.STREAM
    copies = copies_beyond_l2(inputs.q.nbytes + inputs.k.nbytes + inputs.v.nbytes, device.l2_bytes) if rotated else 1
    watch, gpu = watch_for(device.uuid), gpu_of_device(device.name)
    floor = partial(check_floor, problem=problem, gpu=gpu, l2=l2, sm_clock_mhz=watch.most_mhz)
    subjects = [
        peer_subject(peer, problem, inputs, device.torch, copies=copies, floor=partial(floor, precision=peer.precision))
        for peer in peers
    ]
    if executor is not None:
        for kernel, config in kernels:
            held = partial(floor, precision=precision_of(kernel.numerics_of(config)))
            subjects.append(kernel_subject(kernel, config, problem, inputs, executor, copies=copies, floor=held))
        subjects.append(empty_subject(executor))
    return measure(subjects, _clock(clock, l2, device, copies), rule, watch=watch, seed=seed)


def _clock(kind: ClockKind, l2: L2State, device: CudaDevice, copies: int) -> Clock:
    import torch

    if kind is ClockKind.GPU:
        return GraphClock(l2, graph_calls(copies))
    if kind is ClockKind.STREAM:
        return StreamClock(device.torch, l2)
    return EagerClock(torch.cuda.synchronize, l2, graph_calls(copies))
