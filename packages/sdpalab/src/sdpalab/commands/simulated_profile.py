"""``sdpalab profile --device sim``: figures of a kernel without a GPU, in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from sdpalab.commands.bench import NOT_BUILT
from sdpalab.commands.source_listing import print_hot_lines, print_listing
from sdpalab.errors import UserError
from sdpalab.kernels.kernel import Kernel
from sdpalab.problem import Problem
from warpsan.build import SetAside, set_aside
from warpsan.terminal.access_pictures import picture_dict, print_picture
from warpsan.terminal.console import conclude, print_set_aside, progress_console, verdict_text, write_text
from warpsan.terminal.invocation import write_document
from warpsan.terminal.tables import show_table, table

if TYPE_CHECKING:
    from sdpalab.model.counted import CountedPlan
    from sdpalab.model.critical_path import CriticalPath
    from sdpalab.model.modelled import ModelledTime
    from sdpalab.model.worst import TimesByInputs
    from sdpalab.profile.simulated_profile import LaunchFigures, SimulatedProfile
    from warpsan.gpus import Gpu
    from warpsan.profile import AccessPicture, AccessRecorder

__all__ = ["KINDS", "ProfileView", "output_folder", "profile_file_on_simulator", "profile_kernel_on_simulator"]

KINDS: Mapping[str, str] = {
    "compiled": "read from the cubin",
    "simulated": "counted on the PTX as the simulator ran it",
    "modelled": "computed from both by the performance model (docs/model.md)",
}
"""Description of each kind of figure."""

NOT_MEASURED = "Nothing here was measured, and the kernel was not judged."
_MOST_PIPES = 8


def output_folder(out: Path) -> Path:
    """The folder of ``--out``, created if missing; raises UserError if that fails."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be made: {error.strerror}") from None
    return out


@dataclass(frozen=True)
class ProfileView:
    """Selected views and destinations of a profile, from the commands' options.

    Attributes
    ----------
    gpu : str or None
        The modelled GPU; None for the reference GPU of the architecture.
    cold : bool
        Whether inputs are in DRAM.
    lines : sequence of str
        ``[FILE:]N`` for pictures of accesses.
    source : bool
        Whether to list the whole source.
    out : Path or None
        Folder of the page.
    json : str or None
    """

    gpu: str | None
    cold: bool
    lines: Sequence[str]
    source: bool
    out: Path | None
    json: str | None


def profile_kernel_on_simulator(
    console: Console,
    name: str,
    problem: Problem,
    settings: Mapping[str, str],
    view: ProfileView,
    include_dirs: Sequence[Path] = (),
) -> int:
    """Build, count and model a kernel's plan; print the figures, and write the page to ``out`` if there is one."""
    from sdpalab.judge.sandbox.sandboxed import compile_for, configured_kernel
    from sdpalab.model.counted import count
    from sdpalab.model.worst import times_by_inputs

    page_folder = output_folder(view.out) if view.out is not None else None
    opened = configured_kernel(name, [problem], settings, else_say=NOT_BUILT, include_dirs=include_dirs)
    with opened as (kernel, config):
        modelled, arch = _target(kernel, view.gpu)
        compile_for(kernel, arch)
        modules = [step.module for step in kernel.launch_plan(problem, config).launches if step.module is not None]
        own = modules[0].name if modules else ""
        aside = set_aside(*modules)
        subject = _Profiled(kernel.name, str(config), problem.label, modelled, arch, own, aside)
        return _profile(
            console,
            subject,
            lambda watchers: count(kernel, problem, arch, config, sms=modelled.sms, watchers=watchers),
            {"kernel": kernel.name, "config": str(config), "problem": problem.to_dict()},
            view,
            page_folder,
            hint=f"sdpalab sanitize {name} says more",
            by_inputs=lambda normal: times_by_inputs(normal, kernel, problem, modelled, arch, config),
        )


def profile_file_on_simulator(console: Console, path: Path, launch: str | None, view: ProfileView) -> int:
    """Assemble, count and model the launches of a PTX or CUDA C++ file with its launch file, as for a kernel."""
    from sdpalab.compile.building import arch_of
    from sdpalab.judge.sandbox.workshop import workshop_for
    from sdpalab.model.counted_case import count_case
    from warpsan.gpus import default_gpu, gpu_named
    from warpsan.sanitize import case_of, files_of_case

    page_folder = output_folder(view.out) if view.out is not None else None
    with workshop_for(str(path), files=files_of_case(path, launch)) as workshop:
        case = case_of(path, launch, workshop=workshop)
        arch = arch_of(case)
        modelled = gpu_named(view.gpu) if view.gpu is not None else default_gpu(arch)
        if modelled.arch != arch.rstrip("af"):
            raise UserError(
                f"{case.name} is for {arch}, and {modelled.name} is {modelled.arch}: its machine code differs"
            )
        aside = set_aside(*filter(None, [case.module]))
        subject = _Profiled(path.stem, "", ", ".join(dict.fromkeys(case.entries)), modelled, arch, case.name, aside)
        return _profile(
            console,
            subject,
            lambda watchers: count_case(case, watchers=watchers),
            {"kernel": case.name, "config": "", "problem": None},
            view,
            page_folder,
            hint=f"sdpalab sanitize {path} says more",
        )


