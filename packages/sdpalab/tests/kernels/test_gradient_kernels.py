"""The kernels of gradients: right on every feature, in every order of their warps, written to the last row; the
historical bugs of the field, planted in their sources, are found."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from checking import assert_computes, assert_gate, assert_same_bits_in_every_order, judged, run

from sdpalab.bugs.edit import SourceEdit
from sdpalab.inputs import loud_padding, make_inputs
from sdpalab.judge.sanitize import sanitize_kernel
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Config, CudaKernel
from sdpalab.kernels.registry import GRADIENT_KERNELS
from sdpalab.problem import Problem
from sdpalab.run import SimulatedExecutor
from warpsan.sanitize.sanitizer import Modes

EACH = pytest.mark.parametrize("kernel", list(GRADIENT_KERNELS.values()), ids=list(GRADIENT_KERNELS))
PLAIN = Problem(1, 2, 150, 64, kv_heads=1, seq_kv=170, task="backward")
CAUSAL = PLAIN.with_(causal=True)
CORNER = CAUSAL.with_(bottom_right=True)
WINDOW = Problem(1, 1, 200, 64, window_size=(65, 1), task="backward")  # one key past a tile, and one key
CAPPED = Problem(1, 1, 100, 64, softcap=2.0, causal=True, task="backward")  # small against the scores
LENGTHS = Problem(2, 2, 140, 64, kv_heads=1, q_lengths=(140, 30), kv_lengths=(50, 140), task="backward")
EMPTY = LENGTHS.with_(q_lengths=(0, 140), kv_lengths=(70, 0))
ALIBI = Problem(1, 2, 100, 64, alibi_slopes=True, task="backward")
MASKED = Problem(2, 2, 70, 64, attn_mask="float:B,H", task="backward")
TILES = Problem(1, 1, 64, 64, seq_kv=200, task="backward")
LATE = Problem(1, 1, 40, 64, seq_kv=200, causal=True, task="backward")  # keys from 40 on have no query
WIDE = (PLAIN.with_(head_dim=96, dtype="bfloat16"), CORNER.with_(head_dim=128))
PROBLEMS = (
    *(PLAIN, CAUSAL, CORNER, WINDOW, CAPPED, LENGTHS, EMPTY, ALIBI, MASKED, LATE, *WIDE),
    LENGTHS.with_(causal=True, bottom_right=True, alibi_slopes=True, dtype="bfloat16"),
    CORNER.with_(seq_q=180, seq_kv=90, softcap=9.0),  # the first rows see no key
    MASKED.with_(attn_mask="bool:1,H", sinks=True, scale=-0.1),
)


@pytest.mark.sample(4)
@EACH
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
@pytest.mark.parametrize("kind", ["normal", "negative", "forbidden"])
def test_it_computes(kernel: CudaKernel, problem: Problem, kind: str) -> None:
    assert_computes(kernel, problem, kind=kind)


@pytest.mark.sample(2)
@EACH
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("number", [1, 2])
def test_every_configuration_computes(kernel: CudaKernel, head_dim: int, number: int) -> None:
    problem, config = CORNER.with_(head_dim=head_dim, window_size=(70, 0)), Config(kernel.configs[number])
    if kernel.why_not(problem, config) is None:
        assert_computes(kernel, problem, config)
    else:
        assert head_dim > 64


@pytest.mark.sample(1)
@EACH
@pytest.mark.parametrize("head_dim", [64, 128])
def test_every_order_gives_the_same_bits_and_no_hazard(kernel: CudaKernel, head_dim: int) -> None:
    assert_same_bits_in_every_order(kernel, Problem(1, 2, 70, head_dim, kv_heads=1, seq_kv=150, task="backward"))


@EACH
@pytest.mark.parametrize("problem", [LENGTHS, EMPTY], ids=lambda problem: problem.label)
def test_padding_gets_zeros_and_is_not_read(kernel: CudaKernel, problem: Problem) -> None:
    inputs = make_inputs(problem)
    clean = run(kernel, problem, inputs=inputs)
    assert clean.hazards == ()
    lengths = {"dq": problem.q_lengths, "dk": problem.kv_lengths, "dv": problem.kv_lengths}
    for name, of_entries in lengths.items():
        assert of_entries is not None
        for b, length in enumerate(of_entries):
            assert not clean.outputs[name][b, :, length:].any(), (name, b)
    loud = SimulatedExecutor(kernel.default_arch).run(kernel.launch_plan(problem), loud_padding(inputs.arrays))
    for name, out in loud.outputs.items():
        assert out.tobytes() == clean.outputs[name].tobytes(), name


@pytest.mark.sample(2)
@EACH
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "sm_120"])
@pytest.mark.parametrize(
    "problem",
    [*(PLAIN.with_(head_dim=dim, causal=True) for dim in (64, 96, 128)), MASKED.with_(softcap=9.0), CAPPED],
    ids=lambda problem: problem.label,
)
def test_nothing_spills(kernel: CudaKernel, problem: Problem, arch: str) -> None:
    for config in map(Config, kernel.configs):
        if kernel.why_not(problem, config) is None:
            assert_gate(kernel, problem, config, arch=arch)


@dataclass(frozen=True)
class Planted:
    """An edit of the sources that every kernel of gradients has, and a problem on which it shows."""

    what: str
    edit: tuple[str, str]
    problem: Problem
    kind: str = "normal"
    hazard: str = ""


LOOP = "        ptx::cp_async_wait_group<0>();\n        __syncthreads();\n        load(stage ^ 1);"
PLANTED = (
    Planted("padded keys score 0 against a small LSE", ("!ATTN_MASK && whole &&", "!ATTN_MASK &&"), PLAIN, "negative"),
    Planted(
        "no edge on the right", ("return of_keys.end <= end_key(of_queries.first + ahead, keys) &&", "return"), CAUSAL
    ),
    Planted("no factor of the soft cap", ("ds *= slope_of_cap;", ""), CAPPED),
    Planted("the soft cap's factor of the capped score", ("capped(score.x);", "capped(capped(score.x).x);"), CAPPED),
    Planted(
        "LSE and delta of the first tile",
        ("source[static_cast<long long>(load_head) * stream_seq + row +", "source[(long long)load_head * stream_seq +"),
        CAUSAL,
    ),
    Planted("one head of a group", ("(OWNS_KEYS ? group : 1)", "1"), PLAIN),
    Planted("LSE in base 2", ("valid && lse != NEGATIVE_INFINITY ? -lse", "valid ? -lse * LN_2"), PLAIN),
    Planted(
        "LSE of a row without keys",
        ("valid && lse != NEGATIVE_INFINITY ?", "valid ?"),
        MASKED,
        "hidden_rows",
    ),
    Planted("the sign of ALiBi", ("score.x -= slope", "score.x += slope"), ALIBI),
    Planted("the last query of a window", ("last + WINDOW_LEFT - ahead + 1", "last + WINDOW_LEFT - ahead"), WINDOW),
    Planted("the causal corner", ("ahead(BOTTOM_RIGHT ? keys - queries : 0)", "ahead(0)"), CORNER),
    Planted(
        "delta of dO alone",
        ("const uint4 a = reinterpret_cast<const uint4*>(o +", "const uint4 a = reinterpret_cast<const uint4*>(dout +"),
        PLAIN,
    ),
    Planted(
        "the mask of the first head",
        ("scores.mask = mask_of_head(tensors, q_head);", "scores.mask = mask_of_head(tensors, 0);"),
        MASKED,
    ),
    Planted(
        "a tile is not waited for", (LOOP, LOOP.replace("ptx::cp_async_wait_group<0>();", "")), PLAIN, hazard="async"
    ),
    Planted("no barrier after a tile's copy", (LOOP, LOOP.replace("__syncthreads();", "")), TILES, hazard="race"),
    Planted(
        "no wait for the owned tile",
        ("ptx::cp_async_wait_group<1>();\n    __syncthreads();", "__syncthreads();"),
        PLAIN,
        hazard="async",
    ),
    Planted(
        "no barrier before the results", ("__syncthreads();  // the results", "// the results"), PLAIN, hazard="race"
    ),
    Planted(
        "the statistics of the stage in use are replaced",
        ("keep_statistic(stage ^ 1);", "keep_statistic(stage);"),
        PLAIN,
        hazard="race",
    ),
    Planted(
        "no barrier of the warp before a result is stored",
        ("    __syncwarp();\n#pragma unroll\n    for (int first_row", "#pragma unroll\n    for (int first_row"),
        PLAIN,
        hazard="lane-race",
    ),
)


@pytest.mark.sample(4)
@EACH
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.what)
def test_a_planted_bug_is_found(kernel: CudaKernel, planted: Planted) -> None:
    mutant = SourceEdit(kernel.name, (planted.edit,)).apply()
    if planted.hazard:
        modes = Modes(schedules=("lockstep", "reverse"), async_modes=("late",))
        found = sanitize_kernel(mutant, [planted.problem], modes=modes)
        assert planted.hazard in {hazard.kind for hazard in found.hazards}
        return
    result = run(mutant, planted.problem, kind=planted.kind)
    evidence = judged(mutant, planted.problem, result, kind=planted.kind)
    assert evidence.status in (Status.INCORRECT, Status.NOT_FINITE)
