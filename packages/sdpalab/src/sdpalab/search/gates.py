"""The gates of a search, as jobs with plain JSON values as inputs and outputs, for any process.

Cheapest first: ``build`` (compile, static gate, identity), ``count`` (the modelled cost), ``prove`` (sanitize, quick
judge), ``race`` (the measured cost, on a GPU), ``full`` (the full judge) and ``held_out`` (held-out shapes with a fresh
seed). The predicates precede all of them (:mod:`sdpalab.search.space`). Each gate uses the lab's own function; judged
code runs in the judge's confined processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sdpalab.compile import build, check, resources
from sdpalab.errors import UserError
from sdpalab.jobs.versions import judge_version
from sdpalab.judge.cases import CaseSpec, cases_for
from sdpalab.judge.sandbox.sandboxed import compile_for
from sdpalab.judge.verdict import Verdict
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.source import source_digest
from sdpalab.model.counted import arch_on
from sdpalab.problem import Problem
from sdpalab.search.cost import modelled_ratio, modelled_us
from sdpalab.search.outcome import Standing
from sdpalab.search.targets import KernelHolder, identity_of
from warpsan import SimError, StepLimit, UnsupportedInstruction
from warpsan.gpus import GPUS, Gpu, default_gpu

__all__ = [
    "Value",
    "build_gate",
    "compare_gate",
    "count_gate",
    "full_gate",
    "gpu_from",
    "held_out_gate",
    "prove_gate",
    "race_gate",
]

Value = dict[str, Any]
Inputs = Mapping[str, Any]
_FULL_WORKERS = 2


_HOLDER = KernelHolder()
_MOST_VERDICTS = 256
_verdicts: dict[str, Verdict] = {}
"""The last PASSED verdicts of this process, the basis of races."""


def gpu_from(about: Mapping[str, Any]) -> Gpu:
    """The GPU of a job: a row of the data file, or the present one without a row, by ``arch`` and ``sms``."""
    from dataclasses import replace

    if about["name"] in GPUS:
        return GPUS[about["name"]]
    return replace(default_gpu(about["arch"]), name=about["name"], arch=about["arch"], sms=about["sms"])


def build_gate(inputs: Inputs) -> Value:
    """Build a configuration for each GPU, and check it against the kernel's static limits.

    Returns ``identity``, ``ptx_sha256`` and ``resources`` by GPU; or ``standing`` and ``reason`` of the failed check.
    """
    kernel, config, problems, gpus = _asked(inputs)
    about: Value = {"identity": {}, "ptx_sha256": {}, "resources": {}}
    broken: list[str] = []
    for gpu in gpus:
        arch = _arch(kernel, gpu)
        identities, digests, used = [], [], []
        for problem in problems:
            try:
                plan = kernel.launch_plan(problem, config, sms=gpu.sms)
                builds = [build(step.module, arch) for step in plan.launches if step.module is not None]
            except UserError as error:  # from the compiler, or from the kernel's own Python
                return _failed(Standing.BUILD_FAILED, str(error))
            identities.append(identity_of(plan, builds))
            digests += [built.ptx_sha256 for built in builds]
            for built, step in zip(builds, plan.launches, strict=True):
                used.append(resources(built, step))
                result = check(used[-1], kernel.static_limits(problem))
                broken += [] if result.ok else [f"{gpu.name}, {problem.label}: {'; '.join(result.failures)}"]
        most = max(used, key=lambda each: each.registers * each.threads_per_block, default=None)
        about["identity"][gpu.name] = identity_of_all(identities)
        about["ptx_sha256"][gpu.name] = list(dict.fromkeys(digests))
        if most is not None:
            names = ("registers", "shared_bytes", "spill_bytes", "blocks_per_sm")
            about["resources"][gpu.name] = {name: int(getattr(most, name)) for name in names}
    return {**about, **_failed(Standing.STATIC_LIMITS, broken[0])} if broken else about


def identity_of_all(identities: Sequence[str]) -> str:
    """One digest for the plans of several problems; a single plan keeps its own."""
    from hashlib import sha256

    return identities[0] if len(identities) == 1 else sha256(" ".join(identities).encode()).hexdigest()


def count_gate(inputs: Inputs) -> Value:
    """The modelled time of a configuration: ``times_us`` by GPU and label of the problem."""
    kernel, config, problems, gpus = _asked(inputs)
    try:
        times = {gpu.name: {each.label: modelled_us(kernel, config, each, gpu) for each in problems} for gpu in gpus}
    except (UserError, UnsupportedInstruction) as error:
        return _failed(Standing.NO_COST, str(error))
    except SimError as error:  # counting runs the code in the simulator: an access out of bounds, a deadlock, a trap
        return _failed(_standing_of(error), str(error))
    return {"times_us": times}


def compare_gate(inputs: Inputs) -> Value:
    """The modelled time of a configuration over that of ``base``: ``ratios`` by GPU and label of the problem."""
    kernel, config, problems, gpus = _asked(inputs)
    base = Config(inputs["base"])
    try:
        ratios = {
            gpu.name: {each.label: modelled_ratio(kernel, config, base, each, gpu) for each in problems} for gpu in gpus
        }
    except (UserError, UnsupportedInstruction) as error:
        return _failed(Standing.NO_COST, str(error))
    except SimError as error:
        return _failed(_standing_of(error), str(error))
    return {"ratios": ratios}


def prove_gate(inputs: Inputs) -> Value:
    """Sanitize a configuration and judge it at level quick, for each architecture; returns the passed ``gates``."""
    from sdpalab.judge.sanitize import sanitize_kernel
    from warpsan.report import ENDINGS

    kernel, config, problems, gpus = _asked(inputs)
    for gpu in _one_an_arch(kernel, gpus):
        arch = _arch(kernel, gpu)
        for small in _small(kernel, config, problems):  # one by one: the first hazard is sufficient
            try:
                sanitized = sanitize_kernel(kernel, [small], config, arch=arch)
            except UserError as error:
                return _failed(Standing.HAZARD, str(error))
            if sanitized.hazards:  # including suppressed ones
                first = sanitized.hazards[0]
                standing = Standing.TIMED_OUT if first.kind == ENDINGS[StepLimit] else Standing.HAZARD
                return _failed(standing, f"{arch}: {first.message}")
        failed = _judged(inputs, kernel, gpu, cases_for("quick", problems, claims=False), workers=1)
        if failed:
            return failed
    return {"gates": ["sanitize", "quick judge"]}


def full_gate(inputs: Inputs) -> Value:
    """Run the full judge on every problem, for each architecture; returns ``verdict``."""
    kernel, _, problems, gpus = _asked(inputs)
    specs = cases_for("full", problems, claims=False)
    devices = []
    cases = 0
    for gpu in _one_an_arch(kernel, gpus):
        outcome = _verdict(inputs, kernel, gpu, specs, workers=_FULL_WORKERS, level="full")
        if "standing" in outcome:
            return outcome
        devices.append(outcome["device"])
        cases += outcome["cases"]
    verdict = {"passed": True, "level": "full", "cases": cases, "devices": devices, "judge": judge_version()}
    return {"verdict": verdict}


def held_out_gate(inputs: Inputs) -> Value:
    """Judge held-out problems on inputs of a fresh ``seed``, in a fresh worker."""
    kernel, _, problems, gpus = _asked(inputs)
    specs = [CaseSpec(f"{each.label} seed {inputs['seed']}", each, "normal", inputs["seed"]) for each in problems]
    for gpu in _one_an_arch(kernel, gpus):
        failed = _judged(inputs, kernel, gpu, specs, workers=1)
        if failed:
            return failed
    return {"cases": len(specs)}


def race_gate(inputs: Inputs) -> Value:
    """Time configurations on the present GPU in the same rounds; see :func:`sdpalab.search.racing.race`."""
    from sdpalab.search.racing import race

    kernel, _, problems, _ = _asked({**inputs, "config": {}})
    entrants = {name: Config(knobs) for name, knobs in inputs["entrants"].items()}
    return race(
        kernel,
        entrants,
        problems,
        seconds=inputs["seconds"],
        seed=inputs["seed"],
        candidate=inputs["kernel"],
        verdicts=_verdicts,
        include_dirs=_include_dirs(inputs),
    )


def _asked(inputs: Inputs) -> tuple[Kernel, Config, tuple[Problem, ...], tuple[Gpu, ...]]:
    """Kernel, configuration, problems and GPUs of a job; rejects a source other than the searched one."""
    kernel = _HOLDER.get(inputs["kernel"], _include_dirs(inputs))
    if source_digest(kernel) != inputs["source"]:
        raise UserError(f"the source of {kernel.name} was changed during the search: start it again")
    problems = tuple(Problem(**each) for each in inputs["problems"])
    return kernel, Config(inputs["config"]), problems, tuple(gpu_from(each) for each in inputs["gpus"])


def _include_dirs(inputs: Inputs) -> tuple[Path, ...]:
    return tuple(Path(folder) for folder in inputs.get("include_dirs", ()))


def _arch(kernel: Kernel, gpu: Gpu) -> str:
    """Architecture of the kernel's build on ``gpu``; a user's Triton function is compiled for it from now on."""
    arch = arch_on(kernel, gpu)
    if arch is None:
        raise UserError(f"kernel {kernel.name} does not run on {gpu.name}")
    compile_for(kernel, arch)
    return arch


def _one_an_arch(kernel: Kernel, gpus: Sequence[Gpu]) -> list[Gpu]:
    """GPUs with distinct plans or builds; the judge runs each of these once."""
    return list({(_arch(kernel, gpu), gpu.sms): gpu for gpu in gpus}.values())


def _small(kernel: Kernel, config: Config, problems: Sequence[Problem]) -> list[Problem]:
    """Small problems for the sanitizer with the type, mask and head dimension of the searched ones."""
    from sdpalab.judge.sanitize import small_problems

    small_ones: dict[Problem, None] = {}
    for problem in problems:
        for small in small_problems(kernel, config, dtype=problem.dtype, causal=problem.causal):
            same = _like(problem, small)
            small_ones[same if kernel.why_not(same, config) is None else small] = None
    return list(small_ones)


def _like(problem: Problem, small: Problem) -> Problem:
    """A small problem with the head dimension, window, lengths and other features of ``problem``."""
    sizes = {name: getattr(small, name) for name in ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "causal")}
    window = problem.window_size and tuple(min(side, small.seq_kv // 2) for side in problem.window_size)
    return problem.with_(**sizes, window_size=window, scale=None)


def _judged(inputs: Inputs, kernel: Kernel, gpu: Gpu, specs: Sequence[CaseSpec], *, workers: int) -> Value | None:
    """None if every case passes, otherwise standing and reason."""
    outcome = _verdict(inputs, kernel, gpu, specs, workers=workers)
    return outcome if "standing" in outcome else None


def _verdict(
    inputs: Inputs, kernel: Kernel, gpu: Gpu, specs: Sequence[CaseSpec], *, workers: int, level: str = "quick"
) -> Value:
    from sdpalab.errors import MachineError
    from sdpalab.judge.session import judge_candidate
    from sdpalab.judge.verdict import Status

    verdict = judge_candidate(
        inputs["kernel"],
        specs,
        device=inputs.get("device", "sim"),
        arch=_arch(kernel, gpu),
        sms=gpu.sms,
        config={name: str(value) for name, value in inputs["config"].items()},
        level=level,
        workers=workers,
        until_failure=True,
        include_dirs=_include_dirs(inputs),
    )
    if verdict.passed:
        _verdicts[f"{kernel.name} {verdict.config} {gpu.name} {level} {[spec.name for spec in specs]}"] = verdict
        while len(_verdicts) > _MOST_VERDICTS:
            del _verdicts[next(iter(_verdicts))]
        return {"device": verdict.device, "cases": len(verdict.cases)}
    if verdict.status is Status.INFRA_ERROR:
        raise MachineError(verdict.reason)
    standing = Standing.TIMED_OUT if verdict.status is Status.TIMED_OUT else Standing.INCORRECT
    return _failed(standing, f"{verdict.status.value}: {verdict.reason}")


def _standing_of(error: SimError) -> Standing:
    """Standing of a configuration whose simulation ended with an error of the kernel."""
    return Standing.TIMED_OUT if isinstance(error, StepLimit) else Standing.HAZARD


def _failed(standing: Standing, reason: str) -> Value:
    return {"standing": standing.value, "reason": reason}
