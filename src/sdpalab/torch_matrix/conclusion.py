"""The conclusion from the matrix, as one of a closed set and in a sentence.

The kernel changed if any bit of its output did: it was given the same bits. The reference changed if any witness,
torch's own choice among its backends included, changed by more than rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sdpalab.torch_matrix.matrix import OWN_CHOICE, Change, Conclusion, Drift, VersionRow, WitnessRow

__all__ = ["conclude"]

_CONCLUSIONS = {
    (True, True): Conclusion.BOTH_CHANGED,
    (True, False): Conclusion.KERNEL_CHANGED,
    (False, True): Conclusion.REFERENCE_CHANGED,
    (False, False): Conclusion.NEITHER_CHANGED,
}
"""By whether the kernel and whether the reference changed."""


def conclude(rows: Sequence[VersionRow]) -> tuple[Conclusion, str]:
    """The conclusion, and the sentence that says what it rests on; the first row that ran is the base."""
    base, *others = [row for row in rows if row.ran]
    if not others:
        return Conclusion.NOT_COMPARED, f"nothing was compared: torch {base.run.torch} is the only version that ran"
    changed = [row for row in others if row.output and row.output.change is not Change.SAME_BITS]
    moved = [
        (row, witness)
        for row in others
        for witness in row.witnesses
        if witness.drift and witness.drift.change is Change.CHANGED
    ]
    conclusion = _CONCLUSIONS[bool(changed), bool(moved)]
    return conclusion, f"{conclusion.value}: {_of_the_kernel(changed, base)}; {_of_the_witnesses(moved, base)}"


def _of_the_kernel(changed: Sequence[VersionRow], base: VersionRow) -> str:
    if not changed:
        return "the kernel's output is the same bits with every version"
    worst = max(changed, key=lambda row: _distance(row.output))
    assert worst.output is not None
    explained = "more" if worst.output.change is Change.CHANGED else "no more"
    return (
        f"with torch {worst.run.torch} the kernel's output differs from that with {base.run.torch} in "
        f"{worst.output.cases} of {worst.cases} cases, {_by(worst.output)}, {explained} than rounding explains"
    )


def _of_the_witnesses(moved: Sequence[tuple[VersionRow, WitnessRow]], base: VersionRow) -> str:
    if not moved:
        return "no witness moved by more than rounding explains"
    # A backend before torch's own choice of it, which is as far off.
    row, witness = max(moved, key=lambda pair: (_distance(pair[1].drift), pair[1].name != OWN_CHOICE))
    assert witness.drift is not None
    before = next(known for known in base.witnesses if known.name == witness.name)
    text = f"with torch {row.run.torch} torch's {witness.name} moved {_by(witness.drift)}"
    if before.rel_l2 is not None and witness.rel_l2 is not None:
        text += f", while its error against float64 went from {before.rel_l2:.2e} to {witness.rel_l2:.2e}"
    if base.own_choice and row.own_choice and row.own_choice != base.own_choice:
        text += f", and its own choice from {base.own_choice} to {row.own_choice}"
    return text


def _distance(drift: Drift | None) -> float:
    """The distance as a number to order by: what is not finite is furthest."""
    assert drift is not None
    return math.inf if drift.rel_l2 is None else drift.rel_l2


def _by(drift: Drift) -> str:
    if drift.rel_l2 is None:
        return "by what is not a finite number"
    return f"by up to {drift.rel_l2:.1e} (relative L2)"