@dataclass(frozen=True)
class _Profiled:
    """The profiled kernel: name, configuration, problem and GPU; ``own`` is its source file, and ``set_aside`` the host
    code in that file."""

    name: str
    config: str
    label: str
    gpu: Gpu
    arch: str
    own: str
    set_aside: SetAside


def _profile(
    console: Console,
    subject: _Profiled,
    count: Callable[[Sequence[AccessRecorder]], CountedPlan],
    described: Mapping[str, Any],
    view: ProfileView,
    page_folder: Path | None,
    *,
    hint: str,
    by_inputs: Callable[[ModelledTime], TimesByInputs] | None = None,
) -> int:
    from sdpalab.evidence.report.profile_page import render_profile_page
    from sdpalab.profile.simulated_profile import simulated_profile
    from warpsan import SimError
    from warpsan.profile import AccessRecorder, access_pictures

    gpu, arch = subject.gpu, subject.arch
    recorders = {place: AccessRecorder(place) for place in _places(view.lines, subject.own)}
    with progress_console().status(f"running {subject.name} on the simulator") as status:
        try:
            counted = count(tuple(recorders.values()))
        except SimError as error:
            raise UserError(f"{subject.name} does not run to its end: {error}; {hint}") from None
        status.update(f"modelling {subject.name} on {gpu.name}")
        profile = simulated_profile(counted, gpu, arch, cold=view.cold)
        worst = by_inputs(profile.time) if by_inputs is not None and profile.time is not None else None
    pictures = {place: access_pictures(recorder.records) for place, recorder in recorders.items()}
    title = f"{subject.name} {subject.config}".strip()
    console.print(f"{title} on {subject.label}, for {gpu.name} ({arch})", soft_wrap=True)
    print_set_aside(console, str(subject.set_aside))
    console.print(NOT_MEASURED, soft_wrap=True)
    for launch in profile.launches:
        _print_launch(console, launch)
        print_hot_lines(console, launch, profile.sources)
        if view.source:
            print_listing(console, launch, profile.sources)
    for place, shown in pictures.items():
        _print_pictures(console, place, shown, profile)
    page = ""
    if page_folder is not None:
        path = page_folder / f"{subject.name}-simulated.html"
        text = render_profile_page(title, subject.label, profile, pictures, KINDS)
        write_text(str(path), text, option="--out")
        page = str(path)
        console.print(f"page  {page} (open it in any browser)", soft_wrap=True)
    _print_time(console, profile, worst)
    content = {
        "measured": False,
        "kinds": dict(KINDS),
        "gpu": gpu.name,
        "arch": arch,
        **described,
        **({"set_aside": subject.set_aside.to_dict()} if subject.set_aside else {}),
        "launches": [_launch_dict(launch) for launch in profile.launches],
        "modelled": profile.time.to_dict() if profile.time else None,
        "by_inputs": worst.to_dict() if worst else None,
        "not_modelled": profile.not_modelled,
        "pictures": [picture_dict(place, each) for place, shown in pictures.items() for each in shown],
        "page": page,
    }
    write_document(view.json, content, status="PASSED")
    return 0


def _target(kernel: Kernel, name: str | None) -> tuple[Gpu, str]:
    """The modelled GPU, and the architecture of the kernel's build.

    Raises
    ------
    UserError
        If the kernel does not run on the GPU.
    """
    from sdpalab.model.counted import arch_on
    from warpsan.gpus import default_gpu, gpu_named

    gpu = gpu_named(name) if name is not None else default_gpu(kernel.default_arch)
    arch = arch_on(kernel, gpu)
    if arch is None:
        raise UserError(f"{kernel.name} does not run on {gpu.name}: {kernel.arch_reason(gpu.arch)}")
    return gpu, arch


def _places(lines: Sequence[str], own: str) -> tuple[str, ...]:
    """``file:line`` of each ``--line``; a number alone refers to the source file ``own``."""
    from warpsan.report import split_place

    places = [f"{own}:{line}" if line.isdigit() else line for line in lines]
    for line, place in zip(lines, places, strict=True):
        if not split_place(place)[1]:
            raise UserError(f"--line takes a line's number or FILE:LINE, such as {own}:42, not {line!r}")
    return tuple(dict.fromkeys(places))


