"""Exceptions that end a launch, with some checks or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import test_bulk_copy as bulk
import test_mbarrier as mbarriers
import test_native_hazards as hazards
import test_wgmma as products
import warpsan
from hopper_snippets import kernel

SUBSETS = [(), ("memory",), ("race",), ("async",), ("memory", "async")]


def check(launch: Callable[[], object], raised: str = "") -> None:
    """Run a launch, which may end with an exception, and must if ``raised`` is its prefix."""
    error = ""
    try:
        launch()
    except warpsan.SimError as ended:
        error = f"{type(ended).__name__}: {ended}"
    assert error.startswith(raised)


def exchanged(change: dict[str, object], checks: Sequence[str]) -> Callable[[], warpsan.Report]:
    """A launch of :mod:`test_native_hazards`."""
    return lambda: hazards.exchange(**change, checks=checks)[1]  # type: ignore[arg-type]


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("change", hazards.ILLEGAL.values(), ids=hazards.ILLEGAL)
def test_illegal_accesses_without_checks(change: dict[str, object]) -> None:
    check(exchanged({**change, "grid": 2}, ()), "IllegalAccess: ")


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
def test_illegal_accesses_in_every_order(schedule: str) -> None:
    with pytest.raises(warpsan.IllegalAccess, match=r"^misaligned .* by st\.global\.u32 at"):
        exchanged({**hazards.ILLEGAL["stores that are misaligned"], "schedule": schedule}, ())()


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("checks", SUBSETS, ids=",".join)
@pytest.mark.parametrize("between", [*hazards.ENDS.values(), "L: bra L;"], ids=[*hazards.ENDS, "an endless loop"])
def test_launches_that_end(between: str, checks: tuple[str, ...]) -> None:
    check(exchanged({"between": between, "max_steps": 1000}, checks))


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("checks", SUBSETS[1:], ids=",".join)
@pytest.mark.parametrize("name", ["no barrier", "a copy that nobody waits for", "an atomic operation after a write"])
def test_some_checks_report_nothing_of_others(name: str, checks: tuple[str, ...]) -> None:
    check(exchanged(hazards.RACES[name], checks))


def copied(old: str, new: str, **options: Any) -> Callable[[], warpsan.Report]:
    """A bulk copy in and out, with an edit."""
    body = (bulk.START + bulk.LOAD + bulk.WAIT + bulk.STORE).replace(old, new)
    return lambda: warpsan.launch(
        *(kernel(body, bulk.PARAMS), "k", 1, 64, [np.zeros(1024, np.int32), np.arange(1024, dtype=np.int32), 4096]),
        **options,
    )


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("checks", [(), ("memory",)], ids=["none", "memory"])
@pytest.mark.parametrize("edit", ["[%r1+8], [%rd3]", "[%r1], [%rd3+16]"])
def test_illegal_bulk_copies(edit: str, checks: tuple[str, ...]) -> None:
    raised = "Deadlock: " if checks else "IllegalAccess: "
    check(copied("[%r1], [%rd3]", edit, checks=checks), raised)


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("mode", ["late", "early"])
def test_an_mbarrier_that_is_none(mode: str) -> None:
    check(copied("%r20, [%r2];", "%r20, [%r2+8];", checks=(), async_mode=mode), "IllegalAccess: there is no mbarrier")
    body = mbarriers.GOOD.replace("[%r2], 64", "[%r2], 33")
    check(lambda: warpsan.launch(kernel(body), "k", 1, 64, [np.zeros(64, np.uint32)], checks=()))


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("mode", ["late", "early"])
def test_operands_of_a_product_outside_shared_memory(mode: str) -> None:
    given = products.MEMORY, products.FRAGMENT, 16, products.DESC_A
    outside = products.descriptor(len(products.MEMORY) - 64, 0, 512, "64B")
    check(
        lambda: products.run(products.chained(), *given, outside, checks=(), async_mode=mode)[0],
        "IllegalAccess: out-of-bounds",
    )


CALLS = """.version 8.7\n.target sm_90\n.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.extern .func free (.param .b64 a);
.func down (.param .b32 n) {{ .reg .b32 %r<3>; ld.param.u32 %r0, [n]; add.u32 %r0, %r0, 1;
{{ .param .b32 m; st.param.b32 [m], %r0; call down, (m); }} ret; }}
.entry k(.param .u64 p) {{ .reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .pred %p<2>;
.shared .b32 s[64]; mov.u32 %r0, %tid.x; setp.ge.u32 %p1, %r0, 37; ld.param.u64 %rd1, [p]; st.shared.u32 [s], %r0;
{{ .param .b64 a; .param .b64 b; .param .b32 r; {body} }}
ret; }}
"""
GIVEN = {
    "a format where there is nothing": "st.param.b64 [a], 64; st.param.b64 [b], 0; @%p1 call (r), vprintf, (a, b);",
    "a free of what is no allocation": "st.param.b64 [a], %rd1; @%p1 call free, (a);",
    "calls without an end": "st.param.b32 [r], %r0; @%p1 call down, (r);",
    "an index beyond the targets": "T: .branchtargets A, B; @%p1 brx.idx %r0, T; A: add.u32 %r0, %r0, 1; B:",
}


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("checks", [(), warpsan.CHECKS], ids=["none", "all"])
@pytest.mark.parametrize("body", GIVEN.values(), ids=GIVEN)
def test_what_ends_a_launch_with_any_checks(body: str, checks: tuple[str, ...]) -> None:
    """A race before the exception is part of it."""
    check(
        lambda: warpsan.launch(CALLS.format(body=body), "k", 2, 64, [np.zeros(16, np.uint32)], checks=checks),
        "IllegalAccess: ",
    )
