"""Tuned defaults: the configuration that a search ranked best, by kernel, GPU and class of problems.

An entry requires a verdict at level full, and applies only to the judged source: it has the digest of the kernel's
source and headers, and is ignored after these change. A plan uses it if a GPU is named and no configuration is given
(:meth:`sdpalab.kernels.kernel.Kernel.config_for`).

Two files hold entries: ``tuned.json`` beside this module, which is shipped, and the user's file (:func:`user_file`),
which takes precedence.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache
from hashlib import sha256
from inspect import isfunction
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic.dataclasses import dataclass

from sdpalab.errors import MachineError, UserError
from sdpalab.kernels.declarations import Config
from sdpalab.kernels.import_graph import digest_of
from sdpalab.kernels.plan import INCLUDE_DIR
from sdpalab.problem import Problem
from sdpalab.record import RECORD, JsonRecord, ProblemField
from sdpalab.user_folder import data_folder
from warpsan.gpus import gpu_of_device

__all__ = [
    "SHIPPED",
    "ProblemClass",
    "Tunable",
    "TunedEntry",
    "TunedWarning",
    "entries",
    "entries_of",
    "forget",
    "keep_tuned",
    "shipped_entries",
    "source_digest",
    "source_text",
    "tuned",
    "tuned_config",
    "tuned_groups",
    "tuned_kernel",
    "user_file",
]

SHIPPED = Path(__file__).with_name("tuned.json")
_KERNELS = __name__.rpartition(".")[0]


class TunedWarning(UserWarning):
    """Warns that a file of tuned defaults cannot be read; its entries are not used."""


class Tunable(Protocol):
    """Attributes of a kernel that this module uses (:class:`sdpalab.kernels.kernel.Kernel`)."""

    name: str
    configs: Sequence[Mapping[str, int | str]]

    @property
    def default_config(self) -> Config:
        """The first configuration."""

    def config_for(self, problem: Problem, gpu: str | None) -> Config:
        """The configuration of a plan without an explicit one."""

    def reject_reason(self, problem: Problem, config: Config | None = None) -> str | None:
        """None if the kernel computes ``problem`` with ``config``, otherwise the reason."""


AnyTunable = TypeVar("AnyTunable", bound=Tunable)


@dataclass(frozen=True, config=RECORD)
class ProblemClass(JsonRecord):
    """Problems that share a tuned default: equal code, and sizes within a factor of two.

    Attributes
    ----------
    dtype : str
    head_dim : int
    causal : bool
    grouped : bool
        Whether several query heads share one K/V head.
    heads, seq_q, seq_kv : int
        Least powers of two that are at least batch times heads, and each length.
    extras : tuple of str
        Extras (:data:`sdpalab.problem.EXTRAS`) of the problems, with their compiled-in values: a window, a soft cap,
        the form of a mask.
    """

    sparse = ("extras",)

    dtype: str
    head_dim: int
    causal: bool
    grouped: bool
    heads: int
    seq_q: int
    seq_kv: int
    extras: tuple[str, ...] = ()

    @classmethod
    def of(cls, problem: Problem) -> ProblemClass:
        """The class of a problem."""
        return cls(
            problem.dtype,
            problem.head_dim,
            problem.causal,
            problem.group > 1,
            _power(problem.batch * problem.heads),
            _power(problem.seq_q),
            _power(problem.seq_kv),
            tuple(_compiled(problem, name) for name in problem.extras),
        )

    @property
    def label(self) -> str:
        """Description such as ``float16 D=64, 5 to 8 heads, 257 to 512 queries and keys``."""
        keys = f"{_range(self.seq_q)} queries and keys"
        if self.seq_q != self.seq_kv:
            keys = f"{_range(self.seq_q)} queries, {_range(self.seq_kv)} keys"
        traits = f"{self.dtype} D={self.head_dim}{' causal' * self.causal}{' grouped' * self.grouped}"
        traits = " ".join((traits, *self.extras))
        return f"{traits}, {_range(self.heads)} heads, {keys}"


@dataclass(frozen=True, config=RECORD)
class TunedEntry(JsonRecord):
    """One tuned default, and its verdict.

    Attributes
    ----------
    kernel, gpu : str
        Names of the registry and of ``gpus.json``.
    problems : ProblemClass
        Class of problems that it applies to.
    searched : Problem
        Problem of the search.
    config : mapping
        Best configuration.
    clock : str
        ``modelled``, or the name of the measuring clock.
    default_us, tuned_us : float
        Cost of the default and of this configuration on ``searched``, in microseconds of that clock.
    level, cases, device : str, int, str
        The verdict: its level, the number of passed cases, and the device.
    judge : str
        Version of the judge.
    source : str
        Digest of the kernel's source and of the shared headers (:func:`source_digest`).
    ptx_sha256 : tuple of str
        Digests of all judged builds.
    held_out : mapping of str to float
        Label of each held-out problem to this configuration's cost over the default's.

    Raises
    ------
    ValueError
        Without a verdict at level full, or for an entry slower than the default.
    """

    kernel: str
    gpu: str
    problems: ProblemClass
    searched: ProblemField
    config: Mapping[str, int | str]
    clock: str
    default_us: float
    tuned_us: float
    level: str
    cases: int
    device: str
    judge: str
    source: str
    ptx_sha256: tuple[str, ...]
    held_out: Mapping[str, float]

    def __post_init__(self) -> None:
        if self.level != "full" or self.cases < 1 or not self.ptx_sha256:
            raise ValueError(f"tuned default of {self.kernel}: no verdict at level full stands behind it")
        if self.tuned_us > self.default_us:
            raise ValueError(f"tuned default of {self.kernel}: slower than the default")
        if ProblemClass.of(self.searched) != self.problems:
            raise ValueError(f"tuned default of {self.kernel}: what was searched is not of its class")

    @property
    def sentence(self) -> str:
        """Description of the entry with its verdict and costs."""
        knobs = " ".join(f"{name}={value}" for name, value in sorted(self.config.items()))
        kind = "modelled" if self.clock == "modelled" else f"measured ({self.clock})"
        return (
            f"tuned for {self.gpu}, {self.problems.label}: {knobs}; {kind} {self.tuned_us:.2f} us, the default "
            f"{self.default_us:.2f} us; level {self.level}, {self.cases} cases PASSED on {self.device}"
        )


def user_file() -> Path:
    """Path of the user's tuned defaults: ``tuned.json`` in the data folder."""
    return data_folder() / "tuned.json"


