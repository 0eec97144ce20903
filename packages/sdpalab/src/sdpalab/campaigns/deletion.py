"""Delete each synchronisation instruction of a kernel's PTX in turn, and check that the simulator reports a hazard.

Each mutant runs on small problems (one tile of keys, an even and an odd number of tiles, a ragged last tile), first in
lockstep, then in every schedule and both async modes, with the strict check. The first hazard, deadlock, endless loop
or output that differs from the original's by a bit kills it. A survivor needs a reason why it is redundant:
``deletion_reasons.json`` has those of the shipped kernels, by kernel, opcode and CUDA source text, and ``most`` is the
number of survivors of one configuration that a reason may explain. The campaign is good if at least 95% of the mutants
without a reason are killed and no survivor lacks a reason. A FILE.ptx with its launch file takes the place of a kernel
(:mod:`~sdpalab.campaigns.case_deletion`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sdpalab.campaigns.campaign import CampaignResult, Say
from sdpalab.campaigns.case_deletion import case_deletions
from sdpalab.campaigns.deletion_sites import Site, is_synchronisation, reason_of, without
from sdpalab.compile import Build, build
from sdpalab.errors import UserError
from sdpalab.inputs import make_inputs
from sdpalab.jobs import Executor
from sdpalab.jobs.calling import values
from sdpalab.judge.sanitize import small_problems
from sdpalab.kernels.kernel import Config, CudaKernel, Kernel
from sdpalab.kernels.plan import HEADER_FOLDERS, LaunchPlan, Source
from sdpalab.kernels.registry import KERNELS, load_kernel
from sdpalab.packing import Packing
from sdpalab.problem import Problem
from sdpalab.run.simulated import SimulatedExecutor
from warpsan import Deadlock, Report, SimError, StepLimit
from warpsan.gpus import default_sms
from warpsan.ptx import parse
from warpsan.report import source_of
from warpsan.sanitize import Modes

__all__ = [
    "HEAD",
    "REASONS",
    "Mutants",
    "Reason",
    "Target",
    "chooses",
    "deleted",
    "deletions",
    "result_of",
    "run",
    "say_record",
    "sites",
    "source_text",
    "target",
    "target_job",
    "target_record",
    "targets",
    "totals",
    "without",
]

Reason = Mapping[str, Any]
"""An entry of ``deletion_reasons.json``: ``kernel``, ``opcode``, ``text``, ``most``, ``reason``, and ``weaker`` where
the mutant has other text in place of the instruction."""

REASONS: Sequence[Reason] = json.loads(Path(__file__).with_name("deletion_reasons.json").read_text())
"""Reasons for the survivors of the shipped kernels."""
LEAST_SHARE = 0.95
CASE_STEPS = 20_000_000
"""Largest number of vector steps of a warp in a launch of a FILE.ptx."""
HEAD = f"{'kernel':92} {'mutants':>7} {'killed':>6} {'redundant':>9}"
"""Head of the printed table."""
TARGET_SECONDS = 3600.0
"""Time limit for the mutants of one code."""
Case = tuple[Problem, LaunchPlan, dict[str, Any]]
"""A run: its plan and its inputs."""
Mutants = Callable[[str, str, Sequence[Path]], Iterator[tuple[Site, str]]]
"""The mutants of PTX text, by entry and the folders of the CUDA sources: the changed place and the PTX of each."""


@dataclass(frozen=True)
class Target:
    """Code of a kernel, the configurations that launch it, and runs of it."""

    kernel: Kernel
    configs: tuple[Config, ...]
    arch: str
    cases: tuple[Case, ...]

    @property
    def name(self) -> str:
        """Kernel and first configuration."""
        return self.names[0]

    @property
    def names(self) -> list[str]:
        """Kernel and configuration, for each of them."""
        return [f"{self.kernel.name} {config}".strip() for config in self.configs]


def targets(names: Sequence[str], say: Say) -> Iterator[Target]:
    """The named kernels, once for each code that they launch.

    The code of a configuration may depend on the problem, and several configurations may launch the same code, which
    then runs on the problems of all of them.
    """
    for name in names:
        kernel = load_kernel(name)
        if not isinstance(kernel, Kernel):
            raise UserError(f"{name} is a Python callable: it has no PTX")
        groups: list[tuple[list[Source | None], Target]] = []
        for knobs in kernel.configs:
            of = target(kernel, Config(knobs))
            if chooses(kernel, Config(knobs), of.cases[0][0]):
                say(f"{of.name}: skipped, because the kernel chooses these knobs by problem; others fix them")
                continue
            for case in of.cases:
                code = [launch.module for launch in case[1].launches]
                known = next((number for number, (other, _) in enumerate(groups) if other == code), None)
                if known is None:
                    groups.append((code, replace(of, cases=(case,))))
                    continue
                before = groups[known][1]
                configs = before.configs if before.configs[-1:] == of.configs else (*before.configs, *of.configs)
                groups[known] = (code, replace(before, configs=configs, cases=(*before.cases, case)))
        yield from (each for _, each in groups)


def chooses(kernel: Kernel, config: Config, problem: Problem) -> bool:
    """True if the kernel replaces values of the configuration by values that depend on the problem."""
    if not isinstance(kernel, CudaKernel):
        return False
    macros = kernel.macros(problem, kernel.resolved(problem, config, default_sms(kernel.default_arch)))
    return any(macros[name] != config[name] for name in macros.keys() & config.keys())


def target(kernel: Kernel, config: Config, problems: Sequence[Problem] = ()) -> Target:
    """A kernel in one configuration, on these problems, by default small ones (:func:`_small`)."""
    cases = []
    for problem in problems or _small(kernel, config):
        arrays = Packing(problem).pack(make_inputs(problem).arrays)
        cases.append((problem, kernel.launch_plan(problem, config, lse=kernel.lse), arrays))
    return Target(kernel, (config,), kernel.default_arch, tuple(cases))


def _small(kernel: Kernel, config: Config) -> list[Problem]:
    """The small problems of a kernel, and one with a second tile of queries and no more tiles of keys than stages; the
    causal one is left out, as it has PTX of its own."""
    small = [each for each in small_problems(kernel, config) if not each.causal]
    second = replace(small[min(1, len(small) - 1)], seq_q=max(each.seq_q for each in small))
    more = second not in small and kernel.why_not(second, config) is None
    return [*small, second] if more else small


def sites(ptx: str, entry: str, folders: Sequence[Path] = ()) -> list[Site]:
    """The synchronisation instructions of an entry."""
    module = parse(ptx)
    listed = []
    for instruction in module.entries[entry].instructions:
        if is_synchronisation(instruction):
            source = source_of(module, instruction)
            text = source_text(source, folders)
            listed.append(Site(instruction.text, instruction.line, source, text))
    return listed


def deleted(ptx: str, entry: str, folders: Sequence[Path]) -> Iterator[tuple[Site, str]]:
    """The mutants of an entry, each without one of its synchronisation instructions."""
    yield from ((site, without(ptx, site)) for site in sites(ptx, entry, folders))


def source_text(source: str, folders: Sequence[Path]) -> str:
    """The text of a source line ``NAME:LINE``; empty if none of the folders has the file."""
    name, _, line = source.rpartition(":")
    for folder in folders:
        if name and (folder / name).is_file():
            return (folder / name).read_text().splitlines()[int(line) - 1].strip()
    return ""


class Runner:
    """Runs a target with the PTX of one of its modules replaced, and compares with the original's results."""

    def __init__(self, of: Target) -> None:
        self.target = of
        self.expected: list[dict[str, np.ndarray]] = []
        digests: set[tuple[str, ...]] = set()
        for problem, plan, inputs in of.cases:
            result = SimulatedExecutor(of.arch).run(plan, inputs)
            digests.add(result.ptx_sha256)
            if result.hazards:
                raise UserError(f"{of.name} on {problem.label} is not clean itself: {result.hazards[0]}")
            self.expected.append(dict(result.outputs))
        if len(digests) > 1:
            raise UserError(f"{of.name} does not run the same PTX on all of its problems")

    def verdict(self, builds: Sequence[Build], modes: Modes) -> tuple[str, str] | None:
        """The kind of the kill and the run, or None; ``builds`` are those of the steps, with the mutant among them."""
        lockstep = replace(modes, schedules=("lockstep",), async_modes=("late",))
        for wave in (lockstep, modes):
            for options in wave.options(asynchronous=True):
                for (problem, plan, inputs), expected in zip(self.target.cases, self.expected, strict=True):
                    kind = self._run(plan, inputs, builds, options, expected)
                    if kind:
                        return kind, f"{problem.label}, {options['schedule']}, {options['async_mode']}"
        return None

    def _run(
        self,
        plan: LaunchPlan,
        inputs: dict[str, Any],
        builds: Sequence[Build],
        options: dict[str, Any],
        expected: dict[str, np.ndarray],
    ) -> str:
        kinds: list[str] = []

        def launched(_: Build, report: Report) -> None:
            kinds.extend(hazard.kind for hazard in report.hazards)

        executor = SimulatedExecutor(self.target.arch, on_launch=launched, **options)
        try:
            outputs = executor.run(plan, inputs, builds=builds).outputs
        except (Deadlock, StepLimit) as error:
            return kinds[0] if kinds else "deadlock" if isinstance(error, Deadlock) else "endless"
        if kinds:
            return kinds[0]
        same = all(outputs[name].tobytes() == like.tobytes() for name, like in expected.items())
        return "" if same else "wrong output"


