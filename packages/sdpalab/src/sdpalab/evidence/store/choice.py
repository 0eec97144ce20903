"""Choice of the kernel that computes a problem on a machine, or torch, with the deciding verdict and comparison.

A kernel is chosen only if

- a verdict from this model of GPU, with this driver, covers the problem, and no such verdict failed on the code;
- the code is the judged code (:attr:`~sdpalab.compile.Build.code_sha256`);
- a comparison with torch by the eager clock, on this very problem, or on packed or paged sequences of like sizes
  (:func:`~sdpalab.evidence.store.trace.sizes_of`), with this driver and this torch, on the inputs with the kernel's
  worst ratio (:mod:`sdpalab.evidence.store.timings`), shows that the code is not slower
  (:data:`~sdpalab.evidence.store.timings.SLOWER_BY`). The newest comparison of a code counts; among several kernels
  the one with the smallest ratio is chosen.

Records are read once per process, until :func:`~sdpalab.evidence.store.lookup.forget`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sdpalab.compile import Build, build
from sdpalab.errors import MachineError, UserError
from sdpalab.evidence.store.certificate import (
    Certificate,
    CertifiedKernel,
    config_of,
    why_not_exact,
)
from sdpalab.evidence.store.lookup import Records, records_on
from sdpalab.evidence.store.timings import LEAST_ROUNDS, Timing
from sdpalab.evidence.store.trace import sizes_of
from sdpalab.evidence.store.tuned import tuned
from sdpalab.evidence.store.workload import prove_command
from sdpalab.kernels.registry import get
from sdpalab.problem import Problem
from sdpalab.version import __version__
from warpsan.gpus import device_name, gpu_named

__all__ = ["Choice", "GpuPlatform", "choose", "platform_of"]


@dataclass(frozen=True)
class GpuPlatform:
    """GPU, driver and torch of a choice.

    Attributes
    ----------
    gpu : str
        Name of the GPU in its driver.
    driver : str
        Result of :func:`sdpalab.run.driver_version.driver_version`.
    torch : str
        torch's version.
    sms : int
        Multiprocessors of the GPU, for launch plans.
    """

    gpu: str
    driver: str
    torch: str
    sms: int


@dataclass(frozen=True)
class Choice:
    """A kernel ready to be prepared, or None for torch's own function; with the reason and the deciding records."""

    kernel: CertifiedKernel | None
    reason: str


def platform_of(gpu: str) -> GpuPlatform:
    """The platform of a GPU that need not be in this machine: driver and torch are those of its newest comparison.

    Without a comparison the driver is that of its last verdict, and torch is unknown.

    Raises
    ------
    UserError
        If no GPU of that name is known (:func:`warpsan.gpus.gpu_named`).
    """
    row = gpu_named(gpu)
    device = device_name(row)
    records = records_on(device)
    if records.timings:
        newest = max(records.timings, key=lambda timing: timing.when)
        return GpuPlatform(device, newest.driver, newest.torch, row.sms)
    drivers = [each.driver for each in records.certificates if each.driver and not each.failure]
    return GpuPlatform(device, drivers[-1] if drivers else "unknown", "unknown", row.sms)


def choose(
    problem: Problem,
    machine: GpuPlatform,
    records: Records | None = None,
    *,
    lse: bool = False,
    deterministic: bool = False,
) -> Choice:
    """Choose and build the kernel that computes ``problem`` on ``machine``; without one, return None and the missing
    record.

    Parameters
    ----------
    problem : Problem
    machine : GpuPlatform
    records : Records, optional
        Default: the records of the machine's GPU.
    lse : bool
        Whether the kernel must also write the log-sum-exp. Verdicts cover it, because the judge checks it for every
        kernel that writes it. The comparison is that of the output alone; torch takes several times as long with the
        log-sum-exp.
    deterministic : bool
        Whether all outputs must have equal bits from run to run.
    """
    records = records_on(machine.gpu) if records is None else records
    certificates, why = _usable(problem, machine, records.certificates)
    if not certificates:
        return Choice(None, f"{why}; run: {prove_command(problem)}")
    groups: dict[tuple[str, str], list[Certificate]] = {}
    for each in certificates:
        groups.setdefault((each.kernel, each.config), []).append(each)
    refused = {key: _why_not(problem, *key, lse=lse, deterministic=deterministic) for key in groups}
    takes = [key for key, reason in refused.items() if reason is None]
    if not takes:
        return Choice(None, next(filter(None, refused.values())))
    timed = [timing for timing in _timed(problem, machine, records.timings) if (timing.kernel, timing.config) in takes]
    reasons = []
    for timing in sorted(timed, key=lambda timing: timing.comparison.ratio or 0.0):
        if timing.not_slower:
            group = groups[timing.kernel, timing.config]
            choice = _choice_of(timing, group, problem, machine, records.certificates, lse)
            if choice.kernel is not None:
                return choice
            reasons.append(choice.reason)
    why = reasons[0] if reasons else _untimed(problem, machine, certificates, timed)
    return Choice(None, f"{why}; run: {prove_command(problem)}")


def _why_not(problem: Problem, name: str, config: str, *, lse: bool, deterministic: bool) -> str | None:
    kernel, settings = get(name), config_of(name, config)
    if lse and not kernel.lse:
        return "no proven kernel writes the log-sum-exp"
    unordered = kernel.numerics_of(settings).unordered if deterministic else ()
    if unordered:
        return (
            f"{name} with {config or 'its knobs'} adds {' and '.join(unordered)} in any order, and deterministic is set"
        )
    return kernel.why_not(problem, settings)


