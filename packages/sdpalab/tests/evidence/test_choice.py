"""Which kernel runs: a verdict and a comparison decide, both from this machine, and what is missing is said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from evidence_sample import honest, judged

from certificate_sample import (
    DRIVER,
    FLASH,
    GPU,
    JUDGED,
    SMS,
    TORCH,
    attempt,
    bench,
    flash_build,
    stored_times,
    stored_verdict,
)
from sdpalab.bugs import replace_once
from sdpalab.errors import MachineError
from sdpalab.evidence.store import choice, lookup
from sdpalab.evidence.store.choice import Choice, GpuPlatform, choose
from sdpalab.evidence.store.files import ArrayStore
from sdpalab.evidence.store.folders import folder_of, records_folder
from sdpalab.evidence.store.lookup import Records, forget, records_on
from sdpalab.evidence.store.record import AnyRecord, RecordWarning, StoredRecord, keep, sealed
from sdpalab.evidence.store.timings import LEAST_ROUNDS, Timing, timings_of
from sdpalab.evidence.store.trace import function_of, sizes_of
from sdpalab.judge.verdict import Case, Status
from sdpalab.problem import Problem
from sdpalab.user_folder import data_folder

HERE = GpuPlatform(GPU, DRIVER, TORCH, SMS)
FASTER, SLOWER = [0.5] * 30, [1.5] * 30
COMMAND = "run: sdpalab prove --shape 1,4,60,32 --time"


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return judged(JUDGED, 0, ArrayStore(tmp_path_factory.mktemp("arrays")), honest, flash_build().ptx_sha256)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing is shipped, and the user has nothing; returns where records are shipped."""
    monkeypatch.setenv("SDPALAB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(lookup, "evidence_folder", lambda: tmp_path / "evidence")
    forget()
    yield tmp_path / "evidence"
    forget()


def ship(folder: Path, name: str, record: AnyRecord) -> None:
    path = folder / folder_of(GPU) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record.to_dict()))


def chosen(*records: StoredRecord, problem: Problem = JUDGED, machine: GpuPlatform = HERE, lse: bool = False) -> Choice:
    """The choice with these records in the user's folder."""
    for number, record in enumerate(records):
        keep(record, f"{number}")
    forget()
    return choose(problem, machine, lse=lse)


def test_a_verdict_and_a_comparison_let_a_kernel_run(case: Case) -> None:
    verdict, times = keep(stored_verdict(case), "flash"), keep(stored_times(FASTER), "times")
    selected = chosen()
    assert selected.kernel is not None
    assert selected.kernel.certificate.kernel == "flash"
    assert [each.ptx_sha256 for each in selected.kernel.builds] == [flash_build().ptx_sha256]
    assert selected.reason == (
        f"flash is proven for 1x4x60x32 on NVIDIA L4 by {verdict}, and takes 0.50x torch's eager time (0.50 to 0.50, "
        f"30 rounds) on normal inputs, its worst, there by {times}; the verdict covers not causal, float16, D 32; "
        "not judged: the executed code is unknown, because a GPU ran the cases"
    )
    assert chosen(lse=True).kernel is not None


def test_what_is_shipped_counts_as_well(case: Case, folders: Path) -> None:
    ship(folders, "flash.json", stored_verdict(case))
    ship(folders, "bench.json", bench(FASTER))
    selected = chosen()
    assert selected.kernel is not None
    assert "by evidence/l4/flash.json, and takes" in selected.reason
    assert "by evidence/l4/bench.json; the verdict covers " in selected.reason


def test_without_a_record_it_is_torch_and_the_command_is_named() -> None:
    assert chosen() == Choice(None, f"no kernel is proven on NVIDIA L4; {COMMAND}")


def test_without_a_comparison_it_is_torch(case: Case) -> None:
    selected = chosen(stored_verdict(case))
    assert selected.kernel is None
    assert "flash is proven for 1x4x60x32 on NVIDIA L4 by " in selected.reason
    assert f"but no measured comparison with torch {TORCH} on driver {DRIVER} is kept; {COMMAND}" in selected.reason


