"""``sdpalab bench``: judged kernels, and peers, timed on a GPU in the same rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sdpalab.commands.option_groups import ConfinementOptions
from sdpalab.commands.options import IncludeOption, SetOption, VerdictsOption, include_dirs_of, parse_settings, shapes
from sdpalab.commands.problem_options import ProblemOptions, problems_of
from sdpalab.errors import MachineError, UserError
from sdpalab.problem import Problem
from warpsan.terminal.console import progress_console, verdict_text
from warpsan.terminal.invocation import OUTCOMES, console_and_subject, write_document
from warpsan.terminal.options import JsonOption
from warpsan.terminal.tables import show_table, table

if TYPE_CHECKING:
    from sdpalab.evidence.store.measured import BenchRecord
    from sdpalab.kernels.kernel import Config, Kernel
    from sdpalab.measure.benchmark import CudaDevice
    from sdpalab.measure.samples import ClockKind
    from sdpalab.measure.session import MeasuredSession, Measurement
    from sdpalab.measure.timing_gate import GateOutcome
    from sdpalab.run import GpuExecutor

__all__ = ["bench", "show_gate", "show_session", "show_worst"]


def bench(
    kernel: Annotated[
        list[str] | None,
        typer.Argument(metavar="KERNEL", help="Shipped kernels, or your own as FILE.py[:NAME]. Default: peers only."),
    ] = None,
    shape: Annotated[list[str] | None, shapes("Problem to time", "mission")] = None,
    *,
    described: ProblemOptions,
    peer: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this peer; may be repeated. Default: all there are.")
    ] = None,
    clock: Annotated[
        list[str] | None,
        typer.Option(metavar="C", help="gpu (graph replay), stream or eager; may be repeated. Default: all three."),
    ] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Inputs in DRAM, not in L2.")] = False,
    knobs: SetOption = None,
    include: IncludeOption = None,
    seconds: Annotated[
        float, typer.Option(metavar="S", help="Most seconds for one shape, clock and kind of inputs.")
    ] = 10.0,
    verdicts: VerdictsOption = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the record for the op, as prove --time does: eager times of kernels.")
    ] = False,
    confined: ConfinementOptions,
    json: JsonOption = None,
) -> int:
    """Time kernels and peers on the GPU: interleaved, outputs checked, with intervals; also on the slowest inputs."""
    from sdpalab.evidence.environment import current_environment, harness_diff
    from sdpalab.evidence.store.lookup import recorded_verdicts
    from sdpalab.evidence.store.measured import bench_record, session_result
    from sdpalab.evidence.store.timings import codes_of
    from sdpalab.evidence.store.tuned import shared_config
    from sdpalab.inputs import TIMED_KINDS, make_inputs
    from sdpalab.judge.sandbox.sandboxed import compile_for, configured_kernel
    from sdpalab.measure.benchmark import benchmark, cuda_device
    from sdpalab.measure.outputs import Outputs
    from sdpalab.measure.peers import peers_named, select
    from sdpalab.measure.samples import L2State
    from sdpalab.measure.stopping import StoppingRule
    from sdpalab.measure.timing_gate import NOT_BUILT, judge_for_timing

    console = console_and_subject(json, ", ".join(kernel or ()))
    problems = problems_of(shape, described, layouts=False)
    clocks, peers, rule = _clocks(clock), peers_named(peer or ()), StoppingRule(seconds=seconds)
    settings, folders = parse_settings(knobs), include_dirs_of(include, *(kernel or ()))
    with ExitStack() as processes:
        kernels = [
            processes.enter_context(
                configured_kernel(name, problems, settings, else_say=NOT_BUILT, include_dirs=folders)
            )
            for name in kernel or ()
        ]
        device = cuda_device()
        if not settings:
            kernels = [(loaded, shared_config(loaded, problems, device.name)) for loaded, _ in kernels]
        executor = _executor(device, needed=bool(kernels))
        for loaded, _ in kernels:
            assert executor is not None, "kernels need an executor"
            compile_for(loaded, executor.arch)
        gates: list[GateOutcome] = []
        results: list[dict[str, Any]] = []
        environment = current_environment(harness_diff())

        def write(status: str, *, complete: bool) -> BenchRecord:
            """The record so far, which is stored if the command is interrupted."""
            sms = executor.sms if executor else None
            judged = [gate.to_dict() for gate in gates]
            record = bench_record(device.name, judged, results, sms=sms, complete=complete, environment=environment)
            if complete or json != "-":
                write_document(json, record.to_dict(), status=status)
            return record

        try:
            for name, (loaded, config) in zip(kernel or (), kernels, strict=True):
                assert executor is not None, "kernels need an executor"
                taken = [problem for problem in problems if loaded.why_not(problem, config) is None]
                with progress_console().status(f"judging {name} on the simulator"):
                    gate = judge_for_timing(
                        loaded,
                        config,
                        taken,
                        arch=executor.arch,
                        sms=executor.sms,
                        candidate=name,
                        recorded=recorded_verdicts(verdicts),
                        include_dirs=folders,
                    )
                show_gate(console, gate)
                gates.append(gate)
                write("INTERRUPTED", complete=False)
            for problem in problems:
                refused = {loaded.name: loaded.why_not(problem, config) for loaded, config in kernels}
                timed = [permit for gate in gates if (permit := gate.permit_for(problem)) is not None]
                codes = {}
                if executor:
                    pairs = [(permit.kernel, permit.config) for permit in timed]
                    codes = codes_of(pairs, problem, executor.arch, executor.sms)
                chosen = select(problem, device.arch, peers)
                outputs = {inputs: Outputs(problem, make_inputs(problem, inputs)) for inputs in TIMED_KINDS}
                for kind in clocks:
                    for inputs, held in outputs.items():
                        with progress_console().status(f"{problem.label}, {kind.value} clock, {inputs} inputs"):
                            session = benchmark(
                                problem,
                                chosen.peers,
                                timed,
                                device,
                                clock=kind,
                                l2=L2State.COLD if cold else L2State.WARM,
                                rule=rule,
                                executor=executor,
                                kind=inputs,
                                outputs=held,
                            )
                        show_session(console, device.name, problem, kind, session, inputs)
                        results.append(session_result(problem, kind, inputs, session, codes))
                        write("INTERRUPTED", complete=False)
                for reason in (*filter(None, refused.values()), *chosen.refused):
                    console.print(f"not measured: {reason}", soft_wrap=True)
        except KeyboardInterrupt:
            write("INTERRUPTED", complete=False)
            raise
        timed_any = any(measurement["summary"] for result in results for measurement in result["measurements"])
        green = all(gate.permit is not None and not gate.left_out for gate in gates) and _timed(kernels, results)
        record = write(OUTCOMES[0 if green and timed_any else 1 if timed_any else 3], complete=True)
        show_worst(console, record)
        if keep:
            console.print(f"kept in {_keep(record)}", soft_wrap=True)
        if not timed_any:
            raise MachineError("nothing could be measured: the reasons are above")
        return 0 if green else 1


def _keep(record: BenchRecord) -> Path:
    """Store the record in the user's data folder, and return its path."""
    from sdpalab.evidence.store.record import keep, sealed
    from sdpalab.run.driver_version import driver_version

    return keep(sealed(gpu=record.gpu, driver=driver_version(), bench=record), "times")