def _usable(
    problem: Problem, machine: GpuPlatform, certificates: Sequence[Certificate]
) -> tuple[list[Certificate], str]:
    """Verdicts that cover the problem on the machine; without any, the reasons why the existing ones do not."""
    gpu = machine.gpu
    passed = [each for each in certificates if not each.failure]
    if not passed:
        failed = f": {_failed(certificates[0], 'there')}" if certificates else ""
        return [], f"no kernel is proven on {gpu}{failed}"
    same = [each for each in passed if each.driver == machine.driver]
    if not same:
        known = ", ".join(sorted({each.driver or "none that a record names" for each in passed}))
        return [], f"the verdicts on {gpu} are from driver {known}, and this one is {machine.driver}"
    current = [each for each in same if each.lab in (None, __version__)]
    if not current:
        known = ", ".join(sorted({str(each.lab) for each in same}))
        return [], f"the verdicts on {gpu} are from version {known} of the lab, and this is {__version__}"
    covering = [each for each in current if each.covers(problem)]
    if not covering:
        return [], f"no kernel that is proven on {gpu} covers {problem.label}"
    reasons = [why_not_exact(each.kernel, each.config) for each in covering]
    exact = [each for each, reason in zip(covering, reasons, strict=True) if reason is None]
    if not exact:
        return [], f"no kernel that is as exact as torch is proven for {problem.label}: {reasons[0]}"
    return exact, ""


def _failed(certificate: Certificate, where: str) -> str:
    return f"{certificate.kernel} failed {where} ({certificate.failure}), see {certificate.record}"


def _timed(problem: Problem, machine: GpuPlatform, timings: Sequence[Timing]) -> Iterator[Timing]:
    """Comparisons that count for the problem on the machine: the newest of each code."""
    sizes = sizes_of(problem)
    newest: dict[tuple[object, ...], Timing] = {}
    for timing in timings:
        here = (timing.driver, timing.torch) == (machine.driver, machine.torch)
        if here and sizes_of(timing.problem) == sizes and timing.lab in (None, __version__):
            key = timing.kernel, timing.config, timing.code
            if key not in newest or newest[key].when < timing.when:
                newest[key] = timing
    yield from newest.values()


def _untimed(
    problem: Problem, machine: GpuPlatform, certificates: Sequence[Certificate], timed: Sequence[Timing]
) -> str:
    """Reason why no comparison allows a certified kernel to run."""
    certificate = certificates[-1]
    proven = f"{certificate.kernel} is proven for {problem.label} on {machine.gpu} by {certificate.record}"
    if not timed:
        return f"{proven}, but no measured comparison with torch {machine.torch} on driver {machine.driver} is kept"
    best = min(timed, key=lambda timing: timing.comparison.ratio or math.inf)
    if best.comparison.ratio is None:
        return f"{proven}, but {best.record} has no time of {best.kernel}: {best.comparison.reason}"
    few = best.rounds < LEAST_ROUNDS
    verdict = f"is from fewer than {LEAST_ROUNDS} rounds" if few else "does not show that it is not slower"
    return f"{proven}, but its comparison {verdict}: {best.kernel} takes {best.says}, says {best.record}"


def _choice_of(
    timing: Timing,
    certificates: Sequence[Certificate],
    problem: Problem,
    machine: GpuPlatform,
    verdicts: Sequence[Certificate],
    lse: bool,
) -> Choice:
    """The timed kernel, if it builds to the timed and judged code, and no verdict failed on it."""
    name = timing.kernel
    arch = certificates[-1].arch
    try:
        plan = get(name).launch_plan(problem, config_of(name, timing.config), lse=lse, sms=machine.sms)
        builds = tuple(build(step.module, arch) for step in plan.launches if step.module is not None)
    except (MachineError, UserError) as error:
        return Choice(None, f"{name} is proven and cannot be built here: {error}")
    holding = [each for each in certificates if all(map(each.is_of, builds))]
    if not holding:
        change = _change(builds, certificates)
        return Choice(None, f"the code of {name} is no longer what {certificates[-1].record} proves: {change}")
    if not {each.code_sha256 for each in builds} <= timing.code:
        return Choice(None, f"the code of {name} is no longer what {timing.record} has timed")
    here = [each for each in verdicts if each.failure and each.driver == machine.driver]
    failed = next((each for each in here if any(map(each.is_of, builds))), None)
    if failed is not None:
        return Choice(None, _failed(failed, f"on {machine.gpu}"))
    certificate = holding[-1]
    reason = (
        f"{name} is proven for {problem.label} on {machine.gpu} by {certificate.record}, and takes {timing.says} there "
        f"by {timing.record}{_tuned(name, timing.config, problem, machine.gpu)}; the verdict covers "
        f"{', '.join(certificate.coverage)}"
        + (f"; not judged: {'; '.join(certificate.not_covered)}" if certificate.not_covered else "")
    )
    return Choice(CertifiedKernel(certificate, plan, builds), reason)


def _tuned(kernel: str, config: str, problem: Problem, device: str) -> str:
    """End of a sentence: the configuration is a tuned default, and its basis."""
    entry = tuned(get(kernel), problem, device)
    used = entry is not None and config_of(kernel, config) == get(kernel).default_config.but(**entry.config)
    return f"; its knobs are {entry.sentence}" if entry is not None and used else ""


def _change(builds: Sequence[Build], certificates: Sequence[Certificate]) -> str:
    """Reason why a kernel builds to other code than the judged code."""
    if {build.key for build in builds} <= frozenset().union(*(each.keys for each in certificates)):
        return "the compiler has made another text of the same source, and the build that was judged is not cached"
    return "the kernel or its compiler was changed since"
