"""``sanitize``: shipped kernels, small problems, bare PTX, and SARIF."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sdpalab.bugs import SourceEdit, replace_once
from sdpalab.compile import build
from sdpalab.errors import UserError
from sdpalab.judge.sanitize import sanitize_kernel, small_problems
from sdpalab.kernels.flash import FLASH
from sdpalab.kernels.hopper_backward import HOPPER_BACKWARD
from sdpalab.kernels.kernel import CudaKernel
from sdpalab.kernels.plan import HEADER_FOLDERS, INCLUDE_DIR, Launch, Module
from sdpalab.kernels.registry import KERNELS, needs
from sdpalab.problem import Problem
from warpsan.report.explanations import EXPLANATIONS
from warpsan.report.hazards import KINDS
from warpsan.report.sarif import to_sarif
from warpsan.sanitize.case import PtxCase, read_case
from warpsan.sanitize.json_fields import read_fields
from warpsan.sanitize.launch_file import LaunchFile
from warpsan.sanitize.sanitizer import Modes, Sanitized, sanitize_case

ROOT = Path(__file__).resolve().parents[4]
LOCKSTEP = Modes(schedules=("lockstep",), async_modes=("late",))
SMALL = [Problem(1, 1, 40, 64, seq_kv=150)]


def kinds(outcome: Sanitized) -> set[str]:
    return {hazard.kind for hazard in outcome.hazards}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", KERNELS)
def test_shipped_kernels_are_clean(name: str) -> None:
    if (why := needs(name)) is not None:
        pytest.skip(why)
    kernel = KERNELS[name]
    problems = [Problem(1, 1, 20, head_dim, seq_kv=70) for head_dim in (32, 64)]
    problem = next(problem for problem in problems if kernel.why_not(problem) is None)
    assert sanitize_kernel(kernel, [problem], modes=Modes(strict=True)).hazards == ()


def test_a_lost_warp_barrier_is_reported() -> None:
    lost = "        __syncwarp();\n\n        const int col0"
    broken = SourceEdit("wmma", ((lost, "        const int col0"),)).apply()
    assert kinds(sanitize_kernel(broken, SMALL, modes=LOCKSTEP)) == {"lane-race"}


def test_small_problems_have_one_an_even_an_odd_and_a_ragged_number_of_tiles() -> None:
    flash = KERNELS["flash"]
    config = flash.default_config.but(BLOCK_N=32, NUM_STAGES=3)
    problems = small_problems(flash, config)
    assert [problem.seq_kv for problem in problems] == [32, 96, 128, 217, 224, 121]
    assert [problem.causal for problem in problems] == [False] * 5 + [True]
    assert [problem.seq_q % 64 == 0 for problem in problems] == [False] * 4 + [True, False]
    assert all(problem.causal for problem in small_problems(flash, config, causal=True))
    assert {problem.dtype for problem in small_problems(flash, dtype="bfloat16")} == {"bfloat16"}
    of_gradients = small_problems(HOPPER_BACKWARD, HOPPER_BACKWARD.default_config.but(STREAM=128))
    assert max(problem.seq_q for problem in of_gradients) == 5 * 128 - 7  # two stages, twice and a ragged tile
    only_32 = replace(flash, supports=lambda problem: None if problem.head_dim == 32 else "head_dim must be 32")
    assert {problem.head_dim for problem in small_problems(only_32)} == {32}
    with pytest.raises(UserError, match=r"no small problem suits flash: no luck; give a --shape"):
        small_problems(replace(flash, supports=lambda problem: "no luck"))


def test_a_kernel_for_later_architectures_is_built_for_its_own() -> None:
    assert KERNELS["flash"].default_arch == "sm_89"
    later = replace(toy('asm volatile("fence.proxy.async;");'), min_arch=90)
    assert later.default_arch == "sm_90"
    alone = replace(later, only_arch="sm_90a")
    assert alone.default_arch == "sm_90a"
    assert [sanitize_kernel(kernel, TINY, modes=LOCKSTEP).device for kernel in (later, alone)] == [
        "simulator sm_90",
        "simulator sm_90a",
    ]


def test_async_modes_count_only_where_there_are_asynchronous_instructions() -> None:
    modes = Modes(schedules=("lockstep",))
    assert len(sanitize_kernel(KERNELS["flash"], [Problem(1, 1, 64, 32)], modes=modes).runs) == 2
    assert len(sanitize_kernel(KERNELS["scalar"], [Problem(1, 1, 32, 32)], modes=modes).runs) == 1


def toy(body: str, name: str = "toy") -> CudaKernel:
    """A kernel of two warps that computes nothing."""
    parameters = "const unsigned *q, const unsigned *k, const unsigned *v, unsigned *o"
    return CudaKernel(
        name,
        f'extern "C" __global__ void toy({parameters}) {{\n{body}\n}}',
        "toy",
        lambda problem, config: Launch((1, 1, 1), (64, 1, 1), ("q", "k", "v", "o")),
    )


RACY = "__shared__ unsigned x[64];\nx[threadIdx.x] = threadIdx.x;\no[threadIdx.x] = x[63 - threadIdx.x];"
TINY = [Problem(1, 1, 16, 16)]


def test_findings_are_distinct_and_say_which_runs_showed_them() -> None:
    outcome = sanitize_kernel(toy(RACY), [*TINY, Problem(1, 1, 32, 16)])
    keys = [(hazard.kind, hazard.ptx_line) for hazard in outcome.hazards]
    assert len(set(keys)) == len(keys)
    assert len(outcome.runs) == 8
    race = max((hazard for hazard in outcome.hazards if hazard.kind == "race"), key=lambda each: len(each.runs))
    assert {run.split(", ")[0] for run in race.runs} == {"1x1x16x16", "1x1x32x16"}
    assert {run.split(", ")[1] for run in race.runs} == {"lockstep", "forward", "reverse", "random"}
    # both accesses: the other's instruction, warp and line, and the own
    assert "st.shared.u32 of warp" in race.message or "ld.shared.u32 of warp" in race.message
    assert race.message.count("toy.cu:") == 2
    assert race.other is not None
    written = json.loads(json.dumps(race.to_dict()))["other"]
    assert (written["text"], written["block"]) == (race.other.text, [0, 0, 0])
    assert written["ptx_line"] != race.ptx_line


def test_a_deadlock_and_an_endless_loop_are_findings() -> None:
    stuck = 'if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;"); else asm volatile("bar.sync 2, 64;");'
    (deadlock,) = sanitize_kernel(toy(stuck), TINY, modes=LOCKSTEP).hazards
    assert (deadlock.kind, deadlock.source) == ("deadlock", "toy.cu:2")
    assert "32 of 64 threads" in deadlock.message
    polling = "while (*(volatile unsigned *)o != 3) { }"
    hazards = sanitize_kernel(toy(polling), TINY, modes=LOCKSTEP).hazards
    assert {hazard.kind for hazard in hazards} == {"deadlock", "uninitialised"}  # nobody has written the output
    endless = 'while (true) asm volatile("");'
    (hazard,) = sanitize_kernel(toy(endless), TINY, modes=replace(LOCKSTEP, max_steps=1000)).hazards
    assert hazard.kind == "endless"
    assert hazard.ptx_line > 0


def test_what_was_found_before_a_deadlock_is_reported_beside_it() -> None:
    racy = "__shared__ unsigned x[1]; x[0] = threadIdx.x / 32;\n"
    stuck = 'if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;"); else asm volatile("bar.sync 2, 64;");\no[0] = x[0];'
    outcome = sanitize_kernel(toy(racy + stuck), TINY)
    assert kinds(outcome) == {"race", "deadlock"}
    assert {len(hazard.runs) for hazard in outcome.hazards} == {4}
    (trap,) = sanitize_kernel(toy("if (threadIdx.x == 40) __trap();"), TINY, modes=LOCKSTEP).hazards
    assert (trap.kind, trap.source) == ("trap", "toy.cu:2")
    assert "thread (40, 0, 0)" in trap.message


def test_what_cannot_run_is_bad_input() -> None:
    with pytest.raises(UserError, match=r"toy: PTX line \d+: .*stacksave"):
        sanitize_kernel(toy('asm volatile("{.reg .u64 s; stacksave.u64 s;}");'), TINY, modes=LOCKSTEP)
    wrong = replace(toy(RACY), plan=lambda problem, config: Launch((1, 1, 1), (64, 1, 1), ("q",)))
    with pytest.raises(UserError, match="takes 4 arguments"):
        sanitize_kernel(wrong, TINY, modes=LOCKSTEP)


# ---- bare PTX --------------------------------------------------------------------------------------------------------

SAXPY = """extern "C" __global__ void saxpy(const float *x, float *y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
"""
ARGS: list[Any] = [{"dtype": "float32", "shape": [100]}, {"dtype": "float32", "shape": 100, "init": "poison"}, 2.0, 100]


@pytest.fixture(scope="module")
def saxpy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ptx") / "saxpy.ptx"
    path.write_bytes(build(Module("saxpy.cu", SAXPY, "saxpy")).ptx)
    return path


def described(folder: Path, **changes: Any) -> Path:
    facts = {"grid": 2, "block": [64], "args": ARGS, **changes}
    path = folder / "launch.json"
    path.write_text(json.dumps({key: value for key, value in facts.items() if value is not None}))
    return path


def test_bare_ptx_runs_by_its_description(saxpy: Path, tmp_path: Path) -> None:
    case = read_case(saxpy, described(tmp_path))
    assert case.entries == ("saxpy",)
    outcome = sanitize_case(case)
    assert outcome.clean
    assert len(outcome.runs) == 4
    (beyond,) = sanitize_case(read_case(saxpy, described(tmp_path, args=[*ARGS[:3], 101])), LOCKSTEP).hazards[:1]
    assert (beyond.kind, beyond.ptx, beyond.source) == ("out-of-bounds", "saxpy.ptx", "saxpy.cu:3")


BAD_LAUNCHES: list[tuple[dict[str, Any], str]] = [
    ({"args": None}, "a launch needs 'args'"),
    ({"blocks": 3}, "there is no 'blocks' in a launch file; it has .*entry, grid"),
    ({"block": [64, 0]}, "block.*greater than or equal to 1, not 0"),
    ({"grid": 2.5}, "grid: cannot be 2.5"),
    ({"dynamic_smem": -1}, "dynamic_smem: should be greater than or equal to 0, not -1"),
    ({"args": 3}, "args: should be a list, not 3"),
    ({"args": [{"shape": [3]}]}, "argument 1: a buffer has 'dtype' and 'shape', a 'file'"),
    ({"args": [{"dtype": "float12", "shape": [3]}]}, "'float12' is neither"),
    ({"args": [{"dtype": "float32", "shape": [3], "init": "sevens"}]}, 'init.*"normal", "zeros"'),
    ({"args": [{"dtype": "float32", "shape": [1 << 20, 1 << 20]}]}, "and at most 1073741824 are allowed"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_LAUNCHES, ids=[message for _, message in BAD_LAUNCHES])
def test_bad_descriptions_are_refused(saxpy: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_case(saxpy, described(tmp_path, **changes))
    assert "launch.json" in str(caught.value)


def test_bad_ptx_and_bad_launches_are_refused(saxpy: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no entry 'daxpy'"):
        sanitize_case(read_case(saxpy, described(tmp_path, entry="daxpy")))
    with pytest.raises(UserError, match="takes 4 arguments, and 1 were given"):
        sanitize_case(read_case(saxpy, described(tmp_path, args=[1])))
    broken = tmp_path / "broken.ptx"
    broken.write_text(replace_once(saxpy.read_text(), ("mul.f32", "mul.wobble.f32")))
    with pytest.raises(UserError, match=r"broken\.ptx: PTX line \d+: .*wobble"):
        sanitize_case(read_case(broken, described(tmp_path)))
    with pytest.raises(UserError, match=r"gone\.ptx cannot be read"):
        read_case(tmp_path / "gone.ptx", described(tmp_path))
    (tmp_path / "bad.json").write_text("{grid: 1}")
    with pytest.raises(UserError, match=r"bad\.json is not JSON: .* \(line 1\)"):
        read_case(saxpy, tmp_path / "bad.json")


# ---- SARIF -----------------------------------------------------------------------------------------------------------


def check_sarif(log: dict[str, Any]) -> list[dict[str, Any]]:
    """Check of such a log against SARIF 2.1.0 (sections 3.13 to 3.30); its results."""
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert all(rule[part]["text"] for part in ("shortDescription", "fullDescription", "help"))
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] == "error"
        assert result["message"]["text"]
        assert len(result["locations"]) == 1
        for location in (*result["locations"], *result.get("relatedLocations", [])):
            place = location["physicalLocation"]
            assert place["region"]["startLine"] >= 1
            assert not place["artifactLocation"]["uri"].startswith("/")
            assert "\\" not in place["artifactLocation"]["uri"]
    json.dumps(log, allow_nan=False)
    return list(run["results"])


def test_sarif_of_findings_in_cuda_sources(tmp_path: Path) -> None:
    header = tmp_path / "mainloop" / "warps.cuh"
    header.parent.mkdir()
    edit = ("cp_async_wait_group<STAGES - 2>", "cp_async_wait_group<STAGES - 1>")
    header.write_text(replace_once((INCLUDE_DIR / "mainloop" / "warps.cuh").read_text(), edit))
    outcome = sanitize_kernel(replace(FLASH, include_dirs=[tmp_path]), SMALL, modes=LOCKSTEP)
    kernels = ROOT / "src/sdpalab/kernels"
    log = to_sarif(outcome, version="1", root=ROOT, directories=[kernels, *HEADER_FOLDERS])
    results = check_sarif(log)
    assert len(results) == len(outcome.groups) < len(outcome.hazards)
    groups = {group.message: group for group in outcome.groups}
    for result in results:
        group = groups[result["message"]["text"]]
        at, *related = [
            f"{place['physicalLocation']['artifactLocation']['uri'].rpartition('/')[2]}"
            f":{place['physicalLocation']['region']['startLine']}"
            for place in (*result["locations"], *result["relatedLocations"])
        ]
        assert at == group.here.place
        assert group.instructions[0] in related
        assert {frame.rpartition(":")[0] for frame in group.here.frames} <= {at, *related}
        if group.other is not None:
            assert group.other.place in related
            texts = [place["message"]["text"] for place in result["relatedLocations"]]
            assert any(f"the conflicting access, {group.other.text}, in the source" == text for text in texts)
    uris = {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results}
    assert "packages/sdpalab/src/sdpalab/kernels/include/tile/warp_products.cuh" in uris
    assert len({result["partialFingerprints"]["kindAndLines/v2"] for result in results}) == len(results)
    elsewhere = to_sarif(
        outcome, version="1", root=ROOT / "packages" / "sdpalab" / "tests", directories=[kernels, *HEADER_FOLDERS]
    )
    assert "offsets.cuh" in json.dumps(elsewhere)
    assert "src/" not in json.dumps(elsewhere)


def test_a_fingerprint_outlives_an_edit_elsewhere_and_not_one_of_its_line() -> None:
    def fingerprints(body: str) -> set[str]:
        results = check_sarif(to_sarif(sanitize_kernel(toy(body), TINY, modes=LOCKSTEP), version="1", root=ROOT))
        assert results
        return {result["partialFingerprints"]["kindAndLines/v2"] for result in results}

    first = fingerprints(RACY)
    assert fingerprints(f"// a comment\n\nunsigned unrelated = 3;\n{RACY}") == first
    assert not fingerprints(RACY.replace("63 -", "62 -")) & first
    again = RACY.replace("unsigned x", "unsigned y").replace("= x[", "= y[").replace("\nx[", "\ny[")
    assert len(fingerprints(f"{RACY}\n{again.replace('o[threadIdx.x]', 'o[threadIdx.x + 64]')}")) > len(first)


def test_sarif_of_a_deadlock_without_lines_and_of_nothing() -> None:
    ptx = (
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry k()\n{\n.reg .pred %p;\n.reg .b32 %t;\n"
        "mov.u32 %t, %tid.x;\nsetp.lt.u32 %p, %t, 32;\n@%p bar.sync 1, 64;\n@!%p bar.sync 2, 64;\nret;\n}\n"
    )
    facts = {"launches": [{"grid": 1, "block": 64, "args": []}]}
    outcome = sanitize_case(PtxCase("hand.ptx", ptx, read_fields(LaunchFile, facts), Path()), LOCKSTEP)
    (result,) = check_sarif(to_sarif(outcome, version="1", root=ROOT))
    assert result["ruleId"] == "deadlock"
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "hand.ptx"
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] in (10, 11)
    nothing = Sanitized("x", "", "simulator", (), (), (), ())
    assert check_sarif(to_sarif(nothing, version="1", root=ROOT)) == []


def test_every_kind_of_finding_has_a_rule_and_no_other_has() -> None:
    assert set(EXPLANATIONS) == KINDS | {"deadlock", "endless", "trap", "result"}