def tuned(kernel: Tunable, problem: Problem, gpu: str) -> TunedEntry | None:
    """The tuned default of a kernel for the class of ``problem`` on ``gpu``.

    None if there is none, its source differs, or the kernel rejects the configuration for this problem.
    """
    place = kernel.name, gpu, ProblemClass.of(problem)
    for entry in entries():
        if (entry.kernel, entry.gpu, entry.problems) == place and entry.source == source_digest(kernel):
            config = kernel.default_config.but(**entry.config)
            return entry if kernel.reject_reason(problem, config) is None else None
    return None


def entries_of(kernel: Tunable, among: Sequence[TunedEntry] | None = None) -> tuple[TunedEntry, ...]:
    """Applicable tuned defaults of a kernel: one per GPU and class, for its present source.

    They come from ``among``, by default from all :func:`entries`.
    """
    among = entries() if among is None else among
    current = [entry for entry in among if entry.kernel == kernel.name and entry.source == source_digest(kernel)]
    return tuple({(entry.gpu, entry.problems): entry for entry in reversed(current)}.values())


def tuned_kernel(kernel: AnyTunable, problem: Problem, gpu: str) -> AnyTunable:
    """The kernel with its tuned configuration as default; the kernel itself without one."""
    entry = tuned(kernel, problem, gpu)
    if entry is None:
        return kernel
    changed = copy(kernel)  # a copy of either kernel dataclass; both are frozen
    config = kernel.default_config.but(**entry.config)
    object.__setattr__(changed, "configs", (config, *(each for each in kernel.configs if dict(each) != dict(config))))
    return changed


def tuned_config(kernel: Tunable, problems: Sequence[Problem], device: str) -> Config:
    """The tuned default that ``problems`` share on the GPU with that driver name (``device``); else the default."""
    gpu = gpu_of_device(device)
    taken = [problem for problem in problems if kernel.reject_reason(problem) is None]
    shared = {kernel.config_for(problem, gpu.name if gpu else None) for problem in taken}
    return shared.pop() if len(shared) == 1 else kernel.default_config


def tuned_groups(
    kernel: AnyTunable, problems: Sequence[Problem], device: str
) -> list[tuple[AnyTunable, tuple[Problem, ...]]]:
    """Copies of the kernel, one per default configuration (tuned or not) on the GPU with driver name ``device``, with
    the problems of each."""
    gpu = gpu_of_device(device)
    groups: dict[Config, tuple[AnyTunable, list[Problem]]] = {}
    for problem in problems:
        chosen = kernel if gpu is None else tuned_kernel(kernel, problem, gpu.name)
        groups.setdefault(chosen.default_config, (chosen, []))[1].append(problem)
    return [(chosen, tuple(group)) for chosen, group in groups.values()]


