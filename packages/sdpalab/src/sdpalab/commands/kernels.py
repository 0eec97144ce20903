"""``sdpalab kernels``: the ladder, one row per kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sdpalab.evidence.store.tuned import tuned_entries
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.problem import DTYPES, Problem
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption
from warpsan.terminal.tables import show_table, table

__all__ = ["describe", "kernels"]

_HEAD_DIMS = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256)
"""Head dimensions to try: those of common models."""
_LAYOUTS = {"forward": ("dense", "varlen", "paged:16", "paged:64:e4m3"), "backward": ("dense", "varlen")}
"""Layouts to try, by task."""


def kernels(json: JsonOption = None) -> int:
    """List the shipped kernels: idea, types, head dimensions, knobs with their defaults, numerics, tuned defaults."""
    from sdpalab.kernels.registry import SHIPPED, get, needs

    console = console_and_subject(json)
    rows: list[dict[str, Any]] = []
    columns = ("kernel", "idea", "dtypes", "head_dim", "knobs", "numerics")
    shown = table("Kernels, from the baseline up", columns, prose=columns[1:], spare=("numerics", "dtypes", "head_dim"))
    for name in SHIPPED:
        reason = needs(name)
        if reason is not None:
            rows.append({"name": name, "needs": reason})
            shown.add_row(name, reason)
            continue
        row = describe(get(name))
        rows.append(row)
        shown.add_row(
            row["name"],
            row["idea"],
            " ".join(row["dtypes"]),
            " ".join(map(str, row["head_dims"])),
            " ".join(f"{name}={value}" for name, value in row["knobs"].items()),
            f"{row['numerics']['accumulate']} sums, {row['numerics']['probabilities']} P",
        )
    show_table(console, shown)
    for row in rows:
        for entry in row.get("tuned", ()):
            console.print(f"{row['name']}: {entry['sentence']}")
    write_document(json, {"kernels": rows}, status="PASSED")
    return 0


def describe(kernel: Kernel) -> dict[str, Any]:
    """A kernel's properties as plain JSON values. Types and head dimensions are derived from ``why_not``, not
    declared twice."""
    computes = [
        (dtype, dim)
        for dtype in DTYPES
        for dim in _HEAD_DIMS
        if any(
            kernel.why_not(Problem(1, 1, 64, dim, dtype=dtype, task=kernel.task, layout=layout)) is None
            for layout in _LAYOUTS[kernel.task]
        )
    ]
    declared = [kernel.numerics_of(Config(knobs)) for knobs in kernel.configs]
    return {
        "name": kernel.name,
        "idea": kernel.idea,
        "dtypes": list(dict.fromkeys(dtype for dtype, _ in computes)),
        "head_dims": sorted({dim for _, dim in computes}),
        "knobs": dict(kernel.default_config),
        "configurations": len(kernel.configs),
        "tuned": [{"sentence": entry.sentence, **entry.to_dict()} for entry in tuned_entries(kernel)],
        "min_arch": f"sm_{kernel.min_arch}",
        "numerics": {
            "accumulate": _either(numerics.accumulate for numerics in declared),
            "probabilities": _either(numerics.probabilities for numerics in declared).replace(
                "problem", "the problem's"
            ),
        },
    }


def _either(types: Iterable[str]) -> str:
    """Declared types of the configurations, in order: ``float8_e4m3fn or float16``."""
    return " or ".join(dict.fromkeys(types))
