"""Replays of recorded events: barrier phases without an order are counted, and reports stay equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import warpsan
from hazard_bugs import ALL, PAIRS, Pair
from hopper_snippets import CTA_WAIT, kernel
from warpsan.analysis.program import build_program
from warpsan.build.builder import build
from warpsan.build.source import Module
from warpsan.engine import layout, repeating, replay
from warpsan.engine.engine import NativeCode
from warpsan.engine.event_order import EventOrder
from warpsan.engine.observer import Access, Observer
from warpsan.ptx.parser import parse
from warpsan.report import progress

BLOCKS = 4
FIRST, LAST = "setp.lt.u32 %p0, %r2, 32;", "setp.ge.u32 %p0, %r2, 96;"


def rounds(body: str, *, which: str = FIRST, after: str = "", far: str = "") -> str:
    """A kernel with as many rounds of ``body`` as its second parameter, followed by a race of the blocks in its buffer.
    %p0 is true for the threads of ``which``, %p1 for thread 0; ``far`` is code reached by a jump.
    """
    return f""".version 8.0\n.target sm_90\n.address_size 64
    .entry k(.param .u64 a, .param .u32 n) {{ .reg .b64 %rd<8>; .reg .b32 %r<16>; .reg .pred %p<6>; .shared .u32 s[128];
    ld.param.u64 %rd1, [a]; ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x; {which} setp.eq.u32 %p1, %r2, 0;
    shl.b32 %r3, %r2, 2; mov.u32 %r4, s; add.u32 %r4, %r4, %r3; mov.u32 %r5, 0;
    L: {body} add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, %r1; @%p2 bra L;
    {after}
    @!%p1 bra E; ld.global.u32 %r6, [%rd1]; add.u32 %r6, %r6, 1; st.global.u32 [%rd1], %r6; E: ret; {far} }}"""


EMPTY: dict[str, tuple[str, dict[str, Any]]] = {
    "threads of the block": (rounds("bar.sync 0;"), {}),
    "two barriers": (rounds("bar.sync 0; bar.sync 1;"), {}),
    "so many threads": (rounds("barrier.sync.aligned 2, 128;"), {}),
    "part of a warp": (rounds("bar.sync 0;"), {"block": 112}),
    "part of the block": (rounds("@%p0 bra S; bar.sync 1, 96; S:"), {}),
    "a reduction": (rounds("bar.red.popc.u32 %r9, 0, %p1;"), {}),
    "a late warp": (rounds("@%p0 bra F; B: bar.sync 0;", far="F: add.u32 %r9, %r5, 1; bra B;"), {}),
    "clusters": (rounds("bar.sync 0;"), {"cluster": (2, 1, 1)}),
    "cooperative": (rounds("bar.sync 0;"), {"cooperative": True}),
}
"""Kernels with phases that order nothing: PTX, and launch sizes."""
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "a race in each round": (
        rounds("st.shared.u32 [%r4], %r5; xor.b32 %r9, %r4, 128; ld.shared.u32 %r8, [%r9]; bar.sync 0; bar.sync 0;"),
        {},
    ),
    "a warp exits": (rounds("bar.sync 0; @%p0 ret;", which=LAST), {}),
    "a warp does not come": (rounds("bar.sync 0;", after="@%p0 bra W; bar.sync 1, 128; W:"), {}),
    "a trap": (rounds("bar.sync 0;", after="@%p0 bra W; bar.sync 0; W: trap;"), {}),
    "a mere arrival": (rounds("bar.sync 0; @%p0 bra A; bar.sync 1, 128; bra C; A: bar.arrive 1, 128; C:"), {}),
    "two counts": (rounds("bar.sync 0; @%p0 bra A; bar.sync 1, 128; bra C; A: bar.sync 1, 96; C:"), {}),
    "two places": (rounds("bar.sync 0; @%p0 bra A; bar.sync 0; bra C; A: bar.sync 0; C:"), {}),
    "lanes apart": (rounds("@%p1 bra A; bar.sync 0; bra C; A: barrier.sync 0; C: bar.sync 0;"), {}),
    "fences": (rounds("bar.sync 0; membar.gl; @%p1 red.global.add.u32 [%rd1+64], 1; bar.sync 0; bar.sync 0;"), {}),
}


@contextmanager
def recorded_events(monkeypatch: pytest.MonkeyPatch, *, whole: bool = False) -> Iterator[list[np.ndarray]]:
    """Events of all replays; the ``whole`` ones include all arrivals."""
    events: list[np.ndarray] = []
    replay: Callable[..., None] = repeating.replay
    state: Callable[..., Any] = NativeCode.state

    def keep(setup: Any, space: Any, log: Any, given: np.ndarray, *rest: Any, **options: Any) -> None:
        place = 0
        while place < len(given):
            events.append(given[place : place + int(given[place + layout.EV_WORDS])])
            place += len(events[-1])
        replay(setup, space, log, given, *rest, **options)

    def all_at_once(code: NativeCode, words: dict[str, int]) -> Any:
        return state(code, {word: value for word, value in words.items() if word != "deferred_arrivals"})

    with monkeypatch.context() as patch:
        patch.setattr(repeating, "replay", keep)
        if whole:
            patch.setattr(NativeCode, "state", lambda code, words=None: all_at_once(code, words or {}))
        yield events


def reported(ptx: str, schedule: str, many: int, *, block: int = 128, **options: Any) -> list[str]:
    """Messages of a launch, and its exception if it ended early."""
    args = [np.zeros(64, np.uint32), many]
    try:
        report = warpsan.launch(ptx, "k", BLOCKS, block, args, schedule=schedule, seed=1, max_steps=2_000, **options)
    except warpsan.SimError as error:
        return [str(error), *(hazard.message for hazard in error.hazards)]
    return [hazard.message for hazard in report.hazards]


def kinds(events: Sequence[np.ndarray]) -> list[int]:
    """Kinds of the events."""
    return [int(event[layout.EV_KIND]) for event in events]


@pytest.mark.sample
@pytest.mark.parametrize("schedule", ALL)
@pytest.mark.parametrize("name", EMPTY)
def test_phases_that_order_nothing_are_counted(name: str, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ptx, options = EMPTY[name]
    with recorded_events(monkeypatch) as few:
        reported(ptx, schedule, 2, **options)
    with recorded_events(monkeypatch) as events:
        messages = reported(ptx, schedule, 12, **options)
    with recorded_events(monkeypatch, whole=True) as everything:
        assert reported(ptx, schedule, 12, **options) == messages
    assert messages
    # A warp that does not arrive may access memory while others wait: that phase is replayed.
    apart = BLOCKS if name == "part of the block" and schedule in ("reverse", "random") else 0
    arrivals = kinds(events).count(layout.TRACE_ARRIVAL)
    assert arrivals <= 3 * apart
    assert kinds(everything).count(layout.TRACE_ARRIVAL) >= 12 * BLOCKS * 3
    times = sum(int(event[layout.EV_TIMES]) for event in events if event[layout.EV_KIND] == layout.TRACE_PHASE)
    in_turns = {"a late warp": 2 if schedule == "lockstep" else 1, "two barriers": 2}
    assert times + arrivals // 3 == 12 * BLOCKS * in_turns.get(name, 1)
    if not options.keys() & {"cluster", "cooperative"} and name not in in_turns and not apart:
        assert len(events) == len(few)


@pytest.mark.sample
@pytest.mark.parametrize("schedule", ALL)
@pytest.mark.parametrize("name", OTHERS)
def test_reports_are_the_same_if_arrivals_are_put_aside(
    name: str, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ptx, options = OTHERS[name]
    with recorded_events(monkeypatch, whole=True) as everything:
        expected = reported(ptx, schedule, 5, **options)
    with recorded_events(monkeypatch) as events:
        assert reported(ptx, schedule, 5, **options) == expected
    assert expected
    assert layout.TRACE_PHASE not in kinds(everything)
    assert len(events) <= len(everything)


@pytest.mark.sample(10)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_reports_of_bugs_are_the_same_if_arrivals_are_put_aside(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Module("program.cu", pair.source(broken=True), "entry")
    ptx, given = build(source, pair.arch).ptx.decode(), np.arange(512, dtype=np.uint32) % 100
    for schedule in ALL:
        messages: list[list[str]] = []
        for whole in (False, True):
            with recorded_events(monkeypatch, whole=whole):
                args = [given.copy(), np.zeros(1024, np.uint32), 40]
                try:
                    hazards = warpsan.launch(ptx, "entry", 2, pair.threads, args, schedule=schedule, seed=1).hazards
                except (warpsan.Deadlock, warpsan.StepLimit) as error:
                    hazards = [*error.hazards]
                messages.append([hazard.message for hazard in hazards])
        assert messages[0] == messages[1]


def test_a_late_warp_does_not_come_twice_to_a_phase() -> None:
    """Warps that arrive at a barrier in other iterations than the rest do so in a separate step."""
    body = "@%p0 bra F; B: bar.sync 0; st.shared.u32 [%r4], %r5; bar.sync 0;"
    body += " xor.b32 %r9, %r4, 128; ld.shared.u32 %r8, [%r9];"  # no barrier before the next round
    messages = reported(rounds(body, far="F: add.u32 %r9, %r5, 1; bra B;"), "lockstep", 6)
    assert messages
    assert {message.split(":")[0] for message in messages} == {"race"}


NEIGHBOURS = """.version 8.0\n.target sm_90\n.address_size 64
    .entry k(.param .u64 a, .param .u32 n) { .reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [a]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; setp.ne.u32 %p0, %r2, 0; @%p0 ret;
    mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; ld.global.u32 %r3, [%rd3]; st.global.u32 [%rd3], %r3; ret; }"""
"""Each block has its own word; native code suspects a race of blocks within 16 bytes."""


@pytest.mark.parametrize(("blocks", "replays"), [(BLOCKS, 1), (256, 2)])
def test_places_are_not_looked_at_again(blocks: int, replays: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some places are examined first, and all of them if those show no hazard."""
    with recorded_events(monkeypatch) as events:
        assert warpsan.launch(NEIGHBOURS, "k", blocks, 32, [np.zeros(512, np.uint32), 0]).hazards == []
    begins = [int(event[layout.EV_PLACE]) for event in events if event[layout.EV_KIND] == layout.TRACE_CLUSTER]
    assert max(map(begins.count, begins)) == replays