@pytest.mark.parametrize(
    ("times", "why"),
    [
        (lambda: stored_times(FASTER, clock="gpu"), "no measured comparison"),
        (lambda: stored_times(FASTER, torch="2.12.0"), "no measured comparison"),
        (lambda: stored_times(FASTER, driver="570.1"), "no measured comparison"),
        (lambda: stored_times(FASTER, problem=JUDGED.with_(heads=2, kv_heads=2)), "no measured comparison"),
        (lambda: stored_times(FASTER, kernel="wmma"), "no measured comparison"),
        (lambda: stored_times(SLOWER), "does not show that it is not slower: flash takes 1.50x torch's eager time"),
        (
            lambda: stored_times(FASTER[: LEAST_ROUNDS - 1]),
            f"is from fewer than {LEAST_ROUNDS} rounds: flash takes 0.50x",
        ),
        (lambda: stored_times([0.9, 1.2] * 20), "does not show that it is not slower"),
        (
            lambda: stored_times(FASTER, code={"config": str(FLASH.default_config), "code_sha256": ["0" * 64]}),
            "the code of flash is no longer what",
        ),
    ],
    ids=["gpu clock", "torch", "driver", "problem", "kernel", "slower", "few rounds", "ambiguous", "other code"],
)
def test_a_comparison_that_does_not_show_it_lets_nothing_run(
    case: Case, times: Callable[[], StoredRecord], why: str
) -> None:
    selected = chosen(stored_verdict(case), times())
    assert selected.kernel is None
    assert why in selected.reason
    assert selected.reason.endswith(COMMAND)


@pytest.mark.parametrize(("ratio", "runs"), [(1.015, True), (1.025, False)])
def test_two_percent_is_the_limit(case: Case, ratio: float, runs: bool) -> None:
    assert (chosen(stored_verdict(case), stored_times([ratio] * 30)).kernel is not None) is runs


def test_an_ambiguous_comparison_counts_if_its_interval_ends_below_the_limit(case: Case) -> None:
    times = stored_times([0.985, 0.985, 1.0, 1.0] * 8)
    forget()
    selected = chosen(stored_verdict(case), times)
    (timing,) = records_on(GPU).timings
    assert timing.comparison.outcome.value == "AMBIGUOUS"
    assert selected.kernel is not None


def test_a_kernel_without_a_time_is_said_to_have_none(case: Case) -> None:
    times = bench(FASTER)
    result = times.results[0]
    left_out = {"name": "flash", "status": "LEFT OUT", "reason": "too slow", "summary": None, "samples": None}
    record = replace(times, results=({**result, "measurements": [result["measurements"][0], left_out]},))
    selected = chosen(stored_verdict(case), sealed(gpu=GPU, driver=DRIVER, bench=record))
    assert selected.kernel is None
    assert "has no time of flash: LEFT OUT: too slow; run: " in selected.reason


VARLEN = Problem(4, 8, 200, 64, layout="varlen", q_lengths=(200, 3, 0, 40), kv_lengths=(200, 9, 4, 30), causal=True)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (VARLEN.with_(q_lengths=(60, 60, 60, 60), kv_lengths=(61, 61, 61, 61)), True),
        (VARLEN.with_(batch=3, seq_q=150, q_lengths=(150, 70, 20), kv_lengths=(150, 70, 30)), True),
        (VARLEN.with_(q_lengths=(200, 3, 0, 46)), True),  # 249 rows, and 5 behind them
        (VARLEN.with_(q_lengths=(200, 3, 0, 49)), False),  # 252
        (VARLEN.with_(batch=2, q_lengths=(200, 50), kv_lengths=(200, 50)), False),
        (VARLEN.with_(causal=False), False),
        (VARLEN.with_(layout="varlen:gaps"), False),
        (VARLEN.with_(head_dim=128), False),
    ],
)
def test_a_comparison_of_packed_sequences_holds_for_sizes_up_to_a_power_of_two(other: Problem, same: bool) -> None:
    assert (sizes_of(VARLEN) == sizes_of(other)) is same
    assert sizes_of(JUDGED) != sizes_of(JUDGED.with_(seq_q=59, seq_kv=59))


@pytest.mark.parametrize(
    ("problem", "function"),
    [
        (JUDGED, "scaled_dot_product_attention"),
        (JUDGED.with_(task="backward"), "scaled_dot_product_attention"),
        (JUDGED.with_(window_size=(4, 4)), "flash_attn_func"),
        (JUDGED.with_(seq_kv=70, causal=True, bottom_right=True), "flash_attn_func"),
        (VARLEN, "flash_attn_varlen_func"),
        (JUDGED.with_(layout="paged:16"), "flash_attn_with_kvcache"),
        (JUDGED.with_(sinks=True), "no function of torch"),
        (JUDGED.with_(kv_lengths=(9,)), "no function of torch"),
    ],
)
def test_the_function_of_a_problem(problem: Problem, function: str) -> None:
    assert function_of(problem) == function


def test_a_kernel_without_an_order_of_sums_does_not_run_where_bits_must_be_equal() -> None:
    gradients = Problem(1, 2, 64, 64, task="backward")
    asked = {"lse": False, "deterministic": True}
    assert "adds dq in any order" in str(choice._why_not(gradients, "flash_backward", "DETERMINISTIC=0", **asked))
    assert choice._why_not(gradients, "flash_backward", "DETERMINISTIC=1", **asked) is None
    assert "writes the log-sum-exp" in str(
        choice._why_not(gradients, "flash_backward", "DETERMINISTIC=1", lse=True, deterministic=True)
    )


