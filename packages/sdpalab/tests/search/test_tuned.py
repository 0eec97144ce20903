"""Tuned defaults: used only with a verdict behind them, for the class and the source that they are of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sdpalab import MISSION, Problem
from sdpalab.kernels import tuned as tuning
from sdpalab.kernels.registry import get
from sdpalab.kernels.tuned import (
    ProblemClass,
    TunedEntry,
    TunedWarning,
    keep_tuned,
    source_digest,
    tuned,
    tuned_groups,
    tuned_kernel,
)
from sdpalab.search.held_out import held_out
from warpsan.gpus import GPUS

FLASH = get("flash")
CONFIG = {**FLASH.default_config, "BLOCK_M": 32, "BLOCK_N": 32, "SCHEDULE": "stream_k", "NUM_CTAS": 58}
ENTRY = TunedEntry(
    kernel="flash",
    gpu="L4",
    problems=ProblemClass.of(MISSION),
    searched=MISSION,
    config=CONFIG,
    clock="modelled",
    default_us=5.0,
    tuned_us=4.6,
    level="full",
    cases=208,
    device="simulator sm_89",
    judge="0123456789abcdef",
    source=source_digest(FLASH),
    ptx_sha256=("0" * 64,),
    held_out={"1x6x512x64": 0.99},
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of the test's own, and nothing shipped."""
    monkeypatch.setenv("SDPALAB_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path / "shipped.json")
    return tmp_path


def test_without_an_entry_the_default_is_the_default() -> None:
    assert tuned(FLASH, MISSION, "L4") is None
    assert tuned_kernel(FLASH, MISSION, "L4") is FLASH
    assert FLASH.config_for(MISSION, "L4") == FLASH.default_config


def test_plans_for_a_gpu_take_the_tuned_default_and_no_others(own_folder: Path) -> None:
    assert keep_tuned(ENTRY) == own_folder / "tuned.json"
    assert FLASH.config_for(MISSION, "L4") == FLASH.default_config.but(**CONFIG)
    assert FLASH.launch_plan(MISSION, gpu="L4", sms=58) == FLASH.launch_plan(
        MISSION, FLASH.default_config.but(**CONFIG), sms=58
    )
    assert FLASH.launch_plan(MISSION, gpu="L4", sms=58) != FLASH.launch_plan(MISSION, sms=58)
    for gpu, problem in (
        ("H200", MISSION),
        (None, MISSION),
        ("L4", MISSION.with_(causal=True)),
        ("L4", Problem(1, 8, 2048, 64)),
    ):
        assert FLASH.config_for(problem, gpu) == FLASH.default_config
    given = FLASH.default_config.but(NUM_STAGES=3)
    assert FLASH.launch_plan(MISSION, given, gpu="L4") == FLASH.launch_plan(MISSION, given)
    # A later entry for the same takes its place.
    keep_tuned(replace(ENTRY, config={**CONFIG, "NUM_STAGES": 4}))
    assert FLASH.config_for(MISSION, "L4")["NUM_STAGES"] == 4


def test_an_entry_of_another_source_is_not_used() -> None:
    keep_tuned(replace(ENTRY, source="f" * 64))
    assert FLASH.config_for(MISSION, "L4") == FLASH.default_config


def test_an_entry_that_the_kernel_rejects_is_not_used() -> None:
    keep_tuned(replace(ENTRY, config={**CONFIG, "BLOCK_M": 48}))
    assert FLASH.config_for(MISSION, "L4") == FLASH.default_config


@pytest.mark.parametrize(
    "change",
    [{"level": "quick"}, {"cases": 0}, {"ptx_sha256": ()}, {"tuned_us": 5.1}, {"searched": Problem(1, 8, 64, 64)}],
)
def test_there_is_no_entry_without_a_full_verdict_or_that_is_slower(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="tuned default of flash"):
        replace(ENTRY, **change)


def test_a_damaged_file_is_not_used_with_a_warning(own_folder: Path) -> None:
    (own_folder / "tuned.json").write_text('{"tuned": [{"kernel": "flash"}]}')
    with pytest.warns(TunedWarning, match="its tuned defaults are not used"):
        assert FLASH.config_for(MISSION, "L4") == FLASH.default_config


def test_prove_judges_each_problem_with_its_own_default() -> None:
    keep_tuned(ENTRY)
    long = Problem(1, 8, 4096, 64)
    groups = tuned_groups(FLASH, [MISSION, long], "NVIDIA L4")
    assert [(kernel.default_config, problems) for kernel, problems in groups] == [
        (FLASH.default_config.but(**CONFIG), (MISSION,)),
        (FLASH.default_config, (long,)),
    ]
    assert [problems for _, problems in tuned_groups(FLASH, [MISSION, long], "NVIDIA T4")] == [(MISSION, long)]


@pytest.mark.parametrize("problem", [MISSION, Problem(2, 8, 500, 128, kv_heads=2), Problem(1, 1, 1, 64)])
def test_held_out_problems_are_others_of_the_same_class(problem: Problem) -> None:
    others = held_out(problem)
    assert problem not in others
    assert {ProblemClass.of(each) for each in others} <= {ProblemClass.of(problem)}
    assert len(others) >= (3 if problem == MISSION else 0)


def test_shipped_entries_are_of_the_present_source() -> None:
    shipped = tuning._read(Path(tuning.__file__).with_name("tuned.json"))
    for entry in shipped:
        assert entry.gpu in GPUS
        assert entry.source == source_digest(get(entry.kernel)), f"tune {entry.kernel} again, or drop its entry"