def deletions(of: Target, modes: Modes, reasons: Sequence[Reason], mutants_of: Mutants = deleted) -> dict[str, Any]:
    """All mutants of a target, as a record."""
    runner = Runner(of)
    folders = [*filter(None, [of.kernel.folder]), *HEADER_FOLDERS]
    mutants: list[dict[str, Any]] = []
    excuses = [dict(entry) for entry in reasons]
    builds = [build(step.module, of.arch) for step in of.cases[0][1].launches if step.module is not None]
    originals = {(built.ptx_sha256, built.entry): built for built in builds}  # a source may have several entries
    for (module, _), original in originals.items():
        for site, ptx in mutants_of(original.ptx.decode(), original.entry, folders):
            changed = [replace(each, ptx=ptx.encode()) if each.ptx_sha256 == module else each for each in builds]
            kill = runner.verdict(changed, modes)
            mutant = {"opcode": site.opcode, "ptx_line": site.ptx_line, "source": site.source, "text": site.source_text}
            mutant |= {"weaker": site.weaker} if site.weaker else {}
            if kill is not None:
                mutants.append({**mutant, "killed_by": kill[0], "run": kill[1]})
            else:
                mutants.append({**mutant, "killed_by": None, "reason": reason_of(of.kernel.name, site, excuses)})
    return {
        "subject": of.name,
        "configurations": of.names,
        "arch": of.arch,
        "ptx_sha256": list(dict.fromkeys(module for module, _ in originals)),
        "problems": [problem.label for problem, _, _ in of.cases],
        "mutants": mutants,
    }


