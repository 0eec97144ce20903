"""``sdpalab build``: compile a kernel, show its resources, and check them against its limits; or fill the build cache.

A FILE.cu or FILE.ptx is built as its launch file says; it declares no limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sdpalab.commands.option_groups import ConfinementOptions
from sdpalab.commands.options import (
    KERNEL_HELP,
    ArchOption,
    IncludeOption,
    SetOption,
    complete_kernel,
    include_dirs_of,
    parse_settings,
    shapes,
)
from sdpalab.commands.problem_options import ProblemOptions, problems_of
from sdpalab.compile import Build, GateResult, Resources, check, set_aside
from sdpalab.compile.building import arch_of, build_case, build_kernel
from sdpalab.compile.gate import Rule
from sdpalab.compile.sass import TENSOR_CLASSES
from sdpalab.errors import UserError
from sdpalab.kernels.kernel import StaticLimits
from sdpalab.problem import Problem
from warpsan.terminal.console import conclude, print_set_aside, progress_console, verdict_text
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption, LaunchOption
from warpsan.terminal.tables import show_table, table

__all__ = ["build", "print_build"]


def build(
    kernel: Annotated[
        str | None,
        typer.Argument(
            metavar="KERNEL|FILE",
            help=f"{KERNEL_HELP} Also FILE.ptx or FILE.cu with a --launch.",
            autocompletion=complete_kernel,
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Fill the cache for a GPU machine: all kernels that --arch suits."),
    ] = False,
    arch: ArchOption = None,
    shape: Annotated[list[str] | None, shapes("Problem to build for (several: with --all)", "mission")] = None,
    *,
    described: ProblemOptions,
    settings: SetOption = None,
    include: IncludeOption = None,
    launch: LaunchOption = None,
    confined: ConfinementOptions,
    json: JsonOption = None,
) -> int:
    """Compile a kernel to PTX and a cubin; print its resources, its instructions and the static gate."""
    from sdpalab.judge.sandbox.sandboxed import kernel_in_sandbox

    console = console_and_subject(json, kernel or "")
    problems = problems_of(shape, described)
    if every:
        if kernel is not None or settings or include:
            unfit = kernel or ("--set" if settings else "--include")
            raise UserError(f"--all builds every kernel in its own configurations: leave out {unfit}")
        if not shape and described.given:
            raise UserError("options of a problem need a --shape with --all: without one, the shapes have their own")
        return _build_all(console, arch, problems if shape else None, json)
    if kernel is None:
        raise UserError("build needs a KERNEL: a shipped kernel's name, FILE.py or FILE.py:NAME; or --all")
    if shape and len(shape) > 1:
        raise UserError(f"build takes one --shape for a kernel, and several only with --all, not {' '.join(shape)}")
    if kernel.endswith((".ptx", ".cu")):
        if shape or described.given or settings or include or arch:
            raise UserError(
                "--shape and its options, --set, --include and --arch are for kernels; a file has its --launch"
            )
        return _build_file(console, Path(kernel), launch, json)
    if launch is not None:
        raise UserError("--launch describes the launch of a FILE.ptx or FILE.cu; a kernel has its own plan")
    problem, folders = problems[0], include_dirs_of(include, kernel)
    with kernel_in_sandbox(kernel, arch=arch, else_say="there is nothing to build", include_dirs=folders) as loaded:
        name, config = loaded.name, loaded.config_with(parse_settings(settings))
        arch = arch or loaded.default_arch
        steps = build_kernel(loaded, config, [problem], arch)
    aside = set_aside(*(step.module for step in steps))
    print_set_aside(console, str(aside))
    for step in steps:
        title = f"{' '.join(filter(None, (name, str(config))))} for {step.build.arch}, {step.problem.label}"
        print_build(console, title, step.build, step.resources, step.gate)
    good = all(step.gate.ok for step in steps)
    write_document(
        json,
        {
            "kernel": name,
            "config": str(config),
            "arch": arch,
            "problem": problem.to_dict(),
            "ok": good,
            "builds": [step.to_dict() for step in steps],
            **({"set_aside": aside.to_dict()} if aside else {}),
        },
        status="PASSED" if good else "FAILED",
    )
    return 0 if good else 1


def _build_all(console: Console, arch: str | None, timed: Sequence[Problem] | None, json: str | None) -> int:
    """Fill the build cache for a GPU machine, with a line for each shipped kernel."""
    from sdpalab.compile import Cache, check_arch
    from sdpalab.kernels.registry import KERNELS, get
    from sdpalab.measure.prebuild import TIMED, build_modules

    if arch is None:
        raise UserError("--all needs the architecture of the GPU that it builds for, such as --arch sm_90a for an H200")
    check_arch(arch)
    built, skipped, missing = [], [], []
    for name in KERNELS:
        try:
            kernel = get(name)
        except UserError as error:
            missing.append(str(error))
            continue
        if (reason := kernel.why_not_on(arch)) is not None:
            skipped.append(reason)
            console.print(f"skipped: {reason}", soft_wrap=True)
            continue
        with progress_console().status(name) as status:
            outcome = build_modules(kernel, arch, timed or TIMED, progress=status.update)
        built.append(outcome)
        line = (
            f"{name}: {outcome.modules} modules for {arch} in {outcome.seconds:.1f} s, {outcome.compiled} compiled, "
            f"{len(outcome.builds) - outcome.compiled} from the cache"
        )
        console.print(verdict_text(not outcome.failures, line), soft_wrap=True)
        for failure in outcome.failures:
            console.print(verdict_text(False, f"  {failure}"), soft_wrap=True)
    for reason in missing:
        console.print(f"skipped: {reason}", soft_wrap=True)
    report = {
        "arch": arch,
        "cache": str(Cache().root),
        "ok": not any(each.failures for each in built),
        "modules": sum(each.modules for each in built),
        "compiled": sum(each.compiled for each in built),
        "kernels": [each.to_dict() for each in built],
        "skipped": skipped + missing,
    }
    line = f"{report['modules']} modules in {report['cache']}, {report['compiled']} of them compiled now"
    console.print(verdict_text(bool(report["ok"]), line), soft_wrap=True)
    write_document(json, report, status="PASSED" if report["ok"] else "FAILED")
    return 0 if report["ok"] else 1


def _build_file(console: Console, path: Path, launch: str | None, json: str | None) -> int:
    """Build the launches of a PTX or CUDA C++ file with its launch file."""
    from sdpalab.judge.sandbox.workshop import workshop_for
    from warpsan.sanitize import case_of, files_of_case

    limits = StaticLimits(reason=f"{path.name} declares none")
    with workshop_for(str(path), files=files_of_case(path, launch)) as workshop:
        case = case_of(path, launch, workshop=workshop)
        arch, aside = arch_of(case), set_aside(*filter(None, [case.module]))
        launches = build_case(case)
    print_set_aside(console, str(aside))
    gates = [check(each.resources, limits) for each in launches]
    for each, gate in zip(launches, gates, strict=True):
        sizes = f"grid {each.launch.grid}, block {each.launch.block}"
        print_build(console, f"{each.name} for {arch}, {sizes}", each.build, each.resources, gate)
    good = all(gate.ok for gate in gates)
    builds = [
        {**each.build.to_dict(), "problem": None, "resources": each.resources.to_dict(), "gate": gate.to_dict()}
        for each, gate in zip(launches, gates, strict=True)
    ]
    content = {"kernel": case.name, "config": "", "arch": arch, "problem": None, "ok": good, "builds": builds}
    write_document(
        json, {**content, **({"set_aside": aside.to_dict()} if aside else {})}, status="PASSED" if good else "FAILED"
    )
    return 0 if good else 1


def print_build(console: Console, title: str, built: Build, used: Resources, gate: GateResult) -> None:
    """Print one module's resources and instructions, each rule of the gate, and the gate's outcome as the last line."""
    cache = "cache hit" if built.cache_hit else f"cache miss, compiled in {built.compile_seconds * 1e3:.0f} ms"
    facts = {
        "compiler": built.compiler,
        "time": f"{built.seconds * 1e3:.1f} ms ({built.cache_problem or cache})",
        "registers": f"{used.registers} a thread",
        "stack": f"{used.stack_bytes} bytes a thread",
        "spills": f"{used.spill_bytes} bytes to and from local memory",
        "shared memory": f"{used.shared_bytes} bytes a block ({used.static_shared_bytes} static)",
        "occupancy": f"{used.blocks_per_sm} blocks an SM, {used.threads_per_block} threads each; "
        f"{used.limiter} limits them",
        "SASS": _mix(used.sass),
        "main loop": _mix(used.main_loop) if used.main_loop else "none",
    }
    if used.tensor_share:
        units = " and ".join(sorted(TENSOR_CLASSES & used.main_loop.keys()))
        facts["tensor cores"] = f"{units} is {used.tensor_share:.1%} of the main loop"
    shown = table(title, ("fact", "value"), prose=("value",))
    shown.show_header = False
    for name, fact in facts.items():
        shown.add_row(name, fact)
    show_table(console, shown)
    rules = table("Static gate", ("rule", "value", "", "limit", ""), numeric=("value", "limit"))
    for rule in gate.rules:
        rules.add_row(
            rule.name.replace("_", " "),
            str(rule.value),
            rule.kind,
            str(rule.limit),
            verdict_text(*_rule_outcome(rule)),
        )
    show_table(console, rules)
    console.print(f"why these limits: {gate.reason}", soft_wrap=True)
    if gate.notes:
        notes = f"not declared by the kernel, so no reason to fail: {'; '.join(gate.notes)}"
        console.print(verdict_text(None, notes), soft_wrap=True)
    outcome = "gate passed" if gate.ok else f"gate failed: {'; '.join(gate.failures)}"
    conclude(console, verdict_text(gate.ok, outcome))


def _rule_outcome(rule: Rule) -> tuple[bool | None, str]:
    if rule.ok:
        return True, "ok"
    return (None, "beyond, not declared") if rule.advisory else (False, "FAILED")


def _mix(mix: Mapping[str, int]) -> str:
    return f"{sum(mix.values())} instructions: " + ", ".join(f"{count} {name}" for name, count in mix.items())
