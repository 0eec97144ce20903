"""What the README says is what the lab does: the ladder's figures, the commands, the examples."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sdpalab.commands.building import build_kernel
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import MISSION

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_the_ladder_has_every_kernel_in_order() -> None:
    assert re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)[: len(KERNELS)] == list(KERNELS)


@pytest.mark.parametrize("name", KERNELS)
def test_the_ladders_figures_are_those_of_the_cubin(name: str) -> None:
    kernel = KERNELS[name]
    (step,) = build_kernel(kernel, kernel.default_config, [MISSION], "sm_89")
    used = step.resources
    share = f"{used.tensor_share:.1%}" if used.tensor_share else "none"
    figures = (used.registers, used.shared_bytes, used.spill_bytes, used.blocks_per_sm, share)
    row = f"| `{name}` | {kernel.idea} | " + " | ".join(map(str, figures)) + " |"
    assert row in README.splitlines(), f"README.md must say: {row}"


def test_every_command_that_there_is_and_no_other_is_listed() -> None:
    from sdpalab.cli import app

    listed = re.findall(r"^\| `sdpalab ([\w-]+)", README, re.MULTILINE)
    callbacks = [command.callback.__name__ for command in app.registered_commands if command.callback]
    assert listed == [name.replace("_", "-") for name in callbacks]


def _newest(campaign: str) -> dict[str, Any]:
    records = [json.loads(path.read_text()) for path in (ROOT / "evidence" / "campaigns").glob(f"{campaign}-*.json")]
    return max(records, key=lambda record: str(record["when"]))


def test_the_judges_own_figures_are_those_of_the_records() -> None:
    told = " ".join(README.split())
    record, calibration = _newest("self-test"), _newest("calibration")["totals"]
    classes = ", ".join(f"{name} {rate['killed']} of {rate['planted']}" for name, rate in record["classes"].items())
    total = record["totals"]
    assert f"Of {total['planted']} bugs it rejects {total['killed']}: {classes}." in told
    assert calibration["false_alarms"] == 0
    assert f"Of {calibration['implementations']} correct implementations it rejects none in" in told
    assert f"none in {calibration['runs']:,} runs" in told


def test_nothing_is_left_to_fill_in() -> None:
    assert "@@" not in README
