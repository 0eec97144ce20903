"""The static gate: what the compiled kernel uses against the limits that the kernel declares."""

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
        On which side of ``limit`` the value must lie.
    """

    derived = ("ok",)

    name: str
    value: int
    limit: int
    kind: Literal["at most", "at least"] = "at most"

    @property
    def ok(self) -> bool:
        """True if the value is on the right side of the limit."""
        return self.value <= self.limit if self.kind == "at most" else self.value >= self.limit

    @property
    def sentence(self) -> str:
        """Such as ``registers is 128, and must be at most 120``."""
        return f"{self.name} is {self.value}, and must be {self.kind} {self.limit}"


@dataclass(frozen=True, config=RECORD)
class GateResult(JsonRecord):
    """All rules of one kernel on one architecture, and the kernel's reason for its limits."""

    derived = ("ok",)

    rules: Annotated[tuple[Rule, ...], Field(min_length=1)]
    reason: str

    @property
    def ok(self) -> bool:
        """True if every rule holds."""
        return all(rule.ok for rule in self.rules)

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence for each rule that does not hold."""
        return tuple(rule.sentence for rule in self.rules if not rule.ok)


def check(resources: Resources, limits: StaticLimits) -> GateResult:
    """Check ``resources`` against ``limits``.

    Every figure comes from the cubin. Shared memory is static and dynamic together; a kernel of which no block fits on
    an SM fails by ``blocks_per_sm`` whatever its limits say.
    """
    return GateResult(
        rules=(
            Rule("registers", resources.registers, limits.registers),
            Rule("shared_bytes", resources.shared_bytes, limits.shared_bytes),
            Rule("spill_bytes", resources.spill_bytes, limits.spill_bytes),
            Rule("stack_bytes", resources.stack_bytes, limits.stack_bytes),
            Rule("blocks_per_sm", resources.blocks_per_sm, max(1, limits.min_blocks_per_sm), "at least"),
        ),
        reason=limits.reason,
    )