def test_an_observer_is_called_in_a_launch_with_a_suspicion_and_in_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CONTRIBUTING requires for a new check: no replay without a suspicion of native code."""
    calls: list[str] = []

    class Recorder(Observer):
        def load(self, access: Access) -> None:
            calls.append(access.space.name)

    monkeypatch.setattr(replay, "race_observers", lambda *_: [Recorder()])
    for blocks, expected in ((1, False), (BLOCKS, True)):
        calls.clear()
        assert warpsan.launch(NEIGHBOURS, "k", blocks, 32, [np.zeros(512, np.uint32), 0]).hazards == []
        assert bool(calls) == expected


INIT = "@%p1 mbarrier.init.shared::cta.b64 [%r2], 64;\nbar.sync 0;\n"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("bar.sync 1, 48;", "barrier"),
        ("@%p1 bar.sync 0;\n@!%p1 bar.sync 0;", "barrier"),
        ("barrier.cluster.wait;", "cluster"),
        (INIT + "mbarrier.arrive.shared::cta.b64 _, [%r2], 3;", "mbarrier"),
        ("@%p1 mbarrier.init.shared::cta.b64 [%r2+4], 1;", "misaligned"),
        (
            "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 16;\ncp.async.bulk.commit_group;",
            "uninitialised",
        ),
        ("bar.sync 0, 96;", "Deadlock"),
        (INIT + CTA_WAIT.format(0, "%r2", 0), "Deadlock"),
        ("trap;", "KernelTrap"),
    ],
)
@pytest.mark.parametrize("schedule", ["lockstep", "forward"])
def test_hazards_of_units_and_endings_need_no_events(
    body: str, kind: str, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machine code has their exact rules: the launch runs twice, and no run records events."""
    runs: list[NativeCode] = []
    execute = NativeCode.run

    def counted(code: NativeCode, *arguments: Any) -> int:
        runs.append(code)
        return execute(code, *arguments)

    monkeypatch.setattr(NativeCode, "run", counted)
    monkeypatch.delattr(repeating, "record")
    try:
        report = warpsan.launch(kernel(body), "k", 1, 64, [np.zeros(64, np.uint32)], schedule=schedule)
        found = {hazard.kind for hazard in report.hazards}
    except warpsan.SimError as error:
        found = {type(error).__name__}
    assert kind in found
    assert len(runs) == 2


