"""A sample of the campaign ``deletion``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sdpalab import cli
from sdpalab.campaigns import deletion
from sdpalab.campaigns.case_deletion import case_deletions
from sdpalab.compile import build
from sdpalab.errors import UserError
from sdpalab.kernels.registry import KERNELS, SHIPPED
from sdpalab.problem import Problem
from warpsan.sanitize.sanitizer import Modes


def test_every_deletion_from_flash_is_noticed() -> None:
    kernel = KERNELS["flash"]
    problems = [Problem(1, 1, 40, 64, seq_kv=64 - 7), Problem(1, 1, 40, 64, seq_kv=64 * 5 - 7)]
    of = deletion.target(kernel, kernel.default_config.but(SCHEDULE="tiles"), problems)
    modes = Modes(schedules=("lockstep",), async_modes=("late",), strict=True, max_steps=200_000)
    record = deletion.deletions(of, modes, deletion.REASONS)
    opcodes = {mutant["opcode"] for mutant in record["mutants"]}
    assert opcodes >= {"bar.sync", "cp.async.commit_group", "cp.async.wait_group"}
    assert len(record["mutants"]) >= 7
    assert [mutant for mutant in record["mutants"] if not mutant["killed_by"]] == []
    assert all(mutant["source"] for mutant in record["mutants"])


def test_a_deletion_takes_one_instruction_and_moves_no_line() -> None:
    kernel = KERNELS["flash"]
    (step,) = kernel.launch_plan(Problem(1, 1, 64, 64)).steps
    assert step.module is not None
    built = build(step.module)
    ptx = built.ptx.decode()
    for site in deletion.sites(ptx, built.entry):
        before, after = ptx.split("\n"), deletion.without(ptx, site).split("\n")
        changed = [number for number, (old, new) in enumerate(zip(before, after, strict=True), 1) if old != new]
        assert changed == [site.ptx_line]
        assert site.opcode in before[site.ptx_line - 1]
        assert not after[site.ptx_line - 1].strip()


def test_synchronisation_of_later_architectures_is_deleted_too() -> None:
    synchronisation = (
        "barrier.cluster.arrive.aligned; mbarrier.init.shared.b64 [%rd1], 1; fence.proxy.async; fence.mbarrier_init."
        "release.cluster; wgmma.fence.sync.aligned; wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; "
        "cp.async.bulk.wait_group.read 0; membar.cta;"
    )
    others = "add.u32 %r1, %r1, %r1; cp.async.cg.shared.global [%r1], [%rd1], 16; mov.u32 %r1, 1;"
    text = (
        ".version 8.0\n.target sm_90a\n.address_size 64\n.entry k()\n{\n.reg .b32 %r<4>; .reg .b64 %rd<4>;\n"
        + "\n".join(f"{statement.strip()};" for statement in (synchronisation + others).split(";") if statement.strip())
        + "\nret;\n}\n"
    )
    assert [site.ptx_line for site in deletion.sites(text, "k")] == list(range(7, 16))


CASE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry turn(.param .u64 out, .param .u32 n)
{ .reg .b32 %r<6>; .reg .b64 %rd<3>; .reg .pred %p<2>; .shared .align 4 .b8 s[256];
ld.param.u64 %rd0, [out]; ld.param.u32 %r5, [n]; mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, s;
add.u32 %r3, %r2, %r1; st.shared.u32 [%r3], %r0;
bar.sync 0;
setp.eq.u32 %p0, %r5, 0; @%p0 bra SKIP;
bar.sync 0;
SKIP: sub.u32 %r3, 252, %r1; add.u32 %r3, %r2, %r3; ld.shared.u32 %r4, [%r3];
bar.sync 0;
mul.wide.u32 %rd1, %r0, 4; add.u64 %rd0, %rd0, %rd1; st.global.u32 [%rd0], %r4; ret; }
"""


@pytest.mark.slow
def test_a_file_with_its_launch_takes_the_place_of_a_kernel(tmp_path: Path) -> None:
    """One of three barriers is not executed, one is needed, and one is redundant."""
    out = {"dtype": "uint32", "shape": [64], "init": "zeros"}
    launch = {"grid": 1, "block": 64, "args": ["out", 0]}
    want = {"out": {"dtype": "uint32", "values": list(range(63, -1, -1))}}
    case = {"buffers": {"out": out}, "launches": [launch], "expect": want}
    (tmp_path / "turn.ptx").write_text(CASE)
    (tmp_path / "turn.json").write_text(json.dumps(case))
    reason = {"kernel": "turn", "opcode": "bar.sync", "text": "", "most": 1, "reason": "nothing follows that it orders"}
    record = case_deletions(tmp_path / "turn.ptx", Modes(async_modes=("late",)), [reason])
    assert [(mutant["ptx_line"], mutant["killed_by"], mutant.get("reason")) for mutant in record["mutants"]] == [
        (8, "race", None),
        (12, None, "nothing follows that it orders"),
    ]
    case["expect"]["out"]["values"][0] = 7
    (tmp_path / "turn.json").write_text(json.dumps(case))
    with pytest.raises(UserError, match=r"turn\.ptx is not right itself: buffer out: 1 of 64 elements"):
        case_deletions(tmp_path / "turn.ptx", Modes(), [])


UNFENCED = """.version 8.0
.target sm_90
.address_size 64
.visible .entry copy(.param .u64 p)
{ .reg .b32 %r<4>; .reg .b64 %rd<2>; .reg .pred %p<1>; .shared .align 16 .b8 s[16]; .shared .align 8 .b8 full[8];
ld.param.u64 %rd0, [p]; cvta.to.global.u64 %rd0, %rd0; mov.u32 %r0, s; mov.u32 %r1, full;
mbarrier.init.shared::cta.b64 [%r1], 1;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%rd0], 16, [%r1];
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r1], 0;
@!%p0 bra WAIT;
ld.shared.u32 %r2, [%r0]; add.u32 %r2, %r2, 1; st.global.u32 [%rd0], %r2; ret; }
"""


@pytest.mark.parametrize("strict", [False, True])
def test_a_case_that_strict_modes_report_is_run_without_them(strict: bool, tmp_path: Path) -> None:
    fence = "fence.mbarrier_init.release.cluster; " if strict else ""
    (tmp_path / "copy.ptx").write_text(UNFENCED.replace("mbarrier.arrive", f"{fence}mbarrier.arrive", 1))
    buffer = {"dtype": "uint32", "values": [6, 0, 0, 0]}
    case = {"buffers": {"p": buffer}, "launches": [{"grid": 1, "block": 1, "args": ["p"]}]}
    (tmp_path / "copy.json").write_text(json.dumps(case))
    record = case_deletions(tmp_path / "copy.ptx", Modes(schedules=("lockstep",), strict=True, max_steps=20_000), [])
    assert record["strict"] is strict
    assert [mutant["opcode"].partition(".")[0] for mutant in record["mutants"] if mutant["killed_by"]] == (
        ["mbarrier", "fence", "mbarrier", "mbarrier"] if strict else ["mbarrier"] * 3
    )


def test_the_shipped_reasons_are_of_shipped_kernels() -> None:
    assert {entry["kernel"] for entry in deletion.REASONS} <= set(SHIPPED)
    assert all("weaker" not in entry for entry in deletion.REASONS)


def test_a_run_without_a_place_for_its_record_is_refused_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sdpalab.evidence.campaign.repository", lambda: None)
    monkeypatch.setattr(deletion, "run", lambda *_: pytest.fail("it ran"))
    assert cli.main(["campaign", "deletion", "flash"]) == 2
    assert "say where with --out FILE" in capsys.readouterr().err
