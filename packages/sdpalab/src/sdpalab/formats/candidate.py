"""A submission as the judge's candidate: text that becomes an adapter in the candidate's process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sdpalab.formats.submission import Submission

__all__ = ["FormatCandidate"]


class FormatCandidate:
    """A submission, sent to the candidate's process as text; only there is it executed.

    Parameters
    ----------
    submission : Submission
    features : sequence of str
        Parameters that its function has for the judge (:data:`sdpalab.judge.parameters.PARAMETERS`).
    with_task : bool
        Whether the task's files are sent, too. A judged submission does not get them, because they have the reference.
    with_solution : bool
        Whether the submission's files are sent.
    facts : mapping
        Facts of the task that the adapter needs.
    """

    def __init__(
        self,
        submission: Submission,
        features: Sequence[str] = (),
        *,
        with_task: bool = False,
        with_solution: bool = True,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        files = {**(submission.solution if with_solution else {}), **(submission.task if with_task else {})}
        self._sent = submission.format, files, {**submission.facts, **(facts or {})}, tuple(features)

    def __call__(self, *tensors: Any, **given: Any) -> Any:
        """Not called in this process."""
        raise RuntimeError("a submission runs in the candidate's process")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _adapter, self._sent


def _adapter(kind: str, files: Mapping[str, str], facts: Mapping[str, Any], features: Sequence[str]) -> Any:
    """The adapter of a format, in the candidate's process."""
    from sdpalab.formats.adapters import ADAPTERS

    return ADAPTERS[kind](files, facts, features)