def test_the_newest_comparison_of_a_code_decides(case: Case) -> None:
    early, late = (datetime(2026, month, 1, tzinfo=timezone.utc) for month in (1, 2))
    slower_since = chosen(stored_verdict(case), stored_times(FASTER, when=early), stored_times(SLOWER, when=late))
    assert slower_since.kernel is None
    assert chosen(stored_times(FASTER, when=datetime(2026, 3, 1, tzinfo=timezone.utc))).kernel is not None


def test_the_kernel_with_the_least_ratio_runs(case: Case) -> None:
    verdict = stored_verdict(case)
    keep(verdict, "flash")
    forget()
    (certificate,) = records_on(GPU).certificates
    other = replace(certificate, config=str(FLASH.default_config.but(NUM_CTAS=7)))
    code = {"config": other.config, "code_sha256": sorted(certificate.code)}
    (fast,) = chosen_timings(0.5)
    (faster,) = chosen_timings(0.4, code)
    selected = choose(JUDGED, HERE, Records((certificate, other), (fast, faster)))
    assert selected.kernel is not None
    assert selected.kernel.certificate is other


def test_the_worst_inputs_decide(case: Case) -> None:
    """A kernel that is faster on normal scores and slower on rising ones does not run, and the sentence says why."""
    slow = {"normal": FASTER, "ramp": SLOWER, "negative": FASTER}
    refused = chosen(stored_verdict(case), stored_times(FASTER, by_kind=slow))
    assert refused.kernel is None
    assert "flash takes 1.50x torch's eager time (1.50 to 1.50, 30 rounds) on ramp inputs, its worst," in refused.reason
    near = {"normal": FASTER, "ramp": FASTER, "negative": [1.01] * 30}
    later = stored_times(FASTER, by_kind=near, when=datetime(2026, 1, 2, tzinfo=timezone.utc))
    allowed = chosen(later)
    assert allowed.kernel is not None
    assert "takes 1.01x torch's eager time (1.01 to 1.01, 30 rounds) on negative inputs, its worst," in allowed.reason


@pytest.mark.parametrize("kinds", [("normal",), ("normal", "ramp"), ("normal", "negative")])
def test_times_on_some_kinds_of_inputs_are_not_enough(case: Case, kinds: tuple[str, ...]) -> None:
    some = chosen(stored_verdict(case), stored_times(FASTER, by_kind=dict.fromkeys(kinds, FASTER)))
    assert some.kernel is None
    missing = next(kind for kind in ("ramp", "negative") if kind not in kinds)
    assert f"torch and flash have no times on {missing} inputs" in some.reason


def test_few_rounds_on_one_kind_are_too_few(case: Case) -> None:
    few = {"normal": FASTER, "ramp": FASTER[: LEAST_ROUNDS - 1], "negative": FASTER}
    assert (
        f"is from fewer than {LEAST_ROUNDS} rounds"
        in chosen(stored_verdict(case), stored_times(FASTER, by_kind=few)).reason
    )


def chosen_timings(ratio: float, code: dict[str, object] | None = None) -> list[Timing]:
    return list(timings_of(stored_times([ratio] * 30, code=code), "a record"))


def test_another_driver_is_torch_again(case: Case) -> None:
    selected = chosen(stored_verdict(case), stored_times(FASTER), machine=replace(HERE, driver="581.1"))
    assert selected == Choice(
        None, f"the verdicts on NVIDIA L4 are from driver {DRIVER}, and this one is 581.1; {COMMAND}"
    )


def test_a_record_that_names_no_driver_lets_nothing_run(case: Case, folders: Path) -> None:
    ship(folders, "flash.json", attempt(case))
    assert "are from driver none that a record names, and this one is" in chosen(stored_times(FASTER)).reason


def test_another_version_of_the_lab_judges_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(stored_verdict(case), "flash")
    monkeypatch.setattr(choice, "__version__", "9.9")
    assert "are from version 0.1.0 of the lab, and this is 9.9" in chosen().reason


def test_another_gpu_has_nothing(case: Case) -> None:
    selected = chosen(stored_verdict(case), stored_times(FASTER), machine=replace(HERE, gpu="NVIDIA H200"))
    assert selected.reason.startswith("no kernel is proven on NVIDIA H200; run: ")


def test_a_record_in_the_folder_of_another_gpu_is_ignored(case: Case) -> None:
    path = keep(stored_verdict(case), "flash")
    stray = path.parent.parent / "h200" / path.name
    stray.parent.mkdir()
    path.rename(stray)
    assert chosen(machine=replace(HERE, gpu="NVIDIA H200")).reason.startswith("no kernel is proven on NVIDIA H200;")


