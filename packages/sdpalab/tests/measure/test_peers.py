"""Adapters: which problems each takes, why it is not there, and that it calls its library as that is documented."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from documented_libraries import LIBRARIES
from torch.nn.attention.flex_attention import flex_attention

from sdpalab.errors import UserError
from sdpalab.inputs import make_inputs
from sdpalab.judge.rule.numerics import UNDECLARED
from sdpalab.judge.tensors import from_torch, to_torch
from sdpalab.measure.outputs import Outputs
from sdpalab.measure.peers import PEERS, Peer, TorchSdpa, flex, peers_named, select
from sdpalab.measure.peers.peer import library_missing
from sdpalab.measure.subjects import peer_subject
from sdpalab.problem import MISSION, Problem

BY_NAME = {peer.name: peer for peer in PEERS}
CPU = torch.device("cpu")


def takes(name: str, problem: Problem, arch: int) -> bool:
    return BY_NAME[name].why_not(problem, arch) is None


def test_every_peer_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(PEERS)
    assert list(BY_NAME) == [
        *("torch", "torch flash", "torch cudnn", "torch efficient", "torch math", "flex"),
        *("fa2", "fa3", "fa4", "flashinfer", "sage", "xformers"),
    ]


def test_all_but_the_hopper_ones_take_the_mission_shape_on_an_l4() -> None:
    assert {name for name in BY_NAME if not takes(name, MISSION, 89)} == {"fa3", "fa4"}
    assert all(takes(name, MISSION, 90) for name in BY_NAME)


@pytest.mark.parametrize(
    ("name", "problem", "arch", "reason"),
    [
        ("fa3", MISSION, 89, "fa3 needs sm_90 to sm_90, and this GPU is sm_89"),
        ("torch flash", MISSION, 75, "torch flash needs sm_80 to sm_129, and this GPU is sm_75"),
        ("flashinfer", Problem(1, 8, 64, 32), 90, "flashinfer takes head_dim 64, 128, 256, not 32"),
        ("fa2", Problem(1, 8, 64, 60), 90, "fa2 takes head_dim 8 to 256 in steps of 8, not 60"),
        ("torch math", Problem(1, 1, 16, 2048), 90, "torch math takes head_dim 1 to 1024, not 2048"),
        ("sage", Problem(1, 8, 64, 256), 90, "sage takes head_dim 8 to 128 in steps of 8, not 256"),
        (
            "torch efficient",
            Problem(1, 8, 64, 64, kv_heads=2),
            90,
            "torch efficient needs as many K/V heads as query heads, not 2 for 8",
        ),
        ("xformers", Problem(1, 8, 64, 64, kv_heads=2), 90, "xformers needs as many K/V heads as query heads"),
        (
            "fa2",
            Problem(1, 8, 64, 64, seq_kv=96, causal=True),
            90,
            "fa2 has this causal mask only for equal lengths, not 64 and 96",
        ),
        ("flashinfer", Problem(2, 8, 64, 64), 90, "flashinfer is called for one sequence at a time, not for a batch"),
    ],
)
def test_a_refusal_is_one_sentence(name: str, problem: Problem, arch: int, reason: str) -> None:
    refusal = BY_NAME[name].why_not(problem, arch)
    assert refusal is not None
    assert refusal.startswith(reason)
    assert "\n" not in refusal


def test_selection_has_a_reason_for_every_other_peer() -> None:
    problem = Problem(2, 8, 64, 64, kv_heads=2, causal=True, seq_kv=96)
    chosen = select(problem, 80)
    assert {"torch", "torch math"} <= {peer.name for peer in chosen.peers}
    assert len(chosen.peers) + len(chosen.refused) == len(PEERS)
    for peer in set(PEERS) - set(chosen.peers):
        assert sum(reason.startswith((f"{peer.name} ", f"{peer.name}:")) for reason in chosen.refused)


def test_a_subset_by_name() -> None:
    assert [peer.name for peer in peers_named(["fa3", "torch"])] == ["torch", "fa3"]
    assert peers_named([]) == PEERS
    with pytest.raises(UserError, match="no peer 'fa5'; the peers are torch, torch flash"):
        peers_named(["fa5"])


def test_why_a_library_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "stale_attention.py").write_text("raise RuntimeError('undefined symbol: _ZN3c10')\n")
    (tmp_path / "needy_attention.py").write_text("import a_library_that_is_missing\n")
    missing = {name: library_missing("p", name, f"{name}-pip") for name in ("no_such_attention", "no_such.attention")}
    assert missing == {name: f"p: the package {name}-pip is not installed" for name in missing}
    stale = library_missing("p", "stale_attention", "stale")
    assert stale == "p: stale is installed but does not load (RuntimeError: undefined symbol: _ZN3c10)"
    needy = library_missing("p", "needy_attention", "needy")
    assert needy == "p: needy is installed but lacks a_library_that_is_missing"
    assert library_missing("p", "torch", "torch") is None


def wrong(peer: Peer, problem: Problem) -> str:
    """Verdict of the judge on the peer's output on the CPU; empty if correct."""
    subject = peer_subject(peer, Outputs(problem, make_inputs(problem)), CPU)
    with subject.scope():
        subject.call()
    return subject.check()


