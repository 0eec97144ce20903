"""The interface of a kernel: source, knobs, supported problems and declarations
(:mod:`sdpalab.kernels.declarations`)."""

from __future__ import annotations

import inspect
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType

from sdpalab.errors import UserError
from sdpalab.kernels.declarations import (
    MISSION_LIMITS,
    Config,
    Knob,
    Numerics,
    Quantisation,
    StaticLimits,
    UnsupportedProblem,
    check_features,
    feature_constants,
)
from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan, Module, Step, problem_buffers
from sdpalab.layout import FEATURE_BUFFERS
from sdpalab.problem import Problem
from warpsan.build import DEFAULT_ARCH
from warpsan.gpus import default_sms

__all__ = [
    "DEFAULT_ARCH",
    "MISSION_LIMITS",
    "Config",
    "CudaKernel",
    "Kernel",
    "Knob",
    "Numerics",
    "Quantisation",
    "StaticLimits",
    "Supports",
    "UnsupportedProblem",
    "check_features",
    "feature_constants",
    "supports_all",
]

PlanFunction = Callable[[Problem, Config], LaunchPlan | Launch]
Supports = Callable[[Problem], "str | bool | None"]


def supports_all(problem: Problem) -> None:
    """The default ``supports`` of a kernel: every problem is supported."""


