"""Hazards as data: groups, their lines, and suppressions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from warpsan import ConflictingAccess, Deadlock, KernelTrap, StepLimit
from warpsan.errors import UserError
from warpsan.report.groups import HazardGroup, SanitizedHazard, ending, group, merge
from warpsan.report.source_text import Sources, split_place
from warpsan.report.suppressions import Suppression, read_suppressions, suppress, suppressions_in

TEXT = "\n".join(f"line {number};" for number in range(1, 60))
SOURCES = Sources({"my.cu": TEXT, "tile.cuh": TEXT})


def hazard(
    kind: str = "race", here: str = "my.cu:5:9", other: str = "my.cu:9:1", ptx_line: int = 100
) -> SanitizedHazard:
    """A hazard at the end of a chain of calls: ``here`` and ``other`` are frames, innermost first, space-separated."""
    frames, others = tuple(here.split()), tuple(other.split())
    rival = ConflictingAccess("st.shared.u32", 7, 50, others[0].rpartition(":")[0], (0, 0, 0), 1, None, "", others)
    return SanitizedHazard(
        *(
            kind,
            f"{kind}: all of it",
            "my.ptx",
            ptx_line,
            frames[0].rpartition(":")[0],
            (0, 0, 0),
            (3, 0, 0),
            ("a run",),
        ),
        *(rival, "ld.shared.u32", "reads what {other} wrote", "usually a barrier", frames),
    )


def test_one_pair_of_lines_is_one_group_in_either_order() -> None:
    found = [
        hazard(),
        hazard(ptx_line=101),
        replace(hazard(ptx_line=102), runs=("another",)),
        hazard(here="my.cu:9:1", other="my.cu:5:9", ptx_line=103),
        hazard(kind="async"),
        hazard(other="my.cu:10:1", ptx_line=104),
    ]
    first, *others = group(found, SOURCES)
    assert (first.kind, first.places) == ("race", ("my.cu:5", "my.cu:9"))
    assert first.instructions == ("my.ptx:100", "my.ptx:101", "my.ptx:102", "my.ptx:103")
    assert first.runs == ("a run", "another")
    assert first.here.line == "line 5;"
    assert (first.here.column, first.here.who) == (9, "thread (3, 0, 0) of block (0, 0, 0)")
    assert first.other is not None
    assert first.other.who == "warp 1 of block (0, 0, 0)"
    assert {(each.kind, each.places[1]) for each in others} == {("async", "my.cu:9"), ("race", "my.cu:10")}


def test_lanes_and_warps_that_race_at_the_same_lines_are_one_group() -> None:
    lanes = hazard(kind="lane-race", ptx_line=101)
    both = group([lanes, hazard()], SOURCES)
    assert [(each.kind, each.instructions) for each in both] == [("race", ("my.ptx:100", "my.ptx:101"))]
    assert merge([*group([hazard()], SOURCES), *group([lanes], SOURCES)]) == both
    apart = group([lanes, hazard(other="my.cu:10:1")], SOURCES)
    assert {each.kind for each in apart} == {"lane-race", "race"}


def test_a_wrapper_of_an_instruction_and_an_unknown_header_are_not_the_line() -> None:
    inlined = hazard(here="sm80.cuh:65:24 cuda_fp16.hpp:3:1 tile.cuh:20:5 my.cu:40:2", other="cuda_fp16.hpp:3:1")
    (found,) = group([inlined], SOURCES)
    assert found.places == ("tile.cuh:20", "cuda_fp16.hpp:3")
    assert found.here.frames[-1] == "my.cu:40:2"
    assert found.other is not None
    assert found.other.line == ""


def test_without_line_information_the_place_is_in_the_ptx() -> None:
    bare = replace(hazard(), source="", frames=(), other=None)
    assert group([bare], SOURCES)[0].places == ("my.ptx:100",)
    assert split_place("my.ptx:100") == ("my.ptx", 100)
    assert split_place("my.ptx") == ("my.ptx", 0)


def test_groups_survive_json_and_merge_over_cases() -> None:
    groups = group([hazard(), hazard(ptx_line=101)], SOURCES)
    again = [HazardGroup.from_dict(json.loads(json.dumps(each.to_dict()))) for each in groups]
    assert tuple(again) == groups
    (merged,) = merge(replace(groups[0], runs=(name,)) for name in ("one", "two", "one"))
    assert merged.runs == ("one", "two")
    assert merged.instructions == groups[0].instructions


@pytest.mark.parametrize(("error", "kind"), [(Deadlock, "deadlock"), (StepLimit, "endless"), (KernelTrap, "trap")])
def test_what_ends_a_launch_is_a_hazard_at_its_line(error: type[Deadlock], kind: str) -> None:
    found = ending(error("bar.sync on barrier 1 at PTX line 30 (my.cu:7): no one comes"), "my.ptx", "a run")
    assert (found.kind, found.ptx_line, found.source) == (kind, 30, "my.cu:7")
    assert ending(error("nothing is known"), "my.ptx", "a run").ptx_line == 0


# ---- suppressions ----------------------------------------------------------------------------------------------------


def suppressed(source: str, found: SanitizedHazard) -> str:
    sources = Sources({"my.cu": source})
    (marked,), _ = suppress(group([found], sources), suppressions_in(sources))
    return marked.suppressed


@pytest.mark.parametrize("number", [5, 9])
def test_a_comment_at_either_access_suppresses(number: int) -> None:
    lines = TEXT.splitlines()
    lines[number - 1] += "  // sdpalab: suppress race: both write the same"
    assert suppressed("\n".join(lines), hazard()) == "both write the same"
    assert suppressed("\n".join(lines), hazard(kind="async")) == ""
    above = TEXT.splitlines()
    above[number - 2] = "    /* sdpalab: suppress *: looked at */"
    assert suppressed("\n".join(above), hazard()) == "looked at"
    elsewhere = TEXT.splitlines()
    elsewhere[20] += "// sdpalab: suppress race: another line"
    assert suppressed("\n".join(elsewhere), hazard()) == ""


@pytest.mark.parametrize(
    "line", ["x; // sdpalab: suppress race", "x; // sdpalab: suppress race:", "x; // sdpalab: suppress: a reason"]
)
def test_a_comment_without_a_reason_or_a_kind_is_bad_input(line: str) -> None:
    with pytest.raises(UserError, match=r"my\.cu:1: a suppression is written as: warpsan: suppress KIND: REASON"):
        suppressions_in(Sources({"my.cu": line}))


def test_a_file_of_suppressions(tmp_path: Path) -> None:
    path = tmp_path / "accepted"
    path.write_text("# why\n\nrace my.cu:9 my.cu:5: both write the same\n* tile.cuh:*: theirs\nrace my.cu:7: gone\n")
    accepted = read_suppressions(path)
    groups = group([hazard(), hazard(here="tile.cuh:3:1"), hazard(kind="async")], SOURCES)
    marked, unused = suppress(groups, accepted)
    assert {each.kind + each.here.place: each.suppressed for each in marked} == {
        "racemy.cu:5": "both write the same",
        "racetile.cuh:3": "theirs",
        "asyncmy.cu:5": "",
    }
    assert unused == (Suppression("race", ("my.cu:7",), "gone", "accepted:5"),)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("race my.cu:9", r"accepted:1: a suppression is written as: KIND FILE:LINE \[FILE:LINE\]: REASON"),
        ("rave my.cu:9: a reason", "accepted:1: there is no kind of hazard 'rave'; there is: async, barrier"),
    ],
)
def test_a_bad_line_of_a_file_is_bad_input(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "accepted"
    path.write_text(line)
    with pytest.raises(UserError, match=message):
        read_suppressions(path)