@pytest.mark.parametrize("name", ["torch", "torch flash", "torch math"])
@pytest.mark.parametrize(
    "problem",
    [
        Problem(2, 4, 40, 64),
        Problem(1, 4, 24, 32, kv_heads=2, dtype="bfloat16", causal=True, scale=0.3),
        Problem(1, 4, 24, 32, kv_heads=2, causal=True, task="backward"),
    ],
    ids=lambda problem: problem.label,
)
def test_torchs_backends_compute_what_they_are_asked(name: str, problem: Problem) -> None:
    assert wrong(BY_NAME[name], problem) == ""


def test_a_backend_is_the_one_that_is_named() -> None:
    """torch has no cuDNN on a CPU, and must not fall back to what it has."""
    with pytest.raises(RuntimeError, match="kernel"):
        wrong(BY_NAME["torch cudnn"], MISSION.with_(seq_q=16, heads=1))


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_an_adapter_calls_its_library_as_documented(name: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = BY_NAME[name]
    for module in LIBRARIES[name]:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert peer.why_not_there() is None
    batch, kv_heads = (2 if peer.envelope.batches else 1), (2 if peer.envelope.gqa else 4)
    problem = Problem(batch, 4, 24, 64, kv_heads=kv_heads, causal=causal, scale=0.2)
    assert peer.why_not(problem, 90) is None
    assert wrong(peer, problem) == ""
    if not (causal and peer.envelope.causal_square_only):
        assert wrong(peer, problem.with_(seq_kv=40)) == ""


FEATURES = [
    Problem(1, 2, 24, 64, window_size=(6, 3)),
    Problem(1, 4, 24, 64, kv_heads=2, causal=True, window_size=(6, 0), softcap=4.0),
    Problem(2, 2, 24, 64, kv_lengths=(24, 9)),
    Problem(1, 4, 24, 64, alibi_slopes=True, causal=True),
    Problem(2, 2, 24, 64, attn_mask="float:B,H", causal=True),
    Problem(2, 2, 24, 64, attn_mask="bool:B,1", kv_lengths=(24, 20)),
    Problem(1, 4, 24, 64, kv_heads=2, causal=True, window_size=(6, 0), task="backward"),
]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("problem", FEATURES, ids=lambda problem: problem.label)
@pytest.mark.parametrize("name", ["torch", "torch math", "flex", "fa2", "fa3"])
def test_masks_windows_caps_and_lengths_reach_the_library(
    name: str, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = BY_NAME[name]
    for module in LIBRARIES.get(name, ()):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(flex, "_compiled", lambda: flex_attention)  # which computes the same, and needs no GPU
    lacking = set(problem.features) - set(peer.envelope.features)
    if lacking:
        refusal = peer.why_not(problem, 90)
        assert refusal is not None
        assert refusal.startswith(f"{name} is called without")
        assert all(each in refusal for each in lacking)
        return
    assert peer.why_not(problem, 90) is None
    outcome = wrong(peer, problem)
    if problem.mask_form is not None and name != "flex":  # torch has NaN where a row sees no key
        assert outcome == "" or outcome.startswith("NOT_FINITE")
    else:
        assert outcome == ""


def test_an_adapter_that_drops_a_window_is_wrong() -> None:
    peer = TorchSdpa("torch", None, BY_NAME["torch"].envelope)
    problem = FEATURES[0]
    outputs = Outputs(problem, make_inputs(problem))
    call = peer.prepared(problem.with_(window_size=None), outputs.inputs, *map(to_torch, outputs.inputs.qkv))
    assert "INCORRECT" in outputs.wrong({"o": from_torch(call())}, UNDECLARED)


def test_the_rule_finds_a_wrong_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Premise of the tests above: a mask at the other corner, or a scale that is dropped, is seen."""
    for module in LIBRARIES["fa2"]:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert "INCORRECT" in wrong(BY_NAME["fa2"], Problem(1, 2, 24, 64, seq_kv=40, causal=True))

    class Unscaled(TorchSdpa):
        def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool) -> torch.Tensor:
            return super().run(q, k, v, scale=1.0, causal=causal)

    assert "INCORRECT" in wrong(Unscaled("unscaled", None, BY_NAME["torch"].envelope), Problem(1, 2, 24, 64))