class Kernel(ABC):
    """Base of the kernels that the lab builds, in any language."""

    name: str
    configs: Sequence[Mapping[str, Knob]]
    supports: Supports
    reject: Callable[[Problem, Config], str | None]
    numerics: Numerics | Callable[[Config], Numerics]
    limits: StaticLimits | Callable[[Problem], StaticLimits]
    min_arch: int
    only_arch: str
    knobs: Mapping[str, Sequence[Knob]]
    lse: bool
    features: Collection[str]
    algebraic: Mapping[str, Knob] = MappingProxyType({})
    idea: str

    @abstractmethod
    def _plan(self, problem: Problem, config: Config) -> LaunchPlan:
        """The complete plan of a suitable problem and configuration; it includes ``lse`` if the kernel writes it."""

    @property
    @abstractmethod
    def folder(self) -> Path | None:
        """Folder of the source; None if the source is not in a file."""

    @property
    def default_config(self) -> Config:
        """The first configuration."""
        return Config(self.configs[0])

    @property
    def default_arch(self) -> str:
        """The default architecture: the mission's, or the first that the kernel runs on."""
        if self.only_arch:
            return self.only_arch
        return DEFAULT_ARCH if self.min_arch <= _number(DEFAULT_ARCH) else f"sm_{self.min_arch}"

    def why_not_on(self, arch: str) -> str | None:
        """None if the kernel can be built for ``arch``, such as ``sm_89``, otherwise the reason."""
        if self.only_arch and arch != self.only_arch:
            return f"kernel {self.name} uses what only {self.only_arch} has, and cannot be built for {arch}"
        if _number(arch) < self.min_arch:
            return f"kernel {self.name} needs sm_{self.min_arch} or later, not {arch}"
        return None

    def space(self, problem: Problem) -> Iterator[Config]:
        """Configurations that a search for ``problem`` may try: all combinations of ``knobs`` that suit the problem.

        Knobs without values to try keep their default.
        """
        for values in product(*self.knobs.values()):
            config = self.default_config.but(**dict(zip(self.knobs, values, strict=True)))
            if self.why_not(problem, config) is None:
                yield config

    @property
    def task(self) -> str:
        """The task of its problems, of :data:`sdpalab.scoring.TASKS`."""
        return "backward" if "backward" in self.features else "forward"

    @property
    def declares_support(self) -> bool:
        """Whether the kernel has a ``supports`` of its own, and so claims to compute the problems that it accepts."""
        return self.supports is not supports_all

    def why_not_problem(self, problem: Problem) -> str | None:
        """None if the kernel supports ``problem`` and has all of its features, otherwise the reason."""
        missing = [name for name in problem.features if name not in self.features]
        if missing:
            return f"kernel {self.name} does not take {' and '.join(missing)}, which {problem.label} has"
        if problem.task != self.task:
            return f"kernel {self.name} computes gradients, and {problem.label} is a forward problem"
        answer = self.supports(problem)
        if answer is False:
            return f"kernel {self.name} does not support {problem.label}"
        return answer if isinstance(answer, str) else None

    def why_not(self, problem: Problem, config: Config | None = None) -> str | None:
        """None if the kernel computes ``problem`` (with ``config``), otherwise the reason. Compiles nothing."""
        reason = self.why_not_problem(problem)
        if reason is not None:
            return reason
        return self.reject(problem, self.default_config if config is None else config)

    def config_with(self, settings: Mapping[str, str]) -> Config:
        """The default configuration with ``--set KEY=VALUE`` applied.

        Raises
        ------
        UnsupportedProblem
            If the kernel has no such knob, or the value is not of the knob's type.
        """
        default = self.default_config
        changes: dict[str, Knob] = {}
        for name, text in settings.items():
            if name not in default:
                known = ", ".join(sorted(default)) or "none"
                raise UnsupportedProblem(f"kernel {self.name} has no knob {name!r}; its knobs are: {known}")
            if isinstance(default[name], int):
                try:
                    changes[name] = int(text)
                except ValueError:
                    raise UnsupportedProblem(f"knob {name} takes an integer, not {text!r}") from None
            else:
                changes[name] = text
        return default.but(**changes)

    def numerics_of(self, config: Config | None = None) -> Numerics:
        """The declared arithmetic of this kernel for ``config`` (default: the default configuration).

        Raises
        ------
        UserError
            If ``numerics`` is not a Numerics.
        """
        config = self.default_config if config is None else config
        declared = self.numerics(config) if callable(self.numerics) else self.numerics
        if not isinstance(declared, Numerics):
            what = f"numerics of configuration {config}" if config else "numerics"
            raise UserError(f"kernel {self.name}: {what} must be a Numerics, not {type(declared).__name__}")
        return declared

    def static_limits(self, problem: Problem) -> StaticLimits:
        """The declared limits of this kernel for ``problem``."""
        return self.limits(problem) if callable(self.limits) else self.limits

    def resolved(self, problem: Problem, config: Config, sms: int) -> Config:
        """``config`` with values for the knobs that it leaves to the kernel, for a GPU of ``sms`` multiprocessors."""
        return config

    def launch_plan(
        self,
        problem: Problem,
        config: Config | None = None,
        *,
        lse: bool = False,
        sms: int | None = None,
    ) -> LaunchPlan:
        """The complete plan: buffers q, k, v, o and any others, and steps with a module each.

        With ``lse`` the plan has the output of that name (:func:`~sdpalab.kernels.plan.problem_buffers`), too. The code
        is the same; without ``lse`` it gets a null pointer.

        Parameters
        ----------
        sms : int, optional
            Streaming multiprocessors of the target GPU: grids, and code that depends on them, may vary with it.
            Default: those of the reference GPU of :attr:`default_arch` (:func:`warpsan.gpus.default_gpu`).

        Raises
        ------
        UnsupportedProblem
            If :meth:`why_not` gives a reason, or ``lse`` is set for a kernel that does not write it.
        """
        config = self.default_config if config is None else config
        reason = self.why_not(problem, config)
        if reason is not None:
            raise UnsupportedProblem(reason)
        if lse and not self.lse:
            raise UnsupportedProblem(f"kernel {self.name} does not write the log-sum-exp of its rows")
        sms = default_sms(self.default_arch) if sms is None else sms
        plan = self._plan(problem, self.resolved(problem, config, sms))
        optional = {buffer for feature in self.features for buffer in FEATURE_BUFFERS.get(feature, ())}
        absent = sorted(optional - {buffer.name for buffer in problem_buffers(problem)})
        for name in [*absent, *(["lse"] if self.lse and not lse else [])]:
            plan = plan.without(name)
        return plan


