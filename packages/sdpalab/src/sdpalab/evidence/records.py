"""Records: the content of a bundle, typed, frozen, and validated.

Every figure has a kind. Simulated figures have no time; only PASSED attempts have a speed; measured figures name the
GPU. A record that breaks one of these rules cannot be constructed, and so cannot be read from a bundle.

Classes of other packages are reused: an attempt holds the judge's :class:`~sdpalab.judge.verdict.Verdict`, a build its
:class:`~sdpalab.compile.resources.Resources` and :class:`~sdpalab.compile.gate.GateResult`, unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from pathlib import PurePosixPath

from pydantic import Field

from sdpalab.compile.gate import GateResult
from sdpalab.compile.resources import Resources
from sdpalab.judge.verdict import Verdict
from sdpalab.record import RECORD, JsonRecord, ProblemField, dataclass

__all__ = [
    "AttemptRecord",
    "BuildRecord",
    "Environment",
    "Figure",
    "FigureKind",
    "FloorRecord",
    "Harness",
    "leaves_folder",
]

Sha256 = str
SPEED_UNITS = ("s", "ms", "us", "ns", "TFLOPS", "GFLOPS", "GB/s", "TB/s", "x")
"""Units of speed; ``x`` is a ratio of two times."""


class FigureKind(str, Enum):
    """Origin of a number."""

    MEASURED = "measured"
    """Measured on a GPU, which is named."""
    SIMULATED = "simulated"
    """Result of the PTX simulator: counts and values, never a time."""
    MODELLED = "modelled"
    """Computed from stated rates."""
    PUBLISHED = "published"
    """Published by others; the source is named."""


@dataclass(frozen=True, config=RECORD, kw_only=True)
class Figure(JsonRecord):
    """One number with its unit and its kind.

    Raises
    ------
    ValueError
        If a measured figure names no GPU, a simulated one is a time or a speed, or a modelled or published one has no
        source.
    """

    name: str
    value: float
    unit: str = ""
    kind: FigureKind
    gpu: str | None = None
    source: str = ""

    @property
    def is_speed(self) -> bool:
        """True if the unit is one of time, rate or speed-up."""
        return self.unit in SPEED_UNITS

    def __post_init__(self) -> None:
        if self.kind is FigureKind.MEASURED and not self.gpu:
            raise ValueError(f"figure {self.name!r} is measured and must name the GPU")
        if self.kind is FigureKind.SIMULATED and self.is_speed:
            raise ValueError(f"figure {self.name!r} is simulated and must not be a time or a speed ({self.unit})")
        if self.kind in (FigureKind.MODELLED, FigureKind.PUBLISHED) and not self.source:
            raise ValueError(f"figure {self.name!r} is {self.kind.value} and must name its source")


@dataclass(frozen=True, config=RECORD, kw_only=True)
class Harness(JsonRecord):
    """Source of the lab that made the bundle: commit (None if unknown), dirty or not, digest of its files."""

    commit: str | None
    dirty: bool
    package_sha256: Sha256
    version: str


@dataclass(frozen=True, config=RECORD, kw_only=True)
class Environment(JsonRecord):
    """Environment of the job, without host names, user names or paths.

    ``gpu`` is None where there is none; ``packages`` maps the name of a package to its version.
    """

    python: str
    system: str
    machine: str
    cpu_count: int = Field(ge=1)
    gpu: str | None
    driver: str | None
    packages: Mapping[str, str]
    harness: Harness


SOURCES = "source"
"""Folder of a bundle with the files of users' kernels, one subfolder per attempt."""
PTX, CUBIN, LOG = "kernel.ptx", "kernel.cubin", "log.txt"
"""Names of the compiler's outputs, in the directory of a build."""


def leaves_folder(name: str) -> bool:
    """Whether a path joined to a folder may lead out of it."""
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts


@dataclass(frozen=True, config=RECORD, kw_only=True)
class BuildRecord(JsonRecord):
    """One compiled module.

    ``sources`` are the digests of all files that the compiler could read, including CUDA's own headers; ``files`` are
    the digests of the files in the bundle under ``directory``: the source, its headers under ``include/`` (not CUDA's),
    PTX, cubin and log. A header has the same name in both: the path by which it is included, or, where that leads out
    of a folder, its digest and last part.
    """

    directory: str
    name: str
    module: str
    key: str
    entry: str
    arch: str
    compiler: str
    command: tuple[str, ...]
    compile_seconds: float = Field(ge=0)
    cache_hit: bool
    sources: Mapping[str, Sha256]
    files: Mapping[str, Sha256]
    resources: Resources | None = None
    gate: GateResult | None = None

    def __post_init__(self) -> None:
        for name in (self.directory, *self.files):
            if leaves_folder(name):
                raise ValueError(f"build {self.name}: {name!r} leaves the bundle")
        for name in (PTX, CUBIN, LOG, self.module):
            if name not in self.files:
                raise ValueError(f"build {self.name}: {name} is not among its files")

    @property
    def ptx_sha256(self) -> Sha256:
        """Digest of the PTX."""
        return self.files[PTX]


@dataclass(frozen=True, config=RECORD, kw_only=True)
class AttemptRecord(JsonRecord):
    """One configuration of one kernel that was tried: its builds, and the results of the gate and the judge.

    ``failure`` is the reason for a missing verdict. ``figures`` hold speeds only if the verdict is PASSED. ``sources``
    are the files of a user's kernel, by their paths in the bundle; the record of a shipped kernel lacks this field.
    """

    sparse = ("sources",)

    kernel: str
    config: str
    idea: str
    builds: tuple[BuildRecord, ...]
    verdict: Verdict | None
    failure: str = ""
    figures: tuple[Figure, ...] = ()
    sources: Mapping[str, Sha256] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.verdict is None and not self.failure:
            raise ValueError(f"attempt {self.kernel}: without a verdict there must be a failure that says why")
        for name in self.sources:
            if not name.startswith(f"{SOURCES}/") or leaves_folder(name):
                raise ValueError(f"attempt {self.kernel}: the source {name!r} is not below {SOURCES}/")
        speeds = [figure.name for figure in self.figures if figure.is_speed]
        if speeds and not self.passed:
            raise ValueError(f"attempt {self.kernel}: {speeds[0]!r} is a speed, and the verdict is not PASSED")
        if self.verdict is not None:
            built = {build.ptx_sha256 for build in self.builds}
            for case in self.verdict.cases:
                stray = [digest for digest in case.run.get("ptx_sha256", ()) if digest not in built]
                if stray:
                    raise ValueError(
                        f"case {case.name}: ran PTX {stray[0][:12]}, which is none of the attempt's builds"
                    )

    @property
    def passed(self) -> bool:
        """True if there is a verdict and it is PASSED."""
        return self.verdict is not None and self.verdict.passed

    @property
    def gate_ok(self) -> bool | None:
        """True if every gated build kept its limits; None if nothing was gated."""
        gates = [build.gate.ok for build in self.builds if build.gate is not None]
        return all(gates) if gates else None


@dataclass(frozen=True, config=RECORD, kw_only=True)
class FloorRecord(JsonRecord):
    """Least times of a problem on a GPU by arithmetic, the target, and published times of peers."""

    gpu: str
    problem: ProblemField
    floors: tuple[Figure, ...]
    peers: tuple[Figure, ...]
    target_us: float | None
    target_sentence: str
