"""The static gate: resources of the compiled kernel against the kernel's declared limits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from sdpalab.compile.resources import Resources
from sdpalab.kernels.kernel import StaticLimits
from sdpalab.record import RECORD, JsonRecord

__all__ = ["GateResult", "Rule", "check"]


@dataclass(frozen=True, config=RECORD)
class Rule(JsonRecord):
    """One rule of the gate.

    Attributes
    ----------
    name : str
        Name of the figure in :class:`~sdpalab.compile.resources.Resources`.
    value, limit : int
    kind : {"at most", "at least"}
        Required side of ``limit`` for the value.
    advisory : bool
        Whether the rule cannot fail a build, since the kernel does not declare the limit.
    """

    derived = ("ok",)
    sparse = ("advisory",)

    name: str
    value: int
    limit: int
    kind: Literal["at most", "at least"] = "at most"
    advisory: bool = False

    @property
    def ok(self) -> bool:
        """True if the value is within the limit."""
        return self.value <= self.limit if self.kind == "at most" else self.value >= self.limit

    @property
    def sentence(self) -> str:
        """Sentence such as ``registers is 128, and must be at most 120``."""
        return f"{self.name} is {self.value}, and must be {self.kind} {self.limit}"


@dataclass(frozen=True, config=RECORD)
class GateResult(JsonRecord):
    """All rules of one kernel on one architecture, and the kernel's reason for its limits."""

    derived = ("ok",)

    rules: Annotated[tuple[Rule, ...], Field(min_length=1)]
    reason: str

    @property
    def ok(self) -> bool:
        """True if all rules hold, advisory ones aside."""
        return all(rule.ok or rule.advisory for rule in self.rules)

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence for each broken rule that is not advisory."""
        return tuple(rule.sentence for rule in self.rules if not rule.ok and not rule.advisory)

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each figure beyond a limit of the mission that the kernel does not declare."""
        beyond = [rule for rule in self.rules if not rule.ok and rule.advisory]
        return tuple(f"{rule.name} is {rule.value}; the mission's limit is {rule.limit}" for rule in beyond)


def check(resources: Resources, limits: StaticLimits) -> GateResult:
    """Check ``resources`` against ``limits``.

    Every figure comes from the cubin. Shared memory is static plus dynamic. A kernel whose blocks do not fit an SM
    fails by ``blocks_per_sm``, whatever its limits. Limits that the kernel does not declare are advisory, with the
    mission's values.
    """
    most = [
        Rule(name, getattr(resources, name), limits.value(name), advisory=getattr(limits, name) is None)
        for name in ("registers", "shared_bytes", "spill_bytes", "stack_bytes")
    ]
    fewest = Rule("blocks_per_sm", resources.blocks_per_sm, max(1, limits.value("min_blocks_per_sm")), "at least")
    return GateResult(rules=(*most, fewest), reason=limits.reason)
