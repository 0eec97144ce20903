"""Records: what a bundle says, typed, frozen, and unable to say what must not be said.

Every figure carries its kind. What a simulator ran has no time; what was not judged PASSED has no speed; what was
measured names the GPU. A record that breaks one of these cannot be built, and so cannot be read from a bundle either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sdpalab.judge.verdict import LIMITED, Case, Errors, Limits, LseErrors, Status, Verdict
from sdpalab.problem import TWELVE_CASES, Problem

__all__ = [
    "AttemptRecord",
    "BuildRecord",
    "CaseRecord",
    "Environment",
    "ErrorsRecord",
    "Figure",
    "FigureKind",
    "FloorRecord",
    "GateRecord",
    "Harness",
    "LimitsRecord",
    "LseErrorsRecord",
    "ProblemRecord",
    "Record",
    "ResourceRecord",
    "RuleRecord",
    "VerdictRecord",
]

Sha256 = str
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SPEED_UNITS = {"s", "ms", "us", "ns", "TFLOPS", "GFLOPS", "GB/s", "TB/s", "x"}
"""Units that say how fast something is; ``x`` is a ratio of two times."""


class Record(BaseModel):
    """Base of all records: frozen, no unknown fields, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FigureKind(str, Enum):
    """Where a number comes from."""

    MEASURED = "measured"
    """On a GPU, which is named."""
    SIMULATED = "simulated"
    """By the PTX simulator: counts and values, never a time."""
    MODELLED = "modelled"
    """By arithmetic from stated rates."""
    PUBLISHED = "published"
    """By others; the source is named."""


class Figure(Record):
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
        return self.unit in _SPEED_UNITS

    @model_validator(mode="after")
    def _legal(self) -> Figure:
        if self.kind is FigureKind.MEASURED and not self.gpu:
            raise ValueError(f"figure {self.name!r} is measured and must name the GPU")
        if self.kind is FigureKind.SIMULATED and self.is_speed:
            raise ValueError(f"figure {self.name!r} is simulated and must not be a time or a speed ({self.unit})")
        if self.kind in (FigureKind.MODELLED, FigureKind.PUBLISHED) and not self.source:
            raise ValueError(f"figure {self.name!r} is {self.kind.value} and must name its source")
        return self


class Harness(Record):
    """Which source of the lab made the bundle: commit (None if unknown), dirty or not, digest of its files."""

    commit: str | None
    dirty: bool
    package_sha256: Sha256
    version: str


class Environment(Record):
    """What the job ran on, without the name of the host, of a user, or any path.

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


class ProblemRecord(Record):
    """The fields of :class:`sdpalab.problem.Problem`, validated by it."""

    batch: int
    heads: int
    seq_q: int
    head_dim: int
    kv_heads: int
    seq_kv: int
    dtype: str
    causal: bool
    scale: float

    @model_validator(mode="after")
    def _legal(self) -> ProblemRecord:
        self.problem()
        return self

    def problem(self) -> Problem:
        """The problem itself; raises ProblemError if there is none with these fields."""
        return Problem(**self.model_dump())


class LseErrorsRecord(Record):
    """As :class:`sdpalab.judge.verdict.LseErrors`."""

    error: float
    limit: float
    row: tuple[int, int, int]
    not_finite: int


class ErrorsRecord(Record):
    """As :class:`sdpalab.judge.verdict.Errors`."""

    max_abs: float
    max_abs_index: tuple[int, int, int, int]
    rel_l2: float
    rms_row_rel_l2: float
    worst_row_rel_l2: float
    worst_row: tuple[int, int, int]
    not_finite: int
    exact: int
    exact_wrong: int
    ignored_rows: int
    lse: LseErrorsRecord | None = None

    def errors(self) -> Errors:
        """The judge's errors."""
        lse = LseErrors(**self.lse.model_dump()) if self.lse else None
        return Errors(**self.model_dump(exclude={"lse"}), lse=lse)


class LimitsRecord(Record):
    """As :class:`sdpalab.judge.verdict.Limits`."""

    max_abs: float
    rel_l2: float
    rms_row_rel_l2: float
    worst_row_rel_l2: float
    yardstick_max_abs: float
    intended_max_abs: float
    intended_rel_l2: float
    intended_rms_row_rel_l2: float
    intended_worst_row_rel_l2: float