def _launch_dict(launch: LaunchFigures) -> dict[str, Any]:
    from dataclasses import asdict

    from sdpalab.profile.remarks import remarks

    return {**launch.to_dict(), "remarks": [asdict(remark) for remark in remarks(launch)]}


def _print_launch(console: Console, launch: LaunchFigures) -> None:
    """Print remarks, then the figures of the launch, of its instructions, and of the units."""
    from sdpalab.profile.remarks import remarks
    from sdpalab.profile.summary import summary_rows

    grid, block = ("x".join(map(str, size)) for size in (launch.grid, launch.block))
    console.print()
    console.print(Text(f"{launch.name}, grid {grid}, block {block}", style="bold"), soft_wrap=True)
    for remark in remarks(launch):
        sentence = verdict_text(None, remark.sentence) if remark.binds else Text(remark.sentence)
        console.print(Text.assemble(f"{remark.kind:<9}  ", sentence), soft_wrap=True)
    shown = table("", ("figure", "value", "kind"), numeric=("value",))
    for figure, value, kind in summary_rows(launch):
        shown.add_row(figure, value, kind)
    show_table(console, shown)
    show_table(console, _instructions(launch))
    if launch.critical_path is not None:
        show_table(console, _phases(launch.critical_path))


def _phases(path: CriticalPath) -> Any:
    """The critical path, phase by phase, and the sum."""
    shown = table("", ("critical path of a block, modelled", "clocks", "us"), numeric=("clocks", "us"))
    for phase in path.phases:
        shown.add_row(phase.name, f"{phase.clocks:,.0f}", f"{phase.clocks / path.clock_mhz:.2f}")
    shown.add_row("all", f"{path.clocks:,.0f}", f"{path.microseconds:.2f}")
    return shown


def _instructions(launch: LaunchFigures) -> Any:
    """Three tables side by side, each in descending order: PTX by pipe, machine code by class, and units by use."""
    total = max(1, launch.counters.total("warps"))
    pipes = [(name, f"{count / total:.1%}") for name, count in launch.counters.mix().items() if count]
    sass = launch.resources.sass
    classes = [(name, f"{count / sum(sass.values()):.1%}") for name, count in sass.items()]
    units = [(name, f"{share:.1%}") for name, share in (launch.issue.busy if launch.issue else {}).items()]
    columns = ("PTX pipe", "simulated", "SASS class", "compiled", "unit busy", "modelled")
    shown = table("", columns, numeric=("simulated", "compiled", "modelled"))
    for row in range(min(_MOST_PIPES, max(map(len, (pipes, classes, units))))):
        shown.add_row(
            *(cell for part in (pipes, classes, units) for cell in (part[row] if row < len(part) else ("", "")))
        )
    return shown


def _print_pictures(console: Console, place: str, pictures: Sequence[AccessPicture], profile: SimulatedProfile) -> None:
    code = profile.sources.line(place).strip()
    console.print()
    console.print(Text.assemble((place, "bold"), f"  {code}"), no_wrap=True, overflow="ellipsis")
    if not pictures:
        numbers = _lines_with_accesses(place.rpartition(":")[0], profile)
        hint = f"; it does in line {', '.join(map(str, numbers))}" if numbers else ""
        console.print(f"no warp accesses memory by lanes at this line{hint}", soft_wrap=True)
    for picture in pictures:
        print_picture(console, picture)


def _lines_with_accesses(name: str, profile: SimulatedProfile) -> list[int]:
    """Lines of a file whose instructions, including those of called functions, access memory by lanes."""
    frames = {
        frame.rpartition(":")[0]
        for launch in profile.launches
        for each in launch.counters.by_instruction
        if each.ideal_sectors or each.ideal_wavefronts
        for frame in each.frames
    }
    return sorted(int(number) for file, _, number in (place.rpartition(":") for place in frames) if file == name)


def _print_time(console: Console, profile: SimulatedProfile, worst: TimesByInputs | None) -> None:
    """Print the modelled time as the last line, with the worst kind of inputs."""
    if profile.time is None:
        conclude(console, verdict_text(None, f"no modelled time: {profile.not_modelled}"))
        return
    time = profile.time
    where = "DRAM" if time.cold else "L2"
    steps = f", {len(time.steps)} steps" if len(time.steps) > 1 else ""
    beside = f"{worst.sentence}; " if worst else ""
    line = f"modelled: {time.microseconds:.2f} us on {time.gpu}, inputs in {where}{steps}; {beside}not measured"
    conclude(console, verdict_text(None, line))
