"""The page of a simulated profile: one HTML file with the annotated source, the main loop and the pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdpalab.evidence.report.page import render_page
from sdpalab.profile.remarks import remarks
from sdpalab.profile.simulated_profile import LaunchFigures, SimulatedProfile, hot_lines
from sdpalab.profile.source_lines import LineFigures, lines_of_file
from sdpalab.profile.summary import summary_rows
from warpsan.profile import AccessPicture
from warpsan.report import Sources

__all__ = ["render_profile_page"]

MOST_HOT = 15


@dataclass(frozen=True)
class _ListedLine:
    """One line of an annotated source; ``figures`` is None for a line without instructions."""

    number: int
    text: str
    figures: LineFigures | None


@dataclass(frozen=True)
class _ListedFile:
    name: str
    lines: tuple[_ListedLine, ...]


def render_profile_page(
    kernel: str,
    problem: str,
    profile: SimulatedProfile,
    pictures: Mapping[str, Sequence[AccessPicture]],
    kinds: Mapping[str, str],
) -> str:
    """The page without scripts or external references; the same profile gives the same bytes.

    Parameters
    ----------
    kernel : str
        Name of the kernel with its configuration.
    problem : str
        Label of the problem.
    profile : SimulatedProfile
    pictures : mapping of str to sequence of AccessPicture
        Pictures by the chosen ``file:line``.
    kinds : mapping of str to str
        Meaning of each kind of figure.
    """
    return render_page(
        "profile.html.j2",
        kernel=kernel,
        problem=problem,
        profile=profile,
        kinds=kinds,
        launches=[
            {
                "figures": launch,
                "remarks": remarks(launch),
                "summary": summary_rows(launch),
                "hot": hot_lines(launch.lines, MOST_HOT),
                "files": _files(launch, profile.sources),
                "static": max(1, sum(sum(line.sass.values()) for line in launch.lines)),
            }
            for launch in profile.launches
        ],
        pictures=pictures,
        code=profile.sources.line,
    )


def _files(launch: LaunchFigures, sources: Sources) -> tuple[_ListedFile, ...]:
    """Source files of the instructions, with the kernel's own first."""
    listed = []
    for name in launch.files:
        text = sources.text(name)
        if text is not None:
            known = lines_of_file(launch.lines, name)
            lines = (_ListedLine(number, code, known.get(number)) for number, code in enumerate(text.splitlines(), 1))
            listed.append(_ListedFile(name, tuple(lines)))
    return tuple(listed)
