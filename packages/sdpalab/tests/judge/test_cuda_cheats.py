"""Kernels whose Python cheats: the PTX computed the output, whatever became of the process that made the plan."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
from cuda_cheats import CATALOGUE, FIRST_QUERIES

from sdpalab.judge import Case, CaseSpec, Status, judge_candidate
from sdpalab.problem import Problem

FILE = Path(__file__).parent / "cuda_cheats.py"
HONEST = Path(__file__).parent / "cuda_candidates.py"
ONE = CaseSpec("one", Problem(1, 1, 9, 32, seq_kv=96))


def judged(spec: str) -> Case:
    (case,) = judge_candidate(spec, [ONE]).cases
    return case


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    """One judgement of the whole catalogue, in order, by one worker."""
    specs = [CaseSpec(name, Problem(1, 1, FIRST_QUERIES + n, 32, seq_kv=96)) for n, name in enumerate(CATALOGUE)]
    return {case.name: case for case in judge_candidate(f"{FILE}:catalogue", specs, workers=1).cases}


EXPECTED = {
    "honest": (Status.PASSED, ""),
    "too_much_shared": (Status.HAZARD, r"needs 120000 bytes of shared memory, .* at most 101376"),
    "too_many_threads": (Status.HAZARD, "block.x must be 1 to 1024, not 2048"),
    "needs_memory": (Status.BUILD_FAILED, r"needs 27\d+ bytes of buffers, and at most \d+ are given"),
    "half_sums": (Status.INCORRECT, "relative L2"),
    "weights_in_five_bits": (Status.INCORRECT, "relative L2"),
    "known_length": (Status.INCORRECT, "relative L2"),
    "one_value_off": (Status.INCORRECT, r"worst row \(b=0, h=0, i=7\)"),
    "no_plan": (Status.BUILD_FAILED, "the launch plan is malformed: Invalid JSON"),
    "no_fields": (Status.BUILD_FAILED, "the launch plan is malformed: steps.0.launch.grid"),
    "output_is_an_input": (Status.BUILD_FAILED, "does not begin with the buffers of"),
    "no_launch": (Status.BUILD_FAILED, "the launch plan is malformed: steps"),
    "brings_its_answers": (Status.BUILD_FAILED, "a further buffer of a launch plan is a workspace"),
    "hides_hazards": (Status.HAZARD, "out-of-bounds"),
    "computes_on_the_host": (Status.NOT_FINITE, "poison"),
    "honest_after_them_all": (Status.PASSED, ""),
}


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_cheat_has_its_status(cases: dict[str, Case], name: str) -> None:
    case, (status, words) = cases[name], EXPECTED[name]
    assert case.status is status, case.reason
    assert re.search(words, case.reason)


def test_who_comes_after_them_is_judged_as_if_alone(cases: dict[str, Case]) -> None:
    case = cases["honest_after_them_all"]
    (alone,) = judge_candidate(f"{HONEST}:no_lse", [CaseSpec(case.name, case.problem)]).cases
    assert (case.status, case.errors, case.limits) == (alone.status, alone.errors, alone.limits)
    assert case.digests == alone.digests
    assert case.run["ptx_sha256"] == alone.run["ptx_sha256"]


WRITES_TO_CACHES = """
import contextlib, hashlib, os
from pathlib import Path
from cuda_candidates import right

DONE = 0
for entry in Path({cache!r}).glob("one_row-*"):
    with contextlib.suppress(OSError):
        ptx = (entry / "kernel.ptx").read_bytes().replace(b"ex2.approx", b"sqrt.approx")
        (entry / "kernel.ptx").write_bytes(ptx)
        sums = (entry / "SHA256SUMS").read_text().splitlines()
        key, names = sums[0], [line.split()[1] for line in sums[1:]]
        lines = [f"{{hashlib.sha256((entry / name).read_bytes()).hexdigest()}}  {{name}}" for name in names]
        (entry / "SHA256SUMS").write_text("\\n".join([key, *lines]) + "\\n")
        DONE += 1

def forges(q, k, v, *, scale, causal):
    raise ValueError(f"forged {{DONE}}")

def removes(q, k, v, *, scale, causal):
    removed = 0
    for path in Path({cache!r}).rglob("kernel.ptx"):
        with contextlib.suppress(OSError):
            path.chmod(0)
            path.unlink()
            removed += 1
    raise ValueError(f"removed {{removed}}")
"""


@pytest.fixture
def writes_to_caches(tmp_path: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A candidate that finds the user's cache, and forges what is in it, digests and all."""
    monkeypatch.syspath_prepend(str(FILE.parent))
    file = tmp_path / "writes_to_caches.py"
    file.write_text(WRITES_TO_CACHES.format(cache=str(fresh_cache)))
    return file


@pytest.mark.slow
@pytest.mark.parametrize(("name", "words"), [("forges", "forged 0"), ("removes", "removed 0")])
def test_a_candidate_cannot_reach_the_build_of_another(
    writes_to_caches: Path, namespaces: None, name: str, words: str
) -> None:
    honest = judged(f"{HONEST}:right")
    assert honest.status is Status.PASSED
    assert words in judged(f"{writes_to_caches}:{name}").reason
    assert judged(f"{HONEST}:right") == honest
    assert all(stat.S_IMODE(os.stat(path).st_mode) for path in writes_to_caches.parent.rglob("kernel.ptx"))


@pytest.mark.slow
def test_without_namespaces_no_verdict_rests_on_the_cache(writes_to_caches: Path, unconfined: None) -> None:
    from sdpalab.compile import build
    from sdpalab.kernels.userfile import load_user_kernel

    kernel = load_user_kernel(f"{HONEST}:right")
    module = kernel.launch_plan(ONE.problem).steps[0].module
    before = build(module)
    assert "forged 1" in judged(f"{writes_to_caches}:forges").reason
    assert build(module).ptx != before.ptx
    case = judged(f"{HONEST}:right")
    assert case.status is Status.PASSED
    assert case.run["ptx_sha256"] == [before.ptx_sha256]