def source_digest(kernel: Tunable) -> str:
    """Sha256 of the kernel's source text and of the shared device headers, which with the knobs determine its code.

    Raises
    ------
    UserError
        If the source cannot be read.
    """
    return sha256(f"{source_text(kernel)}\0{_headers()}".encode()).hexdigest()


def source_text(kernel: Tunable) -> str:
    """Text of the kernel's own source: CUDA C++ or its Triton function, and the Python of its plans and declarations.

    A digest replaces the Python of a shipped kernel.

    Raises
    ------
    UserError
        If it cannot be read.
    """
    described: str | None = getattr(kernel, "described_source", None)
    if described is not None:  # the kernel's Python is in another process, which has called this function
        return described
    texts = [_text_of(kernel, getattr(kernel, name, None)) for name in ("source", "variant")]
    texts.append(str(getattr(getattr(kernel, "fn", None), "src", "")))
    functions = [getattr(value, "fn", value) for value in vars(kernel).values()]
    written = {function.__code__.co_filename: function.__module__ for function in functions if isfunction(function)}
    shipped = {module for module in written.values() if module.startswith(_KERNELS)}
    texts.append(_digest_of_python(tuple(sorted(shipped))))
    files = (Path(file) for file, module in sorted(written.items()) if module not in shipped)
    return "\0".join((*texts, *(_text_of(kernel, file) for file in files if file.is_file())))


def _text_of(kernel: Tunable, source: str | Path | None) -> str:
    if not isinstance(source, Path):
        return source or ""
    try:
        return source.read_text()
    except OSError as error:
        raise UserError(f"kernel {kernel.name}: cannot read {source}: {error.strerror}") from None


@lru_cache(maxsize=64)
def _digest_of_python(modules: tuple[str, ...]) -> str:
    return digest_of(*modules, within=_KERNELS)


@lru_cache(maxsize=1)
def _headers() -> str:
    """Digest of all shared headers."""
    digest = sha256()
    for path in sorted(INCLUDE_DIR.rglob("*.cuh")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(INCLUDE_DIR)} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def entries() -> tuple[TunedEntry, ...]:
    """All tuned defaults, the user's first."""
    return (*_read(user_file()), *shipped_entries())


def shipped_entries() -> tuple[TunedEntry, ...]:
    """The tuned defaults that come with the package."""
    return _read(SHIPPED)


def keep_tuned(entry: TunedEntry, path: Path | None = None) -> Path:
    """Write ``entry`` into the user's file or ``path``, replacing one for the same key; returns the path.

    Raises
    ------
    MachineError
        If it cannot be written.
    """
    path = path or user_file()
    place = entry.kernel, entry.gpu, entry.problems
    others = [each for each in _read(path) if (each.kernel, each.gpu, each.problems) != place]
    ordered = sorted((*others, entry), key=lambda each: (each.kernel, each.gpu, each.problems.label))
    text = json.dumps({"tuned": [each.to_dict() for each in ordered]}, indent=1) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise MachineError(f"the tuned default cannot be kept in {path}: {error.strerror}") from None
    forget()
    return path


def forget() -> None:
    """Discard cached files; the next use reads them again."""
    _parsed.cache_clear()


def _read(path: Path) -> tuple[TunedEntry, ...]:
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        return ()
    return _parsed(path, changed)


@lru_cache(maxsize=8)
def _parsed(path: Path, changed: int) -> tuple[TunedEntry, ...]:
    try:
        data: Any = json.loads(path.read_text())
        return tuple(TunedEntry.from_dict(each) for each in data["tuned"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        warnings.warn(f"{path}: its tuned defaults are not used: {reason}", TunedWarning, stacklevel=2)
        return ()


def _compiled(problem: Problem, name: str) -> str:
    """An extra of a problem, with its value if that is compiled in."""
    if name == "window_size" and problem.window_size is not None:
        return "window={},{}".format(*problem.window_size)
    return {"softcap": f"softcap={problem.softcap:g}", "attn_mask": f"attn_mask={problem.attn_mask}"}.get(name, name)


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _range(power: int) -> str:
    return f"{power // 2 + 1} to {power}" if power > 2 else str(power)
