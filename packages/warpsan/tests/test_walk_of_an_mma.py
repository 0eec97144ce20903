"""An mma on its way from its text to its result, and an access to shared memory to its hazard: the page names the
files, and these are few."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from types import CodeType, FrameType

import numpy as np
import pytest

import warpsan
from warpsan.engine import engine
from warpsan.engine.compiler import target_name
from warpsan.engine.library import Library
from warpsan.engine.runtime import runtime_functions
from warpsan.numerics.tensor_cores import rule_of

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = Path(warpsan.__file__).parent
MOST = 15
STEP = re.compile(r"^\d+\. `sim/([\w/]+)\.py: ([\w.]+)`(, machine code)?", re.M)

KERNEL = """.version 8.0
.target sm_89
.address_size 64
.entry k(.param .u64 out) { .reg .b32 %r<20>; .reg .b64 %rd<4>; .reg .f32 %f<9>; .shared .align 16 .b8 s[1024];
ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 4; mov.u32 %r3, s; add.u32 %r2, %r2, %r3;
xor.b32 %r4, %r2, 512; st.shared.v4.b32 [%r4], {%r1,%r1,%r1,%r1};
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r5,%r6,%r7,%r8}, [%r2]; mov.f32 %f1, 0f00000000;
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f2,%f3,%f4,%f5}, {%r5,%r6,%r7,%r8}, {%r5,%r6}, {%f1,%f1,%f1,%f1};
mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; st.global.f32 [%rd3], %f2; ret; }"""
"""Each warp writes what the other reads, and no barrier is between them."""


class Calls:
    """Functions of the simulator in the order of their first calls."""

    def __init__(self) -> None:
        self._called: dict[CodeType, None] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self._called.setdefault(frame.f_code)

    @property
    def names(self) -> list[tuple[str, str]]:
        """Modules and names, without calls of other packages."""
        called = [(Path(code.co_filename), code.co_qualname) for code in self._called]
        own = [(path.relative_to(PACKAGE), name) for path, name in called if path.is_relative_to(PACKAGE)]
        return [(path.with_suffix("").as_posix(), name) for path, name in own]


def test_the_page_names_the_way_of_an_mma_and_of_its_race_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warpsan.prepare()
    out = np.zeros(64, np.float32)
    warpsan.launch(KERNEL.replace("s[1024]", "s[1040]"), "k", 1, 64, [out])
    shutil.copy(engine.library().path_of("runtime"), tmp_path)
    library = Library(*target_name(), root=tmp_path)  # which has no operations yet
    monkeypatch.setattr(engine, "library", lambda: library)
    rule_of.cache_clear()
    calls = Calls()
    sys.setprofile(calls)
    try:
        report = warpsan.launch(KERNEL, "k", 1, 64, [out])
    finally:
        sys.setprofile(None)
    assert [hazard.kind for hazard in report.hazards] == ["race"]
    section = (
        (ROOT / "packages" / "warpsan" / "docs" / "architecture.md").read_text().partition("## The way of an mma\n")[2]
    )
    steps = STEP.findall(section.partition("\n## ")[0])
    native = {
        (each.__module__.removeprefix("warpsan.").replace(".", "/"), each.__name__) for each in runtime_functions()
    }
    called = calls.names
    places = []
    for file, name, translated in steps:
        if translated:
            assert (file, name) in native
        else:
            places.append(called.index((file, name)))
    assert places == sorted(places)
    assert 10 < len({file for file, _, _ in steps}) <= MOST
