"""Functions with the signatures of FlashAttention and torch are judged as they are: right ones pass with every claim of
the signature, and each bug is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peer_functions as peers
import pytest
import torch

from sdpalab.cli import main
from sdpalab.errors import UserError
from sdpalab.judge import CaseSpec, Status, judge_candidate
from sdpalab.judge.cases import cases_for
from sdpalab.judge.signatures import LAB, SIGNATURES, PeerCall, signature_of
from sdpalab.judge.strides import Strides
from sdpalab.problem import Problem

DENSE = Problem(2, 4, 20, 32, kv_heads=2, seq_kv=33, causal=True, bottom_right=True)
VARLEN = Problem(
    *(4, 4, 20, 32), kv_heads=2, seq_kv=24, layout="varlen", q_lengths=(3, 0, 20, 1), kv_lengths=(7, 24, 0, 18),
)  # fmt: skip
DECODE = Problem(3, 4, 2, 32, kv_heads=2, seq_kv=50, kv_lengths=(50, 0, 33), causal=True, bottom_right=True)
PAGED = DECODE.with_(layout="paged:8")
APPENDED = Strides.APPENDED
FORMS: dict[str, tuple[Callable[..., Any], dict[str, tuple[Problem, Strides, Status]]]] = {
    "flash_attn_func": (
        peers.flash,
        {
            "top left": (DENSE, Strides.CONTIGUOUS, Status.INCORRECT),
            "heads interleaved": (DENSE, Strides.CONTIGUOUS, Status.INCORRECT),
            "window off by one": (DENSE.with_(window_size=(5, 0)), Strides.CONTIGUOUS, Status.INCORRECT),
            "no soft cap": (DENSE.with_(softcap=0.5), Strides.CONTIGUOUS, Status.INCORRECT),
        },
    ),
    "flash_attn_varlen_func": (
        peers.varlen,
        {
            "keys at the ends of the queries": (VARLEN, Strides.CONTIGUOUS, Status.INCORRECT),
            "top left": (VARLEN.with_(causal=True, bottom_right=True), Strides.CONTIGUOUS, Status.INCORRECT),
            "heads interleaved": (VARLEN.with_(layout="varlen,paged:8"), Strides.CONTIGUOUS, Status.INCORRECT),
            "no soft cap": (VARLEN.with_(task="backward", softcap=0.5), Strides.CONTIGUOUS, Status.INCORRECT),
        },
    ),
    "flash_attn_with_kvcache": (
        peers.kvcache,
        {
            "top left": (DECODE, Strides.CONTIGUOUS, Status.INCORRECT),
            "lengths ignored": (DECODE, Strides.CONTIGUOUS, Status.NOT_FINITE),
            "window off by one": (PAGED.with_(window_size=(5, 0)), Strides.CONTIGUOUS, Status.INCORRECT),
            "appended a row late": (DECODE.with_(kv_lengths=(49, 2, 33)), APPENDED, Status.BAD_OUTPUT),
            "V for K": (PAGED.with_(kv_lengths=(50, 2, 33)), APPENDED, Status.BAD_OUTPUT),
            "writes a row too many": (DECODE.with_(kv_lengths=(50, 3, 33)), APPENDED, Status.INPUT_CHANGED),
            "appended keys not seen": (PAGED.with_(kv_lengths=(50, 2, 33)), APPENDED, Status.INCORRECT),
        },
    ),
    "torch": (
        peers.torch_form,
        {
            "mask ignored": (Problem(1, 2, 9, 32, attn_mask="bool:1,1"), Strides.CONTIGUOUS, Status.INCORRECT),
            "bottom right": (Problem(1, 2, 9, 32, seq_kv=20, causal=True), Strides.CONTIGUOUS, Status.INCORRECT),
        },
    ),
}
FLASH = {"window_size", "softcap", "alibi_slopes", "bottom_right"}
BUGS = [(form, bug) for form, (_, bugs) in FORMS.items() for bug in bugs]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("form", "bug"), BUGS)
def test_a_wrong_function_fails(form: str, bug: str) -> None:
    make, bugs = FORMS[form]
    problem, strides, status = bugs[bug]
    [case] = judge_candidate(make(bug), [CaseSpec(bug, problem, strides=strides)], workers=1, signature=form).cases
    assert case.status == status, case.reason


@pytest.mark.parametrize("form", FORMS)
def test_the_right_function_passes_on_the_same_cases(form: str) -> None:
    make, bugs = FORMS[form]
    specs = [CaseSpec(bug, problem, strides=strides) for bug, (problem, strides, _) in bugs.items()]
    verdict = judge_candidate(make(), specs, workers=1, signature=form)
    assert (verdict.passed, len(verdict.cases)) == (True, len(specs)), verdict.reason


def test_a_stale_block_table_is_found_in_the_next_problem() -> None:
    specs = [CaseSpec(str(length), PAGED.with_(kv_lengths=(50, length, 33))) for length in (0, 20)]
    for bug, count in (("", 2), ("stale block table", 1)):
        cases = judge_candidate(peers.kvcache(bug), specs, workers=1, signature="flash_attn_with_kvcache").cases
        assert sum(case.passed for case in cases) == count


def test_appended_keys_are_missing_from_the_cache_and_named() -> None:
    specs = [CaseSpec("late", DECODE.with_(kv_lengths=(49, 2, 33)), strides=APPENDED)]
    late = judge_candidate(peers.kvcache("appended a row late"), specs, signature="flash_attn_with_kvcache")
    assert "k_cache does not hold the appended k in row 47 of batch entry 0" in late.reason


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_claim_of_a_signature_is_judged(form: str) -> None:
    specs = cases_for("quick", signature=SIGNATURES[form])
    verdict = judge_candidate(FORMS[form][0](), specs, signature=form)
    assert verdict.passed, verdict.reason
    further = {
        "torch": {"attn_mask"},
        "flash_attn_varlen_func": {*FLASH, "varlen", "paged"},
        "flash_attn_with_kvcache": {*FLASH, "kv_lengths", "paged"},
    }
    assert {"GQA", "causal", *further.get(form, FLASH)} <= {*verdict.covers}
    assert (APPENDED.value in {case.run.get("strides") for case in verdict.cases}) == (
        form == "flash_attn_with_kvcache"
    )


def test_cases_that_the_judge_chooses_have_the_alignment_of_the_signature() -> None:
    flash, lab = (cases_for("full", signature=SIGNATURES[name]) for name in ("flash_attn_func", "torch"))
    assert all(spec.problem.with_(bottom_right=True) == spec.problem for spec in flash)
    assert any(spec.problem.with_(bottom_right=True) != spec.problem for spec in lab)
    top_left = CaseSpec("asked", DENSE.with_(bottom_right=False))
    with pytest.raises(UserError, match=r"aligns masks to the last key, and .* to the first: add --bottom-right"):
        judge_candidate(peers.flash(), [top_left], signature="flash_attn_func")


def test_dense_tensors_are_contiguous_in_the_order_of_the_signature() -> None:
    def looks(
        q: Any, k: Any, v: Any, softmax_scale: Any = None, causal: bool = False, deterministic: bool = False
    ) -> Any:
        if q.shape != (2, 20, 4, 32) or not (q.is_contiguous() and k.is_contiguous()) or deterministic:
            raise ValueError(f"{tuple(q.shape)}, {q.stride()}")
        return peers.flash()(q, k, v, softmax_scale=softmax_scale, causal=causal)

    assert judge_candidate(looks, [CaseSpec("case", DENSE)], signature="flash_attn_func").passed


def with_lab_names(q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool, cu_seqlens_q: Any = None) -> Any:
    return q


@pytest.mark.parametrize(
    ("candidate", "name"),
    [
        *((make(), form) for form, (make, _) in FORMS.items()),
        (torch.nn.functional.scaled_dot_product_attention, "torch"),
        (with_lab_names, None),
        ("torch.nn.functional:scaled_dot_product_attention", "torch"),
        ("flash_attn:flash_attn_func", "flash_attn_func"),
        ("flash", None),
        (f"{__file__}:with_lab_names", None),
        (f"{__file__}:test_stale", None),
    ],
)
def test_a_form_is_recognised_by_parameters_or_by_name(candidate: Any, name: str | None) -> None:
    found = signature_of(candidate)
    assert (found and found.name) == name
    assert signature_of(candidate, LAB) is None


def test_a_function_in_a_file_is_recognised_in_its_text(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("raise SystemExit\ndef mine(q, k_cache, v_cache, *, cache_seqlens): pass\n")
    for spec in (file, f"{file}:mine"):
        found = signature_of(str(spec))
        assert found is not None
        assert found.name == "flash_attn_with_kvcache"


def test_an_adapter_claims_what_its_function_has() -> None:
    def few(q: Any, k: Any, v: Any, softmax_scale: Any = None, window_size: Any = None) -> Any:
        return q

    assert set(PeerCall(few, SIGNATURES["flash_attn_func"]).claims) == {
        *("scale", "window_size", "bottom_right", "enable_gqa"),
    }


def test_a_module_is_judged_and_a_wrong_function_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["torch.nn.functional:scaled_dot_product_attention", "--shape", "1,2,20,32", "--only", "causal"]
    assert main(["judge", *words]) == 0, capsys.readouterr().out
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def mine(q, k, v, *, softmax_scale, causal, deterministic=False):\n"
        "    q, k, v = (t.transpose(1, 2) for t in (q, k, v))\n"
        "    f = torch.nn.functional.scaled_dot_product_attention\n"
        "    return f(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True).transpose(1, 2)\n"
    )
    words = [str(tmp_path / "mine.py"), "--shape", "1,2,20,32", "--only", "causal"]
    assert main(["judge", *words]) == 1
    assert "the form flash_attn_func has causal" in capsys.readouterr().out
    assert main(["judge", *words, "--signature", "flash"]) == 2
    assert "--signature is flash_attn_with_kvcache, " in capsys.readouterr().err
    assert main(["judge", "no.such.module:function"]) == 2
    assert "no.such.module does not import" in capsys.readouterr().err
    assert main(["judge", "scalar", "--signature", "torch"]) == 2
    assert "signature torch is that of a function, and scalar is a kernel" in capsys.readouterr().err