@dataclass(frozen=True)
class CudaKernel(Kernel):
    """A kernel in CUDA C++ with the Python that launches it; the object in a user's file and in the registry.

    Parameters
    ----------
    name : str
        Name of the kernel in tables and records.
    source : str or Path
        CUDA C++ text, or the path of a ``.cu`` file (a relative one from the folder of the Python file).
    entry : str
        C++ name expression of the ``__global__`` function.
    plan : callable
        ``plan(problem, config) -> LaunchPlan | Launch``. A bare Launch runs on the buffers ``q k v o``, contiguous
        [B, H, S, D] in the problem's dtype.
    configs : sequence of mapping
        Supported configurations; the first is the default. Each knob becomes a macro of the build.
    supports : callable
        ``supports(problem)`` returns None or True if the kernel computes the problem, otherwise the reason or False.
    reject : callable, optional
        ``reject(problem, config)`` returns None, or the reason why this configuration cannot run this problem. It runs
        before compilation.
    numerics : Numerics or callable, optional
        Declared arithmetic of the kernel, or a callable ``numerics(config)``, which runs before ``reject``.
    limits : StaticLimits or callable, optional
        Limits on the kernel's resources, or a callable ``limits(problem)``.
    min_arch : int
        Least compute capability times ten, such as 80.
    only_arch : str, optional
        The only architecture that the kernel can be built for, such as ``sm_90a``. Default: any from ``min_arch``.
    knobs : mapping of str to sequence
        Values of each knob for a search; ``reject`` excludes combinations that do not suit a problem.
    lse : bool
        Whether the kernel also writes the log-sum-exp of each row if it gets a buffer: its plan then has the argument
        ``"lse"``, a pointer that may be null.
    features : collection of str
        Supported features, of :data:`sdpalab.problem.FEATURES`. Problems with other features are rejected. Lengths,
        masks, slopes and sinks are buffers of these names, and a layout has buffers of its own
        (:attr:`sdpalab.packing.Packing.inputs`): the plan may name them as arguments; the pointer is null for a
        problem without the buffer.
    variant : str or Path, optional
        Separate source for problems with any feature, with an entry of the same name, so that the code for other
        problems stays unchanged. Only this source then gets the macros of ``features``.
    resolve : callable, optional
        ``resolve(problem, config, sms)`` returns ``config`` with a value for each knob that is 0 or ``auto``, for a GPU
        of ``sms`` multiprocessors. ``plan`` and ``macros`` get the result.
    include_dirs : sequence of str or Path
        Folders for ``#include`` besides that of the source, such as a library's; relative paths start at the folder of
        the Python file. The headers of the lab, of CUDA and of the standard library (libcu++) need no folder.
    options : sequence of str
        Further NVRTC options of the list in :mod:`warpsan.build.options`, such as ``-default-device`` for CUTLASS.
    algebraic : mapping of str to knob
        Knobs that replace the default ones in the judge's exact arithmetic (:mod:`sdpalab.judge.algebra`), so that
        every instruction has a meaning there; for example, exponentials without a polynomial.
    macros : callable, optional
        ``macros(problem, config)`` returns the macros of the build, for kernels whose macros are not the knobs
        themselves: some knobs may belong to the plan only, and some macros depend on the problem.
    idea : str
        The one idea of the kernel in one line.

    Notes
    -----
    Every build also gets the macros ``HEAD_DIM`` (int), ``CAUSAL`` (0 or 1) and ``DTYPE_BF16`` (0 or 1), and for a
    problem in float32 ``DTYPE_FLOAT32`` (1). A kernel also gets the macros of its ``features``:

    - ``WINDOW_LEFT`` and ``WINDOW_RIGHT`` (-1: no bound; without a window, a causal mask does not set them);
    - ``SOFTCAP`` (a float, 0: none); ``KV_LENGTHS``, ``Q_LENGTHS``, ``ALIBI_SLOPES``, ``SINKS`` and ``BOTTOM_RIGHT`` (0
      or 1); ``HEAD_DIM_V``;
    - ``VARLEN`` (1: packed sequences), ``PAGE_SIZE`` (rows of a page, 0: no pages) and ``E4M3_CACHE`` (0 or 1);
    - ``ATTN_MASK`` (0: none, 1: boolean, a byte an entry, 2: additive, in the problem's dtype), and with it
      ``ATTN_MASK_PER_BATCH`` and ``ATTN_MASK_PER_HEAD`` (0: broadcast).
    """

    name: str
    source: str | Path
    entry: str
    plan: PlanFunction
    configs: Sequence[Mapping[str, Knob]] = ({},)
    supports: Supports = supports_all
    reject: Callable[[Problem, Config], str | None] = lambda problem, config: None
    numerics: Numerics | Callable[[Config], Numerics] = field(default_factory=Numerics)
    limits: StaticLimits | Callable[[Problem], StaticLimits] = field(default_factory=StaticLimits)
    min_arch: int = 80
    only_arch: str = ""
    knobs: Mapping[str, Sequence[Knob]] = field(default_factory=dict)
    lse: bool = False
    features: Collection[str] = ()
    variant: str | Path | None = None
    resolve: Callable[[Problem, Config, int], Config] = lambda problem, config, sms: config
    include_dirs: Sequence[str | Path] = ()
    options: Sequence[str] = ()
    algebraic: Mapping[str, Knob] = field(default_factory=dict)
    macros: Callable[[Problem, Config], Mapping[str, Knob]] = lambda problem, config: config
    idea: str = ""
    takes: InitVar[Collection[str]] = ()
    """Former name of ``features``."""

    def __post_init__(self, takes: Collection[str]) -> None:
        if takes:
            object.__setattr__(self, "features", takes if isinstance(takes, str) else (*self.features, *takes))
        for name in ("source", "variant"):
            path = getattr(self, name)
            if isinstance(path, Path) and not path.is_absolute():
                object.__setattr__(self, name, _caller_directory() / path)
        if isinstance(self.include_dirs, (str, Path)) or isinstance(self.options, str):
            raise UserError(f"kernel {self.name!r}: include_dirs and options are lists, such as ['include']")
        folders = tuple(Path(folder) for folder in self.include_dirs)
        if any(not folder.is_absolute() for folder in folders):
            folders = tuple(_caller_directory() / folder for folder in folders)
        for folder in folders:
            if not folder.is_dir():
                raise UserError(f"kernel {self.name!r}: include_dirs names {folder}, which is not a folder")
        object.__setattr__(self, "include_dirs", folders)
        if not self.configs:
            raise UserError(f"kernel {self.name!r}: configs must hold at least one configuration, such as {{}}")
        check_features(self.name, self.features, lse=self.lse)

    @property
    def folder(self) -> Path | None:
        """Folder of the ``.cu`` file; None for a text."""
        return self.source.parent if isinstance(self.source, Path) else None

    def resolved(self, problem: Problem, config: Config, sms: int) -> Config:
        return self.resolve(problem, config, sms)

    def module(self, problem: Problem, config: Config) -> Module:
        """The translation unit for this problem and a configuration with a value for every knob (:meth:`resolved`)."""
        source = self.variant if self.variant is not None and problem.features else self.source
        if isinstance(source, Path):
            try:
                text = source.read_text()
            except OSError as error:
                raise UserError(f"kernel {self.name}: cannot read {source}: {error.strerror}") from None
            file_name = source.name
            directories: tuple[Path, ...] = (source.parent,)
        else:
            text, file_name, directories = source, f"{self.name}.cu", ()
        traits = {
            "HEAD_DIM": problem.head_dim,
            "CAUSAL": int(problem.causal),
            "DTYPE_BF16": int(problem.dtype == "bfloat16"),
            **({"DTYPE_FLOAT32": 1} if problem.dtype == "float32" else {}),
            **(feature_constants(problem, self.features) if self.variant is None or problem.features else {}),
        }
        macros = self.macros(problem, config)
        defines = {name: str(value) for name, value in {**traits, **macros}.items()}
        directories += tuple(Path(folder) for folder in self.include_dirs)
        return Module(file_name, text, self.entry, defines, directories, tuple(self.options))

    def _plan(self, problem: Problem, config: Config) -> LaunchPlan:
        planned = self.plan(problem, config)
        extra: tuple[Buffer, ...] = ()
        if isinstance(planned, Launch):
            steps: tuple[Step, ...] = (planned,)
        else:
            steps, extra = planned.steps, planned.buffers
        own = self.module(problem, config)
        named = {buffer.name: buffer for buffer in extra}
        known = tuple(
            replace(buffer, fill=named[buffer.name].fill) if buffer.name in named else buffer
            for buffer in problem_buffers(problem, lse=self.lse)
        )
        names = {buffer.name for buffer in known}
        buffers = known + tuple(buffer for buffer in extra if buffer.name not in names)
        return LaunchPlan(buffers, tuple(_with_module(step, own) for step in steps))


def _with_module(step: Step, own: Module) -> Step:
    """The step; a launch without a module gets the kernel's own."""
    if not isinstance(step, Launch) or step.module is not None:
        return step
    return replace(step, module=replace(own, entry=step.entry or own.entry))


def _number(arch: str) -> int:
    """89 of ``sm_89``; 0 for any other text, which the build rejects by name."""
    return int("".join(filter(str.isdigit, arch)) or 0)


def _caller_directory() -> Path:
    """Directory of the Python file that constructs a CudaKernel, the base of relative paths such as
    ``Path("my.cu")``."""
    # inspect.stack() reads each frame's source in all modules: 0.7 s for the registry after torch is imported.
    for frame, _ in traceback.walk_stack(inspect.currentframe()):
        name = frame.f_code.co_filename
        if name not in (__file__, "<string>"):
            return Path(name).resolve().parent
    return Path.cwd()