class CaseRecord(Record):
    """As :class:`sdpalab.judge.verdict.Case`, which decides whether it is legal.

    ``run`` has ``ptx_sha256``, one digest a step, and ``numerics``, the declared arithmetic, where something ran.
    """

    name: str
    problem: ProblemRecord
    inputs: str
    seed: int
    status: Status
    reason: str
    errors: ErrorsRecord | None
    limits: LimitsRecord | None
    digests: Mapping[str, Sha256]
    run: Mapping[str, Any]
    original_contract: bool | None

    @field_validator("digests")
    @classmethod
    def _are_digests(cls, digests: Mapping[str, str]) -> Mapping[str, str]:
        for name, digest in digests.items():
            if not _SHA256.fullmatch(digest):
                raise ValueError(f"digest of {name} is not a sha256: {digest!r}")
        return digests

    @model_validator(mode="after")
    def _legal(self) -> CaseRecord:
        if self.original_contract is not self.case().original_contract:
            raise ValueError(f"case {self.name}: original_contract {self.original_contract} is not what its errors say")
        if self.status is Status.PASSED:
            needed = ("q", "k", "v", "o", "yardstick", *(["lse"] if self.errors and self.errors.lse else []))
            missing = [name for name in needed if name not in self.digests]
            if missing:
                raise ValueError(f"case {self.name}: PASSED without the digest of {', '.join(missing)}")
        return self

    def case(self) -> Case:
        """The judge's case; raises ValueError if it would be an illegal one."""
        return Case(
            name=self.name,
            problem=self.problem.problem(),
            inputs=self.inputs,
            seed=self.seed,
            status=self.status,
            reason=self.reason,
            errors=self.errors.errors() if self.errors else None,
            limits=Limits(**self.limits.model_dump()) if self.limits else None,
            digests=self.digests,
            run=self.run,
        )

    @property
    def limited(self) -> dict[str, tuple[float, float]]:
        """Each error with its limit, ``lse`` only if there is one; empty without errors and limits."""
        if self.errors is None or self.limits is None:
            return {}
        pairs = {name: (getattr(self.errors, name), getattr(self.limits, name)) for name in LIMITED}
        if self.errors.lse is not None:
            pairs["lse"] = self.errors.lse.error, self.errors.lse.limit
        return pairs

    @property
    def fractions(self) -> dict[str, float]:
        """Each of :attr:`limited` as a fraction of its limit."""
        return {
            name: error / limit if limit else (0.0 if not error else 1e9)
            for name, (error, limit) in self.limited.items()
        }


class VerdictRecord(Record):
    """As :class:`sdpalab.judge.verdict.Verdict`; its status must be the one that its cases give."""

    kernel: str
    config: str
    device: str
    level: str
    seed: int
    status: Status
    passed: bool
    reason: str
    original_contract: int
    cases: tuple[CaseRecord, ...]

    @model_validator(mode="after")
    def _legal(self) -> VerdictRecord:
        verdict = Verdict(
            self.kernel, self.config, self.device, self.level, self.seed, tuple(case.case() for case in self.cases)
        )
        if self.status is not verdict.status or self.passed is not verdict.passed:
            raise ValueError(f"verdict of {self.kernel}: {self.status.value}, and its cases say {verdict.status.value}")
        if self.original_contract != verdict.original_contract:
            raise ValueError(f"verdict of {self.kernel}: {verdict.original_contract} cases keep the original contract")
        return self

    @classmethod
    def of(cls, verdict: Verdict) -> VerdictRecord:
        """The record of a verdict."""
        return cls.model_validate(verdict.to_dict())

    @property
    def twelve(self) -> int:
        """How many of the twelve contract cases are among the cases (normal inputs, their seeds), 0 to 12."""
        judged = {(case.problem.problem(), case.seed) for case in self.cases if case.inputs == "normal"}
        return sum(pair in judged for pair in TWELVE_CASES)


