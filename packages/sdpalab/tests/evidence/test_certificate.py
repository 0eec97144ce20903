"""Proofs by verdicts: which problems, on which GPU, for which code, and nothing that was not judged there."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from evidence_sample import honest, judged

from certificate_sample import DRIVER, GPU, JUDGED, attempt, flash_build, stored_verdict
from sdpalab.evidence.records import AttemptRecord
from sdpalab.evidence.store.certificate import Certificate, certificate_of, why_not_exact
from sdpalab.evidence.store.files import ArrayStore
from sdpalab.evidence.store.lookup import forget, recorded_verdicts, records_in, shipped_records
from sdpalab.evidence.store.record import RecordWarning, SampledRecord, StoredRecord, sealed
from sdpalab.judge.verdict import Case, Status
from sdpalab.kernels.kernel import Config, CudaKernel, Numerics
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import Problem


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A case as the judge makes it."""
    return judged(JUDGED, 0, ArrayStore(tmp_path_factory.mktemp("arrays")), honest, flash_build().ptx_sha256)


@pytest.fixture
def evidence(tmp_path: Path) -> Iterator[Path]:
    """A folder of committed evidence with a file that is none."""
    (tmp_path / "campaigns").mkdir()
    (tmp_path / "campaigns" / "fuzz.json").write_text('{"seeds": 12}')
    (tmp_path / "l4").mkdir()
    yield tmp_path
    forget()


def commit(folder: Path, record: AttemptRecord | StoredRecord) -> None:
    (folder / "l4" / "flash.json").write_text(json.dumps(record.to_dict()))


@pytest.mark.parametrize("with_machine", [False, True])
def test_a_verdict_from_a_gpu_proves_its_kernel_there(evidence: Path, case: Case, with_machine: bool) -> None:
    commit(evidence, stored_verdict(case) if with_machine else attempt(case))
    (certificate,) = records_in(evidence / "l4").certificates
    assert (certificate.kernel, certificate.gpu, certificate.arch, certificate.record) == (
        "flash",
        GPU,
        "sm_89",
        "evidence/l4/flash.json",
    )
    assert certificate.is_of(flash_build())
    assert certificate.covers(JUDGED)
    assert certificate.driver == (DRIVER if with_machine else None)
    assert certificate.lab is None  # it is shipped


def test_the_code_is_what_counts_and_not_its_line_numbers(case: Case) -> None:
    certificate, compiled = certificate_of(stored_verdict(case), ""), flash_build()
    assert certificate is not None
    moved = replace(compiled, ptx=compiled.ptx.replace(b"\t.loc\t1 ", b"\t.loc\t1 9"))
    assert moved.ptx_sha256 != compiled.ptx_sha256
    assert moved.code_sha256 == compiled.code_sha256
    assert certificate.is_of(moved)
    for old, new in ((b"add.s32", b"sub.s32"), (b".reg .f32", b".reg .b32"), (b"release 13.0", b"release 13.1")):
        changed = replace(compiled, ptx=compiled.ptx.replace(old, new, 1))
        assert changed.ptx != compiled.ptx
        assert not certificate.is_of(changed)


@pytest.mark.parametrize(
    "change",
    [
        {"head_dim": 64},
        {"dtype": "bfloat16"},
        {"causal": True},
        {"scale": 1.0},
        {"kv_heads": 2},
        {"seq_kv": 33},
        {"seq_q": 61, "seq_kv": 61},
        {"seq_q": 128, "seq_kv": 128},
        {"heads": 5, "kv_heads": 5},
        {"batch": 2},
    ],
    ids=str,
)
def test_a_proof_covers_no_other_traits_and_nothing_larger(case: Case, change: dict[str, object]) -> None:
    certificate = certificate_of(attempt(case), "")
    assert certificate is not None
    assert not certificate.covers(JUDGED.with_(**change))


def test_a_proof_covers_what_is_smaller(case: Case) -> None:
    certificate = certificate_of(attempt(case), "")
    assert certificate is not None
    assert certificate.covers(JUDGED.with_(heads=1, kv_heads=1, seq_q=7, seq_kv=7))
    assert not certificate.covers(Problem(1, 4, 60, 64))