def test_what_is_larger_is_not_covered(case: Case) -> None:
    selected = chosen(
        stored_verdict(case), stored_times(FASTER), problem=JUDGED.with_(seq_q=61, seq_kv=61, causal=True)
    )
    assert selected.reason == (
        "no kernel that is proven on NVIDIA L4 covers 1x4x61x32 causal; "
        "run: sdpalab prove --shape 1,4,61,32 --causal --time"
    )


def test_a_kernel_whose_source_changed_is_torch_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    records = stored_verdict(case), stored_times(FASTER)
    changed = replace(
        FLASH,
        numerics=FLASH.numerics,
        source=replace_once(FLASH.source.read_text(), ("lse, scale)", "lse, 1.1f * scale)")),
    )
    monkeypatch.setattr(choice, "get", {"flash": changed}.__getitem__)
    assert flash_build().code_sha256 != code_with(changed)
    selected = chosen(*records)
    assert selected.kernel is None
    assert "the code of flash is no longer what " in selected.reason
    assert "the kernel or its compiler was changed since; run: sdpalab prove" in selected.reason


def code_with(kernel: object) -> str:
    from sdpalab.compile import build

    (step,) = kernel.launch_plan(JUDGED, sms=SMS).launches  # type: ignore[attr-defined]
    return build(step.module, "sm_89").code_sha256


def test_another_text_of_the_same_source_is_said_to_be_that(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = flash_build()
    other = replace(compiled, ptx=compiled.ptx.replace(b".reg .f32", b".reg .b32", 1))
    monkeypatch.setattr(choice, "build", lambda *_: other)
    selected = chosen(stored_verdict(case), stored_times(FASTER))
    assert "the compiler has made another text of the same source" in selected.reason


def test_a_kernel_that_does_not_build_is_no_failure_of_the_call(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(*_: object) -> None:
        raise MachineError("there is no compiler")

    records = stored_verdict(case), stored_times(FASTER)
    monkeypatch.setattr(choice, "build", no_compiler)
    assert "flash is proven and cannot be built here: there is no compiler" in chosen(*records).reason


def test_code_that_failed_once_does_not_run_whatever_passed(case: Case) -> None:
    failed = stored_verdict(case, status=Status.NONDETERMINISTIC)
    selected = chosen(stored_verdict(case), stored_times(FASTER), failed)
    assert selected.kernel is None
    assert "flash failed on NVIDIA L4 (NONDETERMINISTIC: " in selected.reason
    assert "a test), see " in selected.reason


def test_where_all_failed_that_is_the_reason(case: Case) -> None:
    selected = chosen(stored_verdict(case, status=Status.INCORRECT), stored_times(FASTER))
    assert selected.reason.startswith("no kernel is proven on NVIDIA L4: flash failed there (INCORRECT: ")


@pytest.mark.parametrize("content", [b"", b"{", b'{"record": "kept"}', b"[1]", b"\xff\xfe", b'{"record": "bench"}'])
def test_damaged_and_foreign_files_are_skipped_with_a_warning(case: Case, content: bytes) -> None:
    keep(stored_verdict(case), "flash")
    path = keep(stored_times(FASTER), "times")
    (path.parent / "foreign.json").write_bytes(content)
    with pytest.warns(RecordWarning, match=r"foreign\.json is not a valid record and is ignored"):
        assert chosen().kernel is not None


def test_a_record_that_was_edited_is_not_trusted(case: Case) -> None:
    keep(stored_verdict(case), "flash")
    path = keep(stored_times(SLOWER), "times")
    data = json.loads(path.read_bytes())
    for row in data["bench"]["results"][0]["measurements"]:
        row["samples"]["times_us"] = [1.0] * 30
    path.write_text(json.dumps(data))
    with pytest.warns(RecordWarning, match="sha256 is [0-9a-f]+, and its fields give"):
        assert chosen().kernel is None


def test_times_of_another_form_are_skipped(case: Case, folders: Path) -> None:
    times = bench(FASTER)
    ship(folders, "bench.json", replace(times, results=({"clock": "eager"},)))
    ship(folders, "flash.json", stored_verdict(case))
    with pytest.warns(RecordWarning, match=r"bench\.json is not a valid record"):
        assert "no measured comparison" in chosen().reason


def test_records_are_read_once_until_they_are_forgotten(case: Case) -> None:
    assert choose(JUDGED, HERE).kernel is None
    keep(stored_verdict(case), "flash")
    keep(stored_times(FASTER), "times")
    assert choose(JUDGED, HERE).kernel is None
    forget()
    assert choose(JUDGED, HERE).kernel is not None


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert records_folder() == tmp_path / "data" / "proofs"
    monkeypatch.delenv("SDPALAB_DATA_DIR")
    assert data_folder().name == "sdpalab"
    assert data_folder().is_absolute()
