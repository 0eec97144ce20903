"""What committed verdicts prove: which problems, on which GPU, for which PTX, and nothing that was not judged there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from evidence_sample import honest, judged

from sdpalab.compile import Build, build
from sdpalab.errors import MachineError
from sdpalab.evidence import proven
from sdpalab.evidence.built import built_module
from sdpalab.evidence.proven import Proof, proof_for, proven_kernel, read_proofs
from sdpalab.evidence.records import AttemptRecord
from sdpalab.evidence.store import ArrayStore
from sdpalab.judge.verdict import Case, Status, Verdict
from sdpalab.kernels.kernel import Config, CudaKernel, Numerics
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import Problem

GPU = "NVIDIA L4"
FLASH = KERNELS["flash"]
assert isinstance(FLASH, CudaKernel)
JUDGED = Problem(1, 4, 60, 32)


@pytest.fixture(scope="module")
def built() -> Build:
    """The kernel flash as it is."""
    module = FLASH.launch_plan(JUDGED).steps[0].module
    assert module is not None
    return build(module)


@pytest.fixture(scope="module")
def case(built: Build, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A case as the judge makes it."""
    return judged(JUDGED, 0, ArrayStore(tmp_path_factory.mktemp("arrays")), honest, built.ptx_sha256)


@pytest.fixture
def evidence(tmp_path: Path) -> Iterator[Path]:
    """A folder of committed evidence with a file that is none."""
    (tmp_path / "campaigns").mkdir()
    (tmp_path / "campaigns" / "fuzz.json").write_text('{"seeds": 12}')
    (tmp_path / "l4").mkdir()
    yield tmp_path
    read_proofs.cache_clear()
    proven_kernel.cache_clear()


def record(
    built: Build, case: Case, *, device: str = GPU, config: str | None = None, status: Status = Status.PASSED
) -> AttemptRecord:
    """An attempt of ``flash`` with one case."""
    config = str(FLASH.default_config) if config is None else config
    case = case if status is Status.PASSED else replace(case, status=status, reason="a test")
    module = FLASH.launch_plan(JUDGED).steps[0].module
    assert module is not None
    return AttemptRecord(
        kernel="flash",
        config=config,
        idea=FLASH.idea,
        builds=(built_module(module, built).record("build/00-flash"),),
        verdict=Verdict("flash", config, device, "quick", 0, (case,)),
    )


def commit(folder: Path, attempt: AttemptRecord) -> None:
    (folder / "l4" / "flash.json").write_text(attempt.model_dump_json())


def test_a_verdict_from_a_gpu_proves_its_kernel_there(evidence: Path, built: Build, case: Case) -> None:
    commit(evidence, record(built, case))
    found, why = proven_kernel(JUDGED, GPU, evidence)
    assert found is not None
    assert found.proof.kernel == "flash"
    assert [each.ptx_sha256 for each in found.builds] == [built.ptx_sha256]
    assert why == f"flash is proven for {JUDGED.label} on {GPU} by l4/flash.json"
    assert proven_kernel(JUDGED, "NVIDIA H200", evidence) == (
        None,
        "no kernel is proven on NVIDIA H200: no committed verdict from it is PASSED",
    )


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
def test_a_proof_covers_no_other_traits_and_nothing_larger(
    evidence: Path, built: Build, case: Case, change: dict[str, object]
) -> None:
    commit(evidence, record(built, case))
    other = JUDGED.with_(**change)
    assert proven_kernel(other, GPU, evidence) == (None, f"no kernel that is proven on {GPU} covers {other.label}")


def test_a_proof_covers_what_is_smaller(evidence: Path, built: Build, case: Case) -> None:
    commit(evidence, record(built, case))
    (proof,) = read_proofs(evidence)
    assert proof.covers(JUDGED.with_(heads=1, kv_heads=1, seq_q=7, seq_kv=7))
    assert not proof.covers(Problem(1, 4, 60, 64))


def test_whole_tiles_are_not_covered_by_ragged_ones_nor_the_other_way_round() -> None:
    whole, ragged = Problem(1, 4, 256, 64), Problem(1, 4, 300, 64)
    for judged_on, asked in ((whole, Problem(1, 4, 200, 64)), (ragged, Problem(1, 4, 256, 64))):
        proof = Proof("flash", "", GPU, "sm_89", frozenset(), frozenset({judged_on}), "")
        assert proof.covers(judged_on)
        assert not proof.covers(asked)


@pytest.mark.parametrize(
    ("device", "status"),
    [("simulator sm_89", Status.PASSED), ("cpu (torch 2.13.0)", Status.PASSED), (GPU, Status.INCORRECT)],
)
def test_what_ran_elsewhere_or_failed_proves_nothing(
    evidence: Path, built: Build, case: Case, device: str, status: Status
) -> None:
    commit(evidence, record(built, case, device=device, status=status))
    assert read_proofs(evidence) == ()


def test_a_kernel_that_was_changed_since_is_not_proven(evidence: Path, built: Build, case: Case) -> None:
    commit(evidence, record(built, case, config=str(FLASH.default_config.but(BLOCK_M=32))))
    found, why = proven_kernel(JUDGED, GPU, evidence)
    assert found is None
    assert why.startswith("the PTX of flash is not what l4/flash.json proves")


def test_a_damaged_record_is_said(evidence: Path, built: Build, case: Case) -> None:
    data = json.loads(record(built, case).model_dump_json())
    data["verdict"]["status"] = "INCORRECT"
    (evidence / "l4" / "flash.json").write_text(json.dumps(data))
    with pytest.raises(MachineError, match=r"l4/flash\.json in the evidence is no legal record") as raised:
        read_proofs(evidence)
    assert "\n" not in str(raised.value)


def test_the_highest_rung_that_is_as_exact_as_torch_is_the_best() -> None:
    judged = frozenset({JUDGED})
    proofs = [
        Proof(name, "", GPU, "sm_89", frozenset(), judged, f"l4/{name}.json") for name in ("flash", "scalar", "mine")
    ]
    assert proof_for(JUDGED, GPU, proofs)[0] == proofs[0]
    assert proof_for(JUDGED, GPU, proofs[1:])[0] == proofs[1]
    assert proof_for(JUDGED, GPU, proofs[2:])[0] is None


def test_a_configuration_that_its_kernel_has_no_longer_stands_in_for_nothing() -> None:
    old = Proof("flash", "BLOCK_M=64 NO_SUCH_KNOB=1", GPU, "sm_89", frozenset(), frozenset({JUDGED}), "l4/flash.json")
    assert proof_for(JUDGED, GPU, [old]) == (None, f"no kernel that is proven on {GPU} covers {JUDGED.label}")


def test_a_kernel_is_as_exact_as_the_configuration_that_was_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def numerics(config: Config) -> Numerics:
        return Numerics(probabilities="problem" if config["BLOCK_M"] == 64 else "float8_e4m3fn")

    monkeypatch.setattr(proven, "KERNELS", {"flash": replace(FLASH, numerics=numerics)})
    exact, coarse = (
        Proof("flash", f"BLOCK_M={rows}", GPU, "sm_89", frozenset(), frozenset({JUDGED}), "l4/flash.json")
        for rows in (64, 128)
    )
    assert proof_for(JUDGED, GPU, [coarse, exact])[0] is exact
    assert proof_for(JUDGED, GPU, [coarse])[0] is None


def test_the_committed_records_can_be_read() -> None:
    assert all(not proof.gpu.startswith("simulator") and proof.problems for proof in read_proofs())