def test_whole_tiles_are_not_covered_by_ragged_ones_nor_the_other_way_round() -> None:
    whole, ragged = Problem(1, 4, 256, 64), Problem(1, 4, 300, 64)
    for judged_on, asked in ((whole, Problem(1, 4, 200, 64)), (ragged, Problem(1, 4, 256, 64))):
        certificate = Certificate("flash", "", GPU, "sm_89", frozenset(), frozenset({judged_on}), "")
        assert certificate.covers(judged_on)
        assert not certificate.covers(asked)


def test_a_large_problem_that_was_sampled_is_covered_if_the_small_one_was_judged(case: Case) -> None:
    large = JUDGED.with_(seq_q=6000, seq_kv=6000)
    plain = stored_verdict(case)
    for small, covered in ((JUDGED, True), (JUDGED.with_(heads=8, kv_heads=8), False)):
        sample = SampledRecord(problem=large, small=small, rows=64, seed=0)
        record = sealed(gpu=GPU, driver=DRIVER, code=plain.code, attempt=plain.attempt, sampled=(sample,))
        certificate = certificate_of(record, "")
        assert certificate is not None
        assert certificate.covers(large) is covered


@pytest.mark.parametrize(("device", "status"), [("simulator sm_89", Status.PASSED), ("cpu (torch)", Status.PASSED)])
def test_what_ran_elsewhere_proves_nothing(evidence: Path, case: Case, device: str, status: Status) -> None:
    commit(evidence, attempt(case, device=device, status=status))
    assert records_in(evidence / "l4").certificates == ()


def test_a_failure_is_no_proof_and_is_remembered_as_one(evidence: Path, case: Case) -> None:
    commit(evidence, attempt(case, status=Status.INCORRECT))
    assert recorded_verdicts(evidence) == {}
    certificate = certificate_of(attempt(case, status=Status.INCORRECT), "")
    assert certificate is not None
    assert certificate.failure.startswith("INCORRECT: ")
    assert certificate_of(attempt(case, status=Status.INFRA_ERROR), "") is None


def test_a_damaged_record_is_skipped_with_a_warning(evidence: Path, case: Case) -> None:
    commit(evidence, attempt(case))
    data = attempt(case).to_dict()
    data["verdict"]["status"] = "INCORRECT"
    (evidence / "l4" / "damaged.json").write_text(json.dumps(data))
    with pytest.warns(RecordWarning, match=r"damaged\.json is not a valid record") as warned:
        (certificate,) = records_in(evidence / "l4").certificates
    assert certificate.record == "evidence/l4/flash.json"
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)


def test_a_configuration_that_its_kernel_has_no_longer_stands_in_for_nothing() -> None:
    assert "NO_SUCH_KNOB" in str(why_not_exact("flash", "BLOCK_M=64 NO_SUCH_KNOB=1"))
    assert why_not_exact("mine", "") == "there is no kernel mine any more"


def test_a_kernel_is_as_exact_as_the_configuration_that_was_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def numerics(config: Config) -> Numerics:
        return Numerics(probabilities="problem" if config["BLOCK_M"] == 64 else "float8_e4m3fn")

    flash = KERNELS["flash"]
    assert isinstance(flash, CudaKernel)
    changed = {"flash": replace(flash, numerics=numerics)}
    monkeypatch.setattr("sdpalab.evidence.store.certificate.get", changed.__getitem__)
    assert why_not_exact("flash", "BLOCK_M=64") is None
    assert why_not_exact("flash", "BLOCK_M=128") == "flash computes less precisely than torch's own function"


@pytest.mark.parametrize("name", ["fp8", "fp8_simulated", "hopper_fp8"])
def test_what_quantises_stands_in_for_nothing(name: str) -> None:
    assert "quantises its inputs" in str(why_not_exact(name, str(KERNELS[name].default_config)))


def test_the_shipped_records_can_be_read() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecordWarning)
        shipped = shipped_records().certificates
    assert all(not each.gpu.startswith("simulator") and each.problems for each in shipped)