# ---- the order of events ---------------------------------------------------------------------------------------------

ORDERED = rounds("bar.sync 0; @%p1 bra C; bar.sync 0; C:")


def event(kind: int, warp: int, turn: int, place: int, *, times: int = 1) -> np.ndarray:
    """The first words of an event."""
    words = np.zeros(layout.EVENT_WORDS, np.int64)
    words[[layout.EV_KIND, layout.EV_WORDS, layout.EV_WARP]] = kind, layout.EVENT_WORDS, warp
    words[[layout.EV_TURN, layout.EV_PLACE, layout.EV_TIMES]] = turn, place, times
    return words


@pytest.mark.parametrize("seed", range(20))
def test_empty_phases_keep_the_place_of_their_arrivals(seed: int) -> None:
    """Clusters with random events reach the same steps with and without counted phases."""
    entry = parse(ORDERED).entries["k"]
    program = build_program(entry)
    ends = [
        number for number, block in enumerate(program.blocks) if block.end is not None and block.end.opcode == "bar"
    ]
    draw = np.random.default_rng(seed)
    counted: list[list[np.ndarray]] = []
    whole: list[list[np.ndarray]] = []
    for _ in range(4):
        counted.append([])
        whole.append([])
        turn = 0
        for _ in range(30):
            turn += 1
            place, times = int(draw.choice(ends)), int(draw.integers(1, 5))
            if draw.random() < 0.4:
                other = event(layout.TRACE_MEETING, int(draw.integers(2)), turn, int(draw.integers(20)))
                counted[-1].append(other)
                whole[-1].append(other)
                continue
            counted[-1].append(event(layout.TRACE_PHASE, 0, turn, place, times=times))
            for _ in range(times):
                whole[-1] += [event(layout.TRACE_ARRIVAL, warp, turn, place) for warp in range(2)]
                turn += 1
    steps = [
        [
            [(cluster, words.tolist()) for cluster, words in step]
            for _, step in EventOrder(entry, program, events, together=True).steps()
            if step[0][1][layout.EV_KIND] == layout.TRACE_MEETING
        ]
        for events in (counted, whole)
    ]
    assert len(steps[0]) > 10
    assert steps[0] == steps[1]


# ---- progress --------------------------------------------------------------------------------------------------------


def test_a_long_replay_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SILENT", 0.0)
    monkeypatch.setattr(progress, "_BETWEEN", 0.0)
    shown: list[str] = []
    with progress.shows_progress(shown.append), recorded_events(monkeypatch) as events:
        reported(EMPTY["threads of the block"][0], "lockstep", 3)
    many = len(events) - BLOCKS  # without the starts of clusters
    assert shown[-1].endswith(f" of {many} recorded events checked")
    assert int(shown[-1].split()[0]) == many - BLOCKS  # empty phases add no events
    count = len(shown)
    reported(EMPTY["threads of the block"][0], "lockstep", 3)
    assert len(shown) == count
