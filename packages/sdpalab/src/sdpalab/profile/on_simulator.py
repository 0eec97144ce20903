"""Profile of a kernel, or of a file with its launch, on the simulator: counts, modelled time, access pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sdpalab.compile.building import arch_of
from sdpalab.errors import UserError
from sdpalab.judge.sandbox.sandboxed import compile_for, configured_kernel
from sdpalab.judge.sandbox.workshop import workshop_for
from sdpalab.kernels.kernel import Kernel
from sdpalab.measure.timing_gate import NOT_BUILT
from sdpalab.model.counted import CountedPlan, arch_on, count
from sdpalab.model.counted_case import count_case
from sdpalab.model.worst import TimesByInputs, times_by_inputs
from sdpalab.problem import Problem
from sdpalab.profile.remarks import remarks
from sdpalab.profile.simulated_profile import SimulatedProfile, simulated_profile
from warpsan import SimError
from warpsan.build import SetAside, set_aside
from warpsan.gpus import Gpu, default_gpu, gpu_named
from warpsan.profile import AccessPicture, AccessRecorder, access_pictures
from warpsan.report import split_place
from warpsan.sanitize import Progress, case_of, files_of_case
from warpsan.terminal.access_pictures import picture_dict

__all__ = ["KINDS", "ProfileReport", "lines_with_accesses", "profile_file", "profile_kernel"]

KINDS: Mapping[str, str] = {
    "compiled": "read from the cubin",
    "simulated": "counted on the PTX as the simulator ran it",
    "modelled": "computed from both by the performance model (docs/model.md)",
}
"""Description of each kind of figure."""


@dataclass(frozen=True)
class ProfileReport:
    """A profile without a GPU; nothing in it is measured.

    Attributes
    ----------
    name : str
        The kernel's name, or the file's without its ending.
    kernel : str
        The kernel's name, or that of the file.
    config, label : str
        The configuration (empty for a file), and the problem or the file's entries in words.
    problem : Problem or None
        None for a file.
    gpu : Gpu
        The modelled GPU.
    arch : str
        Architecture of the build.
    profile : SimulatedProfile
    by_inputs : TimesByInputs or None
        Modelled times for each kind of inputs; None for a file, or without a modelled time.
    pictures : mapping of str to sequence of AccessPicture
        By ``file:line``.
    set_aside : SetAside
        Ignored host code of the source.
    """

    name: str
    kernel: str
    config: str
    label: str
    problem: Problem | None
    gpu: Gpu
    arch: str
    profile: SimulatedProfile
    by_inputs: TimesByInputs | None
    pictures: Mapping[str, Sequence[AccessPicture]]
    set_aside: SetAside

    @property
    def title(self) -> str:
        """Name and configuration."""
        return f"{self.name} {self.config}".strip()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        profile = self.profile
        return {
            "measured": False,
            "kinds": dict(KINDS),
            "gpu": self.gpu.name,
            "arch": self.arch,
            "kernel": self.kernel,
            "config": self.config,
            "problem": self.problem.to_dict() if self.problem is not None else None,
            **({"set_aside": self.set_aside.to_dict()} if self.set_aside else {}),
            "launches": [
                {**launch.to_dict(), "remarks": [asdict(remark) for remark in remarks(launch)]}
                for launch in profile.launches
            ],
            "modelled": profile.time.to_dict() if profile.time else None,
            "by_inputs": self.by_inputs.to_dict() if self.by_inputs else None,
            "not_modelled": profile.not_modelled,
            "pictures": [picture_dict(place, each) for place, shown in self.pictures.items() for each in shown],
        }


def profile_kernel(
    spec: str,
    problem: Problem,
    settings: Mapping[str, str],
    *,
    gpu: str | None = None,
    cold: bool = False,
    lines: Sequence[str] = (),
    include_dirs: Sequence[Path] = (),
    progress: Progress = lambda text: None,
) -> ProfileReport:
    """Build a kernel, count its plan on the simulator, and model its time.

    Parameters
    ----------
    spec : str
        Name of a shipped kernel, ``FILE.py`` or ``FILE.py:NAME``.
    problem : Problem
    settings : mapping of str to str
        Knobs that replace the default configuration's.
    gpu : str, optional
        Name of the modelled GPU. Default: the reference GPU of the kernel's architecture.
    cold : bool
        Whether inputs are in DRAM.
    lines : sequence of str
        ``[FILE:]N``: lines for pictures of accesses.
    include_dirs : sequence of Path
        Folders for ``#include`` besides those of a user's kernel.
    progress : callable
        Receives a text on each stage.

    Raises
    ------
    UserError
        If the kernel does not load, suit the problem or run on the GPU, does not end on the simulator, or a line is
        malformed.
    """
    opened = configured_kernel(spec, [problem], settings, else_say=NOT_BUILT, include_dirs=include_dirs)
    with opened as (kernel, config):
        modelled, arch = _target(kernel, gpu)
        compile_for(kernel, arch)
        modules = [step.module for step in kernel.launch_plan(problem, config).launches if step.module is not None]
        profile, pictures = _profile(
            kernel.name,
            lambda watchers: count(kernel, problem, arch, config, sms=modelled.sms, watchers=watchers),
            (modelled, arch, cold),
            _places(lines, modules[0].name if modules else ""),
            spec,
            progress,
        )
        by_inputs = times_by_inputs(profile.time, kernel, problem, modelled, arch, config) if profile.time else None
        described = kernel.name, kernel.name, str(config), problem.label, problem, modelled, arch
        return ProfileReport(*described, profile, by_inputs, pictures, set_aside(*modules))


def profile_file(
    path: Path,
    launch: str | None,
    *,
    gpu: str | None = None,
    cold: bool = False,
    lines: Sequence[str] = (),
    progress: Progress = lambda text: None,
) -> ProfileReport:
    """:func:`profile_kernel` for the launches of a PTX or CUDA C++ file with its launch file.

    Raises
    ------
    UserError
        If the file or its launch is invalid, the GPU has another architecture, the run does not end on the simulator,
        or a line is malformed.
    """
    with workshop_for(str(path), files=files_of_case(path, launch)) as workshop:
        case = case_of(path, launch, workshop=workshop)
        arch = arch_of(case)
        modelled = gpu_named(gpu) if gpu is not None else default_gpu(arch)
        if modelled.arch != arch.rstrip("af"):
            raise UserError(
                f"{case.name} is for {arch}, and {modelled.name} is {modelled.arch}: its machine code differs"
            )
        profile, pictures = _profile(
            path.stem,
            lambda watchers: count_case(case, watchers=watchers),
            (modelled, arch, cold),
            _places(lines, case.name),
            str(path),
            progress,
        )
        described = path.stem, case.name, "", ", ".join(dict.fromkeys(case.entries)), None, modelled, arch
        return ProfileReport(*described, profile, None, pictures, set_aside(*filter(None, [case.module])))


def _profile(
    name: str,
    counted: Callable[[Sequence[AccessRecorder]], CountedPlan],
    target: tuple[Gpu, str, bool],
    places: Sequence[str],
    spec: str,
    progress: Progress,
) -> tuple[SimulatedProfile, dict[str, Sequence[AccessPicture]]]:
    """The figures, and the pictures of each place."""
    gpu, arch, cold = target
    recorders = {place: AccessRecorder(place) for place in places}
    progress(f"running {name} on the simulator")
    try:
        plan = counted(tuple(recorders.values()))
    except SimError as error:
        raise UserError(f"{name} does not run to its end: {error}; sdpalab sanitize {spec} says more") from None
    progress(f"modelling {name} on {gpu.name}")
    profile = simulated_profile(plan, gpu, arch, cold=cold)
    return profile, {place: access_pictures(recorder.records) for place, recorder in recorders.items()}


def _target(kernel: Kernel, name: str | None) -> tuple[Gpu, str]:
    """The modelled GPU, and the architecture of the kernel's build.

    Raises
    ------
    UserError
        If the kernel does not run on the GPU.
    """
    gpu = gpu_named(name) if name is not None else default_gpu(kernel.default_arch)
    arch = arch_on(kernel, gpu)
    if arch is None:
        raise UserError(f"{kernel.name} does not run on {gpu.name}: {kernel.why_not_on(gpu.arch)}")
    return gpu, arch


def _places(lines: Sequence[str], own: str) -> tuple[str, ...]:
    """``file:line`` of each ``--line``; a number alone refers to the source file ``own``."""
    places = [f"{own}:{line}" if line.isdigit() else line for line in lines]
    for line, place in zip(lines, places, strict=True):
        if not split_place(place)[1]:
            raise UserError(f"--line takes a line's number or FILE:LINE, such as {own}:42, not {line!r}")
    return tuple(dict.fromkeys(places))


def lines_with_accesses(name: str, profile: SimulatedProfile) -> list[int]:
    """Lines of a file whose instructions, including those of called functions, access memory by lanes."""
    frames = {
        frame.rpartition(":")[0]
        for launch in profile.launches
        for each in launch.counters.by_instruction
        if each.ideal_sectors or each.ideal_wavefronts
        for frame in each.frames
    }
    return sorted(int(number) for file, _, number in (place.rpartition(":") for place in frames) if file == name)
