"""Records as ``sdpalab prove`` keeps them: a real build of ``flash``, a case that was judged, and made-up times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from sdpalab.compile import Build, build
from sdpalab.evidence.built import built_module
from sdpalab.evidence.records import AttemptRecord, Environment, Harness
from sdpalab.evidence.store.measured import FORMAT, BenchRecord, worst_times
from sdpalab.evidence.store.record import StoredRecord, sealed
from sdpalab.evidence.store.timings import codes_of
from sdpalab.inputs import TIMED_KINDS
from sdpalab.judge.verdict import Case, Status, Verdict
from sdpalab.kernels.kernel import CudaKernel
from sdpalab.kernels.registry import KERNELS
from sdpalab.measure.statistics import summarise
from sdpalab.problem import Problem

GPU, DRIVER, TORCH, SMS = "NVIDIA L4", "580.65.06", "2.13.0", 58
JUDGED = Problem(1, 4, 60, 32)
FLASH = KERNELS["flash"]
assert isinstance(FLASH, CudaKernel)


def flash_build(problem: Problem = JUDGED) -> Build:
    """The kernel ``flash`` as it is."""
    (step,) = FLASH.launch_plan(problem, sms=SMS).launches
    assert step.module is not None
    return build(step.module, "sm_89")


def attempt(
    case: Case, *, device: str = GPU, config: str | None = None, status: Status = Status.PASSED
) -> AttemptRecord:
    """An attempt of ``flash`` with one case, of :data:`JUDGED`."""
    config = str(FLASH.default_config) if config is None else config
    case = case if status is Status.PASSED else replace(case, status=status, reason="a test")
    (step,) = FLASH.launch_plan(JUDGED, sms=SMS).launches
    assert step.module is not None
    return AttemptRecord(
        kernel="flash",
        config=config,
        idea=FLASH.idea,
        builds=(built_module(step.module, flash_build()).record("build/00-flash"),),
        verdict=(Verdict("flash", config, device, "quick", 0, (case,))),
    )


def stored_verdict(case: Case, *, driver: str = DRIVER, **changes: Any) -> StoredRecord:
    """The attempt as it is kept; ``changes`` as :func:`attempt` takes them."""
    compiled = flash_build()
    return sealed(
        gpu=changes.get("device", GPU),
        driver=driver,
        code={compiled.ptx_sha256: compiled.code_sha256},
        attempt=attempt(case, **changes),
    )


def bench(
    ratios: Sequence[float],
    *,
    kernel: str = "flash",
    problem: Problem = JUDGED,
    torch: str = TORCH,
    clock: str = "eager",
    when: datetime | None = None,
    code: dict[str, Any] | None = None,
    by_kind: Mapping[str, Sequence[float]] | None = None,
) -> BenchRecord:
    """Times of a kernel and of torch, 10 us in each round, by their ratio in each round.

    They are those on each kind of inputs, or only on the kinds of ``by_kind``, if that is given.
    """
    pair = KERNELS[kernel], KERNELS[kernel].default_config
    codes = {kernel: code} if code else codes_of([pair], problem, "sm_89", SMS)

    def result(kind: str, ratios: Sequence[float]) -> dict[str, Any]:
        rows = {"torch": [10.0] * len(ratios), kernel: [10.0 * ratio for ratio in ratios]}
        about = {"problem": problem.to_dict(), "clock": clock, "inputs": kind, "code": codes}
        return {**about, "measurements": _measurements(rows, clock)}

    kinds = dict.fromkeys(TIMED_KINDS, ratios) if by_kind is None else by_kind
    results = tuple(result(kind, each) for kind, each in kinds.items())
    harness = Harness(commit=None, dirty=False, package_sha256="0" * 64, version="0")
    return BenchRecord(
        format=FORMAT,
        gpu=GPU,
        when=when or datetime(2026, 1, 1, tzinfo=timezone.utc),
        environment=Environment(
            python="3.12",
            system="Linux",
            machine="x86_64",
            cpu_count=1,
            gpu=GPU,
            driver=DRIVER,
            packages={"torch": torch},
            harness=harness,
        ),
        judged=(),
        results=results,
        worst=worst_times(results),
    )


def _measurements(rows: Mapping[str, Sequence[float]], clock: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "status": "MEASURED",
            "summary": summarise(times).to_dict(),
            "samples": {"name": name, "clock": clock, "l2": "warm", "calls": 1, "times_us": times, "warm_up_us": []},
        }
        for name, times in rows.items()
    ]


def stored_times(ratios: Sequence[float], *, driver: str = DRIVER, **changes: Any) -> StoredRecord:
    """The times as they are kept; ``changes`` as :func:`bench` takes them."""
    return sealed(gpu=GPU, driver=driver, bench=bench(ratios, **changes))
