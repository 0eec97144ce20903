"""Tuned defaults: the configuration that a search ranked best, by kernel, GPU and class of problems.

An entry requires a verdict at level full, and applies only to the judged source: it has the digest of the kernel's
source and headers, and is ignored after these change. :mod:`sdpalab.evidence.store.tuned` stores entries.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic.dataclasses import dataclass

from sdpalab.problem import Problem
from sdpalab.record import RECORD, JsonRecord, ProblemField

__all__ = ["ProblemClass", "TunedEntry"]


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
    features : tuple of str
        Extras (:data:`sdpalab.problem.FEATURES`) of the problems, with their compiled-in values: a window, a soft cap,
        the form of a mask.
    """

    sparse = ("features",)

    dtype: str
    head_dim: int
    causal: bool
    grouped: bool
    heads: int
    seq_q: int
    seq_kv: int
    features: tuple[str, ...] = ()

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
            tuple(_compiled(problem, name) for name in problem.features),
        )

    @property
    def label(self) -> str:
        """Description such as ``float16 D=64, 5 to 8 heads, 257 to 512 queries and keys``."""
        keys = f"{_range(self.seq_q)} queries and keys"
        if self.seq_q != self.seq_kv:
            keys = f"{_range(self.seq_q)} queries, {_range(self.seq_kv)} keys"
        traits = f"{self.dtype} D={self.head_dim}{' causal' * self.causal}{' grouped' * self.grouped}"
        traits = " ".join((traits, *self.features))
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
        Digest of the kernel's source and of the shared headers (:func:`sdpalab.kernels.source.source_digest`).
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


def _compiled(problem: Problem, name: str) -> str:
    """An extra of a problem, with its value if that is compiled in."""
    if name == "window_size" and problem.window_size is not None:
        return "window={},{}".format(*problem.window_size)
    return {"softcap": f"softcap={problem.softcap:g}", "attn_mask": f"attn_mask={problem.attn_mask}"}.get(name, name)


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _range(power: int) -> str:
    return f"{power // 2 + 1} to {power}" if power > 2 else str(power)
