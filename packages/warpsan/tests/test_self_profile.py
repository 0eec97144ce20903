"""The simulator's own time by phase and operation."""

import numpy as np
import pytest

import warpsan
from warpsan.cli import main
from warpsan.profile import OperationTime, SelfProfile, merged

PTX = """.version 8.0
.target sm_89
.address_size 64
.visible .entry k(.param .u64 x) {
    .reg .b32 %r<4>; .reg .b64 %d<3>; .reg .pred %p;
    ld.param.u64 %d0, [x]; mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 4; add.u64 %d0, %d0, %d1; mov.u32 %r1, 0;
again:
    popc.b32 %r2, %r1; add.u32 %r1, %r1, 1; setp.lt.u32 %p, %r1, 100000; @%p bra again;
    st.global.u32 [%d0], %r1; ret;
}"""


def profiled(**options) -> tuple[SelfProfile, np.ndarray]:
    x = np.zeros(64, np.uint32)
    report = warpsan.launch(PTX, "k", 1, 64, [x], self_profile=True, **options)
    assert report.self_profile is not None
    assert not report.hazards
    return report.self_profile, x


def test_operations_have_their_calls_and_their_time():
    profile, x = profiled()
    assert (x == 100000).all()
    calls = {each.name: each.calls for each in profile.operations}
    assert calls["popc.b32"] == calls["add.u32"] == 2 * 100000
    assert sum(many for name, many in calls.items() if name.startswith("watch.store")) == 2
    native = profile.dispatch + sum(each.seconds for each in profile.operations)
    assert 0 < native <= 1.05 * profile.phases["run"]
    seconds = [each.seconds for each in profile.operations]
    assert seconds == sorted(seconds, reverse=True)
    assert set(profile.phases) == {"parse", "decode", "compile", "run"}


def test_the_time_of_a_report_is_a_phase():
    x = np.zeros(32, np.uint32)
    racy = PTX.replace("%r0, 4", "%r0, 0").replace("[%d0], %r1", "[%d0], %r0").replace("100000", "1")
    report = warpsan.launch(racy, "k", 1, 64, [x], self_profile=True)
    assert report.hazards
    assert report.self_profile is not None
    assert report.self_profile.phases["report"] > 0


def test_a_launch_has_no_profile_unless_requested():
    assert warpsan.launch(PTX, "k", 1, 64, [np.zeros(64, np.uint32)]).self_profile is None


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("watch.load.2.global.64.4.32", "check: accesses to memory"),
        ("undefined.clear.b32", "check: undefined values"),
        ("mma.f16.f16.16.8_8", "unit: matrix products"),
        ("mbarrier.arrive", "unit: asynchronous copies"),
        ("ld.shared.64.32x4", "unit: loads and stores"),
        ("fma.rn.f32", "unit: arithmetic and moves"),
    ],
)
def test_an_operation_belongs_to_a_check_or_a_unit(name, group):
    profile = SelfProfile({}, (OperationTime(name, 3, 2.0),), 1.0)
    assert profile.groups == {group: 2.0, "dispatch": 1.0}


def test_profiles_of_several_launches_add_up():
    one = SelfProfile({"run": 1.0}, (OperationTime("a", 1, 0.25), OperationTime("b", 1, 0.5)), 0.25)
    other = SelfProfile({"run": 2.0, "report": 1.0}, (OperationTime("a", 3, 1.5),), 0.5)
    operations = (OperationTime("a", 4, 1.75), OperationTime("b", 1, 0.5))
    assert merged([one, other]) == SelfProfile({"run": 3.0, "report": 1.0}, operations, 0.75)


@pytest.mark.parametrize("command", [["launch"], ["sanitize", "--schedule", "forward", "--async-mode", "late"]])
def test_the_commands_show_the_profile(command, tmp_path, capsys):
    (tmp_path / "k.ptx").write_text(PTX)
    (tmp_path / "k.json").write_text('{"grid": [1], "block": [64], "args": [{"dtype": "uint32", "shape": [64]}]}')
    assert main([*command, str(tmp_path / "k.ptx"), "--self-profile"]) == 0
    shown = capsys.readouterr().out
    assert "self-profile, milliseconds: " in shown
    assert "dispatch" in shown
    assert "popc.b32" in shown
