"""Helpers for tests of Hopper's memory operations: a kernel around a body, and the hazard kinds of a launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import warpsan

MODES = [("late", schedule) for schedule in ("lockstep", "forward", "reverse", "random")] + [("early", "lockstep")]
"""Asynchronous operations as late as possible in every schedule, and as early as possible."""

CTA_WAIT = "W{0}: mbarrier.try_wait.parity.shared::cta.b64 %p2, [{1}], {2};\n@!%p2 bra W{0};\n"
"""A waiting loop: label number, mbarrier, parity."""


def kernel(body: str, params: str = ".param .u64 p") -> str:
    """PTX of an entry ``k``: %r0 is the thread, %p1 true for thread 0, %r1 a buffer of 16 KiB, %r2 four mbarriers.

    %rd1 is the address of the first parameter if it is a pointer ``p``, %rd2 the address of this thread's word in it.
    """
    load = "ld.param.u64 %rd1, [p]; mul.wide.u32 %rd2, %r0, 4; add.u64 %rd2, %rd1, %rd2;\n" if "u64 p" in params else ""
    return (
        ".version 8.0\n.target sm_90a\n.address_size 64\n"
        f".entry k({params})\n{{\n.reg .b32 %r<40>; .reg .b64 %rd<20>; .reg .pred %p<9>; .reg .b16 %h<3>;\n"
        ".shared .align 1024 .b8 buf[16384]; .shared .align 8 .b64 bar[4];\n"
        "mov.u32 %r0, %tid.x; setp.eq.u32 %p1, %r0, 0; mov.u32 %r1, buf; mov.u32 %r2, bar;\n"
        f"{load}{body}\nret;\n}}\n"
    )


def kinds(
    body: str, args: Sequence[Any], *, params: str = ".param .u64 p", grid: Any = 1, block: int = 64, **options: Any
) -> list[str]:
    """Distinct hazard kinds of a launch, sorted."""
    report = warpsan.launch(kernel(body, params), "k", grid, block, args, **options)
    return sorted({hazard.kind for hazard in report.hazards})
