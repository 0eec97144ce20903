"""The outcomes of judging."""

from __future__ import annotations

from enum import Enum

__all__ = ["Status"]


class Status(str, Enum):
    """Outcome of a case or of a verdict. Only PASSED is good."""

    PASSED = "PASSED"
    INCORRECT = "INCORRECT"
    """A limit of the rule is exceeded, or an exact element differs."""
    NOT_FINITE = "NOT_FINITE"
    """NaN or Inf where the case declares none; usually an output that was never written."""
    NONDETERMINISTIC = "NONDETERMINISTIC"
    """Two runs on the same inputs, with differently poisoned outputs, differ."""
    STALE = "STALE"
    """Right on its inputs, and wrong on other data in the same memory: the kernel keeps state between launches."""
    INCONSISTENT = "INCONSISTENT"
    """Right on its inputs, but a required relation to the output on related inputs fails."""
    INPUT_CHANGED = "INPUT_CHANGED"
    """The candidate wrote to its inputs."""
    BAD_OUTPUT = "BAD_OUTPUT"
    """Wrong shape, dtype or type of output."""
    BY_TORCH = "BY_TORCH"
    """Right, but a callable with kernels of its own let torch compute the output."""
    HAZARD = "HAZARD"
    """The simulator found an illegal access (out of bounds, misaligned, uninitialised, a race), or no GPU of this kind
    accepts the launch."""
    UNSUPPORTED = "UNSUPPORTED"
    """The kernel does not support this problem, or the simulator does not model an instruction."""
    BUILD_FAILED = "BUILD_FAILED"
    CRASHED = "CRASHED"
    """The candidate raised, or its process died."""
    TIMED_OUT = "TIMED_OUT"
    INFRA_ERROR = "INFRA_ERROR"
    """The machine failed, not the kernel; neither a pass nor a failure."""
    INTERRUPTED = "INTERRUPTED"
    """Judging was stopped before all cases were judged, and the judged cases are PASSED. Status of a verdict only."""
