"""What a worker may say: the shape of its two kinds of answer. The rest is refused unread."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sdpalab.judge.verdict import Status

__all__ = ["About", "DeclaredNumerics", "Reply"]


_FAILURES = {status.value for status in Status if status is not Status.PASSED}


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class DeclaredNumerics(_Message):
    """See :class:`sdpalab.kernels.kernel.Numerics`."""

    accumulate: str
    probabilities: str


class About(_Message):
    """What a candidate says of itself when it is loaded.

    ``numerics`` is None for a callable, which declares none; ``rejects`` has, for a CUDA kernel, one entry for each
    problem that it will be asked: None, or why it does not compute it.
    """

    kind: Literal["cuda", "callable"]
    name: str = Field(min_length=1, max_length=200)
    config: str
    device: str
    min_arch: int = 0
    numerics: DeclaredNumerics | None = None
    rejects: list[str | None] = []


class Reply(_Message):
    """How both runs of a case went: a failure and its reason, or ``status`` None with what was noticed."""

    status: str | None
    reason: str = Field(default="", max_length=10_000)
    device: str = ""
    ptx_sha256: list[str] | None = None
    memory_poisoned: bool | None = None
    hazards: list[str] = []
    hazard_count: int = 0
    changed: list[str] = []

    @model_validator(mode="after")
    def _a_failure_or_nothing(self) -> Reply:
        """A worker can fail with a reason; that a case passed is not for it to say."""
        if self.status is not None and (self.status not in _FAILURES or not self.reason):
            raise ValueError(f"status {self.status!r} with reason {self.reason!r}")
        return self