def totals(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts over all targets; ``share`` is the share of killed mutants among those that are not redundant."""
    mutants = [mutant for record in records for mutant in record["mutants"]]
    killed = [mutant for mutant in mutants if mutant["killed_by"]]
    redundant = sum(1 for mutant in mutants if not mutant["killed_by"] and mutant["reason"])
    return {
        "mutants": len(mutants),
        "killed": len(killed),
        "redundant": redundant,
        "unexplained": len(mutants) - len(killed) - redundant,
        "share": len(killed) / max(1, len(mutants) - redundant),
        "killed_by": dict(sorted(Counter(mutant["killed_by"] for mutant in killed).items())),
    }


def target_record(kernel: str, number: int, reasons: Sequence[Reason], mutants_of: Mutants = deleted) -> dict[str, Any]:
    """The record of the code with that number among those that a kernel launches.

    Raises
    ------
    UserError
        If the kernel does not run on the simulator, or is not clean itself.
    """
    of = next(islice(targets([kernel], lambda line: None), number, None))
    try:
        return deletions(of, Modes(strict=True, max_steps=200_000), reasons, mutants_of)
    except SimError as error:
        raise UserError(f"{of.name} does not run on the simulator: {error}") from None


def target_job(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """:func:`target_record` as a job, or :func:`~sdpalab.campaigns.case_deletion.case_deletions` for a FILE.ptx."""
    kernel, reasons = inputs["kernel"], inputs["reasons"]
    if kernel.endswith(".ptx"):
        return case_deletions(Path(kernel), Modes(strict=True, max_steps=CASE_STEPS), reasons)
    return target_record(kernel, inputs["number"], reasons)


def run(names: Sequence[str], say: Say, executor: Executor, reasons: Sequence[Reason] = REASONS) -> CampaignResult:
    """Delete from the named kernels, by default all shipped ones; each code that they launch is a job, and each
    FILE.ptx.

    Raises
    ------
    UserError
        If there is no such kernel, or one is not clean itself.
    """
    jobs = [
        {"kernel": name, "number": number, "reasons": list(reasons)}
        for name in names or KERNELS
        for number, _ in enumerate([name] if name.endswith(".ptx") else targets([name], say))
    ]
    say(HEAD)
    records = values(
        executor, "deletion", jobs, seconds=TARGET_SECONDS, finished=lambda _, record: say_record(say, record)
    )
    return result_of(records, reasons)


def result_of(records: Sequence[Mapping[str, Any]], reasons: Sequence[Reason]) -> CampaignResult:
    """The campaign's result from the records of all codes."""
    total = totals(records)
    digest = sha256(json.dumps(list(reasons)).encode()).hexdigest()
    content = {"totals": total, "reasons_sha256": digest, "subjects": list(records)}
    summary = (
        f"{total['killed']} of {total['mutants']} killed, {total['redundant']} redundant, {total['unexplained']} "
        f"unexplained: {total['share']:.1%} of those that matter; by {total['killed_by']}"
    )
    return CampaignResult(content, total["share"] >= LEAST_SHARE and not total["unexplained"], summary)


def say_record(say: Say, record: Mapping[str, Any]) -> None:
    """Print the counts of one code, and each mutant that survives."""
    count = totals([record])
    say(f"{record['subject']:92} {count['mutants']:7} {count['killed']:6} {count['redundant']:9}")
    for mutant in record["mutants"]:
        if not mutant["killed_by"]:
            why = mutant["reason"] or "NO REASON GIVEN"
            say(f"    survives: {mutant['opcode']} at {mutant['source']} ({mutant['text']}): {why}")