class ResourceRecord(Record):
    """As :class:`sdpalab.compile.resources.Resources`: what one launch of a compiled kernel uses of an SM."""

    arch: str
    registers: int = Field(ge=0)
    stack_bytes: int = Field(ge=0)
    spill_bytes: int = Field(ge=0)
    reported_spill_bytes: int = Field(ge=0)
    static_shared_bytes: int = Field(ge=0)
    dynamic_shared_bytes: int = Field(ge=0)
    constant_bytes: int = Field(ge=0)
    threads_per_block: int = Field(ge=1)
    blocks_per_sm: int = Field(ge=0)
    warps_per_sm: int = Field(ge=0)
    limiter: str
    sass: Mapping[str, int]
    main_loop: Mapping[str, int]
    tensor_share: float | None = Field(ge=0, le=1)

    @property
    def shared_bytes(self) -> int:
        """Static and dynamic shared memory of a block, bytes."""
        return self.static_shared_bytes + self.dynamic_shared_bytes


class RuleRecord(Record):
    """One bar of the static gate. ``kind`` says on which side of the limit the value must lie."""

    name: str
    value: int
    limit: int
    kind: str = Field(pattern="^(at most|at least)$")
    ok: bool

    @model_validator(mode="after")
    def _legal(self) -> RuleRecord:
        holds = self.value <= self.limit if self.kind == "at most" else self.value >= self.limit
        if self.ok is not holds:
            raise ValueError(f"gate rule {self.name}: {self.value} {self.kind} {self.limit} is not {self.ok}")
        return self


class GateRecord(Record):
    """The static gate: every rule with its value and limit, and why the limits are what they are."""

    rules: tuple[RuleRecord, ...] = Field(min_length=1)
    reason: str
    ok: bool

    @model_validator(mode="after")
    def _legal(self) -> GateRecord:
        if self.ok is not all(rule.ok for rule in self.rules):
            raise ValueError("the gate's outcome is not that of its rules")
        return self


PTX, CUBIN, LOG = "kernel.ptx", "kernel.cubin", "log.txt"
"""Names of what the compiler made, in the directory of a build."""


class BuildRecord(Record):
    """One compiled module.

    ``sources`` are the digests of all that the compiler could see, CUDA's own headers too; ``files`` those of what is
    kept in the bundle under ``directory``: the source, its headers under ``include/`` (not CUDA's), PTX, cubin and log.
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
    resources: ResourceRecord | None = None
    gate: GateRecord | None = None

    @model_validator(mode="after")
    def _legal(self) -> BuildRecord:
        for name in (self.directory, *self.files):
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"build {self.name}: {name!r} leaves the bundle")
        for name in (PTX, CUBIN, LOG, self.module):
            if name not in self.files:
                raise ValueError(f"build {self.name}: {name} is not among its files")
        return self

    @property
    def ptx_sha256(self) -> Sha256:
        """Digest of the PTX."""
        return self.files[PTX]


class AttemptRecord(Record):
    """One configuration of one kernel that was tried: what was built, what the gate and the judge said.

    ``failure`` says why there is no verdict. ``figures`` hold speeds only if the verdict is PASSED.
    """

    kernel: str
    config: str
    idea: str
    builds: tuple[BuildRecord, ...]
    verdict: VerdictRecord | None
    failure: str = ""
    figures: tuple[Figure, ...] = ()

    @model_validator(mode="after")
    def _legal(self) -> AttemptRecord:
        if self.verdict is None and not self.failure:
            raise ValueError(f"attempt {self.kernel}: without a verdict there must be a failure that says why")
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
        return self

    @property
    def passed(self) -> bool:
        """True if there is a verdict and it is PASSED."""
        return self.verdict is not None and self.verdict.passed

    @property
    def gate_ok(self) -> bool | None:
        """True if every gated build kept its limits; None if nothing was gated."""
        gates = [build.gate.ok for build in self.builds if build.gate is not None]
        return all(gates) if gates else None


class FloorRecord(Record):
    """Least times of a problem on a GPU by arithmetic, the target drawn beside them, and published times of peers."""

    gpu: str
    problem: ProblemRecord
    floors: tuple[Figure, ...]
    peers: tuple[Figure, ...]
    target_us: float | None
    target_sentence: str
