"""A benchmark: one problem, one clock, peers and kernels of the lab in the same rounds, and an empty kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sdpalab.errors import MachineError, UserError
from sdpalab.inputs import make_inputs
from sdpalab.measure.clocks import Clock, EagerClock, GraphClock, StreamClock
from sdpalab.measure.comparison import Comparison
from sdpalab.measure.floor import check_floor
from sdpalab.measure.l2 import copies_beyond_l2
from sdpalab.measure.outputs import Outputs
from sdpalab.measure.peers import PEERS, Peer
from sdpalab.measure.samples import ClockKind, L2State
from sdpalab.measure.session import MeasuredSession, Subject, measure
from sdpalab.measure.stopping import StoppingRule
from sdpalab.measure.subjects import EMPTY, empty_subject, failing_subject, kernel_subject, peer_subject, precision_of
from sdpalab.measure.throttle import watch_for
from sdpalab.measure.timing_gate import TimingPermit
from sdpalab.problem import Problem
from sdpalab.run import torch_gpu
from warpsan.gpus import gpu_of_device

if TYPE_CHECKING:
    import torch

    from sdpalab.run import GpuExecutor

__all__ = ["CudaDevice", "benchmark", "beside_fastest_peer", "cuda_device"]


@dataclass(frozen=True)
class CudaDevice:
    """The measured GPU: handle in torch, name, compute capability (as 90), L2 in bytes, UUID and number."""

    torch: torch.device
    name: str
    arch: int
    l2_bytes: int
    uuid: str
    ordinal: int = 0


def cuda_device() -> CudaDevice:
    """torch's current CUDA device.

    Raises
    ------
    UserError
        If torch finds no GPU.
    """
    if not torch_gpu.available():
        raise UserError(
            "torch finds no GPU here, and timing needs one; without it 'sdpalab speed-of-light' gives "
            "the floors of a shape, and 'sdpalab judge' and 'sdpalab sanitize' run a kernel on the simulator"
        )
    about = torch_gpu.properties(torch_gpu.current_ordinal())
    major, minor = about.capability
    return CudaDevice(
        torch=torch_gpu.device(about.ordinal),
        name=about.name,
        arch=10 * major + minor,
        l2_bytes=about.l2_bytes,
        uuid=about.uuid,
        ordinal=about.ordinal,
    )


def benchmark(
    problem: Problem,
    peers: Sequence[Peer],
    kernels: Sequence[TimingPermit],
    device: CudaDevice,
    *,
    clock: ClockKind = ClockKind.GPU,
    l2: L2State = L2State.WARM,
    rule: StoppingRule | None = None,
    executor: GpuExecutor | None = None,
    seed: int = 0,
    kind: str = "normal",
    outputs: Outputs | None = None,
) -> MeasuredSession:
    """Measure peers and kernels on one problem in interleaved rounds, with outputs checked against the judge's rule.

    Parameters
    ----------
    problem : Problem
    peers : sequence of Peer
        Peers that support the problem (:func:`sdpalab.measure.peers.select`).
    kernels : sequence of TimingPermit
        Kernels of the lab with a PASSED verdict (:mod:`sdpalab.measure.timing_gate`) and distinct names; they and the
        empty kernel require the executor.
    device : CudaDevice
    clock, l2
        Kind of time, and location of the inputs.
    rule : StoppingRule, optional
    executor : GpuExecutor, optional
        Executor on the same device. Without it there is no empty kernel.
    seed : int
        Seed of the inputs, of the checked rounds, and of the judged rows of large outputs.
    kind : str
        Kind of inputs (:func:`sdpalab.inputs.make_inputs`); published times use :data:`sdpalab.inputs.TIMED_KINDS`.
    outputs : Outputs, optional
        References of the problem and these inputs, for repeated measurements: they are then computed once.

    Returns
    -------
    MeasuredSession
        A subject that cannot be built, launched or allocated has the status FAILED, with the reason.

    Raises
    ------
    UserError
        If a permit is not for this problem, or requires a missing executor: nothing is timed then.
    """
    for permit in kernels:
        if not isinstance(permit, TimingPermit):
            raise UserError(
                f"benchmark takes kernels with a TimingPermit, not {type(permit).__name__}: "
                "sdpalab.measure.timing_gate.judge_for_timing judges one"
            )
        if executor is None:
            raise UserError(f"{permit.name} is not timed: kernels of the lab need an executor on the GPU")
        permit.prepared(problem)
    outputs = outputs or Outputs(problem, make_inputs(problem, kind, seed), seed)
    inputs = outputs.inputs
    rotated = l2 is L2State.COLD and clock is not ClockKind.STREAM
    copies = copies_beyond_l2(sum(array.nbytes for array in inputs.arrays.values()), device.l2_bytes) if rotated else 1
    watch, gpu = watch_for(device.uuid), gpu_of_device(device.name)
    floor = partial(check_floor, problem=problem, gpu=gpu, l2=l2, sm_clock_mhz=watch.most_mhz)
    makers: list[tuple[str, Callable[[], Subject]]] = [
        (
            peer.name,
            partial(
                peer_subject, peer, outputs, device.torch, copies=copies, floor=partial(floor, precision=peer.precision)
            ),
        )
        for peer in peers
    ]
    if executor is not None:
        for permit in kernels:
            held = partial(floor, precision=precision_of(permit.kernel.numerics_of(permit.config)))
            make = partial(kernel_subject, permit, outputs, executor, copies=copies, floor=held)
            makers.append((permit.name, partial(make, eager=clock is ClockKind.EAGER)))
        makers.append((EMPTY, partial(empty_subject, executor)))
    subjects = [_subject(name, make) for name, make in makers]
    return measure(subjects, _clock(clock, l2, device, copies), rule, watch=watch, seed=seed)


def beside_fastest_peer(session: MeasuredSession) -> tuple[str | None, dict[str, Comparison]]:
    """The peer with the least median, with comparisons of all other timed subjects; None if no peer has a time."""
    peers = {peer.name for peer in PEERS}
    times = {each.name: each.summary.median_us for each in session.measurements if each.summary}
    base = min((name for name in times if name in peers), key=times.__getitem__, default=None)
    if base is None:
        return None, {}
    return base, {name: session.compare(name, base) for name in times if name != base}


def _subject(name: str, make: Callable[[], Subject]) -> Subject:
    """The subject, or one that fails with the exception of its creation; the others are still measured."""
    try:
        return make()
    except (UserError, MachineError, RuntimeError) as error:
        return failing_subject(name, error)


def _clock(kind: ClockKind, l2: L2State, device: CudaDevice, copies: int) -> Clock:
    if kind is ClockKind.GPU:
        return GraphClock(l2, copies)
    if kind is ClockKind.STREAM:
        return StreamClock(device.torch, l2)
    return EagerClock(torch_gpu.synchronize, l2, copies)