def _timed(kernels: Sequence[tuple[Kernel, Config]], results: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every kernel has a time in each of its sessions, or was left out of it as too slow."""
    from sdpalab.measure.session import MeasureStatus

    good = {MeasureStatus.MEASURED.value, MeasureStatus.LEFT_OUT.value}
    names = {kernel.name for kernel, _ in kernels}
    measurements = [each for result in results for each in result["measurements"] if each["name"] in names]
    return all(each["status"] in good for each in measurements)


def _clocks(names: Sequence[str] | None) -> list[ClockKind]:
    from sdpalab.measure.samples import ClockKind

    try:
        return [ClockKind(name) for name in names] if names else list(ClockKind)
    except ValueError as error:
        raise UserError(f"--clock takes {', '.join(kind.value for kind in ClockKind)}: {error}") from None


def _executor(device: CudaDevice, *, needed: bool) -> GpuExecutor | None:
    """The executor on torch's device; None if it is neither needed nor possible: the empty kernel is then omitted."""
    from sdpalab.run import GpuExecutor

    try:
        return GpuExecutor(device.ordinal)
    except MachineError:
        if needed:
            raise
        return None


def show_gate(console: Console, gate: GateOutcome) -> None:
    """Print why a kernel is not timed, at all or on some problems; prints nothing for a timed one."""
    for label, why in gate.left_out.items():
        console.print(verdict_text(False, f"{gate.kernel} is not timed on {label}: {why}"), soft_wrap=True)
    if gate.permit is None:
        console.print(verdict_text(False, f"{gate.kernel} is not timed: {gate.reason}"), soft_wrap=True)


def show_worst(console: Console, record: BenchRecord) -> None:
    """Print a row for each subject, problem and clock: the median for each kind of inputs, and the worst of them."""
    kinds = list(dict.fromkeys(kind for row in record.worst for kind in row.times_us))
    columns = (*kinds, "worst", "worst over normal")
    shown = table(
        f"medians by kind of inputs, microseconds, measured on {record.gpu}",
        ("problem", "clock", "subject", *columns),
        numeric=columns,
        spare=kinds,
    )
    for row in record.worst:
        times = [f"{row.times_us[kind]:.2f}" if row.times_us.get(kind) else "-" for kind in kinds]
        worst = f"{row.worst_us:.2f} ({row.inputs})" if row.worst_us else "-"
        ratio = f"{row.ratio:.2f}" if row.ratio else "-"
        shown.add_row(row.problem.label, row.clock, row.subject, *times, worst, ratio)
    if record.worst:
        show_table(console, shown)


def show_session(
    console: Console,
    device: str,
    problem: Problem,
    kind: ClockKind,
    session: MeasuredSession,
    inputs: str = "normal",
) -> None:
    """Print a session on ``device`` and ``inputs``, with each subject against the fastest peer."""
    from sdpalab.measure.benchmark import beside_fastest_peer

    base, against = beside_fastest_peer(session)
    numbers = ("median us", "p10 to p90", "median's interval", "TFLOPS", "GB/s", "tokens/s", "of the limit")
    shown = table(
        f"{problem.label}: {kind.value} time, {inputs} inputs, measured on {device}",
        ("subject", *numbers, f"against {base}"),
        numeric=numbers,
        spare=("tokens/s", "p10 to p90", "GB/s", "TFLOPS", "median's interval", "of the limit"),
    )
    for measurement in session.measurements:
        compared = against.get(measurement.name)
        shown.add_row(measurement.name, *_figures(measurement, problem), compared.outcome.value if compared else "-")
    show_table(console, shown)
    for measurement in session.measurements:
        if measurement.reason:
            console.print(
                verdict_text(False, f"{measurement.name}: {measurement.status.value}: {measurement.reason}"),
                soft_wrap=True,
            )
    for comparison in against.values():
        console.print(comparison.sentence, soft_wrap=True)
    slowed = "" if not session.slowed else f", the GPU was throttled in {session.slowed:.0%} of the rounds"
    stopped = session.stopped.value if session.stopped else "nothing was left to measure"
    console.print(
        f"{len(session.states)} rounds in {session.seconds:.1f} s, stopped: {stopped}; clocks: {session.watch}{slowed}",
        soft_wrap=True,
    )


def _figures(measurement: Measurement, problem: Problem) -> tuple[str, ...]:
    """The cells of one subject; dashes for a missing time. GB/s are of the least traffic, tokens are queries."""
    summary = measurement.summary
    if summary is None:
        return ("-",) * 7
    rates: tuple[str, ...] = ("-",) * 3
    if measurement.floor is not None:  # it computes
        queries = sum(problem.q_lengths) if problem.q_lengths else problem.batch * problem.seq_q
        seconds = summary.median_us / 1e6
        rates = (
            f"{problem.flops / seconds / 1e12:.1f}",
            f"{problem.least_bytes / seconds / 1e9:,.0f}",
            f"{queries / seconds:,.0f}",
        )
    share = f"{measurement.floor.share:.0%}" if measurement.floor and measurement.floor.share is not None else "-"
    return (
        f"{summary.median_us:.2f}",
        f"{summary.p10_us:.2f} to {summary.p90_us:.2f}",
        f"{summary.interval.low:.2f} to {summary.interval.high:.2f}",
        *rates,
        share,
    )
