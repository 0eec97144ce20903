"""The kernels of gradients: right on every feature, in every order of their warps, written to the last row; the
historical bugs of the field, planted in their sources, are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from checking import assert_computes, assert_gate, assert_same_bits_in_every_order, judged, run

from sdpalab.bugs.edit import SourceEdit
from sdpalab.inputs import loud_padding, make_inputs
from sdpalab.judge.sanitize import sanitize_kernel
from sdpalab.judge.verdict import Status
from sdpalab.kernels.hopper_backward import HOPPER_BACKWARD
from sdpalab.kernels.kernel import Config, CudaKernel
from sdpalab.kernels.registry import GRADIENT_KERNELS
from sdpalab.problem import Problem
from sdpalab.run import SimulatedExecutor
from warpsan.sanitize.sanitizer import Modes

ARCHS = ("sm_80", "sm_89", "sm_90", "sm_120")
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
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize(
    ("kernel", "number"),
    [(kernel, number) for kernel in GRADIENT_KERNELS.values() for number in range(1, len(kernel.configs))],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_every_configuration_computes(kernel: CudaKernel, number: int, head_dim: int) -> None:
    problem, config = CORNER.with_(head_dim=head_dim, window_size=(70, 0)), Config(kernel.configs[number])
    if kernel.why_not(problem, config) is None:
        assert_computes(kernel, problem, config)
    else:
        assert head_dim > 64


@pytest.mark.sample(1)
@EACH
@pytest.mark.parametrize("head_dim", [64, 128])
def test_every_order_gives_the_same_bits_and_no_hazard(kernel: CudaKernel, head_dim: int) -> None:
    problem = Problem(1, 2, 70, head_dim, kv_heads=1, seq_kv=150, task="backward")
    ordered = {"DETERMINISTIC": 1} if "DETERMINISTIC" in kernel.default_config else {}
    assert_same_bits_in_every_order(kernel, problem, kernel.default_config.but(**ordered))


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
@pytest.mark.parametrize(
    ("kernel", "arch"),
    [
        (kernel, arch)
        for kernel in GRADIENT_KERNELS.values()
        for arch in ((kernel.only_arch,) if kernel.only_arch else ARCHS)
    ],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize(
    "problem",
    [*(PLAIN.with_(head_dim=dim, causal=True) for dim in (64, 96, 128)), MASKED.with_(softcap=9.0), CAPPED],
    ids=lambda problem: problem.label,
)
def test_nothing_spills(kernel: CudaKernel, problem: Problem, arch: str) -> None:
    for config in map(Config, kernel.configs):
        if kernel.why_not(problem, config) is None:
            assert_gate(kernel, problem, config, arch=arch)


class Planted(NamedTuple):
    """A bug in every kernel of gradients, and a problem on which it shows.

    ``edits`` are in the words of each main loop; the one whose text a kernel's source has once is planted.
    """

    what: str
    problem: Problem
    edits: Sequence[tuple[str, str]]
    kind: str = "normal"
    hazard: str = ""

    def in_(self, kernel: CudaKernel) -> CudaKernel:
        for edit in self.edits[:-1]:
            try:
                return SourceEdit(kernel.name, (edit,)).apply()
            except ValueError:
                continue
        return SourceEdit(kernel.name, (self.edits[-1],)).apply()


LOOPS = [
    f"        ptx::cp_async_wait_group<0>();\n        __syncthreads();\n        {load}"
    for load in ("load(stage ^ 1);", "if (tiles_left > 1) {")
]
MASKS_HIDE = "return of_keys.end <= end_key(of_queries.first + ahead, keys) &&"
DELTA = "const uint4 a = reinterpret_cast<const uint4*>("
PLANTED = (
    Planted("padded keys score 0", PLAIN, [(MASKS_HIDE, "return")], "negative"),
    Planted("no edge on the right", CAUSAL, [(MASKS_HIDE, "return")]),
    Planted("no factor of the soft cap", CAPPED, [("gradient[i] *= slopes[at + i];", ""), ("ds *= slope_of_cap;", "")]),
    Planted("the factor of the capped score", CAPPED, [("capped(score.x);", "capped(capped(score.x).x);")]),
    Planted(
        "statistics of the first tile",
        CAUSAL,
        [
            ("statistics + tile * (2 * STREAM),", "statistics + at.head * tiles * (2 * STREAM),"),
            ("(load_head) * stream_seq + row +", "(load_head) * stream_seq +"),
            ("statistic(tensors, head, row + thread", "statistic(tensors, head, thread"),
        ],
    ),
    Planted(
        "one head of a group",
        PLAIN,
        [
            ("(OWNS_KEYS ? group : 1)", "1"),
            ("left((tiles.end - tiles.first) * group)", "left(tiles.end - tiles.first)"),
            ("tiles.first) * group;", "tiles.first);"),
        ],
    ),
    Planted("LSE in base 2", PLAIN, [("valid && lse != NEGATIVE_INFINITY ? -lse", "valid ? -lse * LN_2")]),
    Planted("LSE without keys", MASKED, [("valid && lse != NEGATIVE_INFINITY ?", "valid ?")], "hidden_rows"),
    Planted("the sign of ALiBi", ALIBI, [("score.x -= slope", "score.x += slope")]),
    Planted("the last query of a window", WINDOW, [("+ WINDOW_LEFT - ahead + 1", "+ WINDOW_LEFT - ahead")]),
    Planted("the causal corner", CORNER, [("ahead(BOTTOM_RIGHT ? keys - queries : 0)", "ahead(0)")]),
    Planted("delta of dO alone", PLAIN, [(f"{DELTA}o +", f"{DELTA}dout +")]),
    Planted("scale twice", PLAIN, [("exponent = fmaf(s, scale,", "exponent = fmaf(s, scale * scale,")]),
    Planted(
        "the mask of the first head",
        MASKED,
        [(f"mask_of_head(tensors, {head});", "mask_of_head(tensors, 0);") for head in ("at.head", "q_head")],
    ),
)
PLANTED_IN_COPIES = (
    Planted(
        "a tile is not waited for",
        TILES,
        [(loop, loop.replace("ptx::cp_async_wait_group<0>();", "")) for loop in LOOPS],
        hazard="async",
    ),
    Planted(
        "no barrier after a tile's copy",
        TILES,
        [(loop, loop.replace("__syncthreads();", "")) for loop in LOOPS],
        hazard="race",
    ),
    Planted(
        "no wait for the owned tile",
        TILES,
        [("ptx::cp_async_wait_group<1>();", "")],
        hazard="async",
    ),
    Planted("no barrier at the end", TILES, [("__syncthreads();  // the results", "// the results")], hazard="race"),
    Planted(
        "no barrier of dK and dV",
        TILES,
        [(f"__syncwarp();  // {why}", f"// {why}") for why in ("dV", "the next rows overwrite these")],
        hazard="lane-race",
    ),
)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kernel", [each for each in GRADIENT_KERNELS.values() if each is not HOPPER_BACKWARD])
@pytest.mark.parametrize("planted", PLANTED_IN_COPIES, ids=lambda planted: planted.what)
def test_a_hazard_in_the_copies_is_found(kernel: CudaKernel, planted: Planted) -> None:
    modes = Modes(schedules=("lockstep", "reverse"), async_modes=("late",))
    found = sanitize_kernel(planted.in_(kernel), [planted.problem], modes=modes)
    assert planted.hazard in {hazard.kind for hazard in found.hazards}


@pytest.mark.sample(4)
@EACH
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.what)
def test_a_planted_bug_is_found(kernel: CudaKernel, planted: Planted) -> None:
    mutant = planted.in_(kernel)
    result = run(mutant, planted.problem, kind=planted.kind)
    evidence = judged(mutant, planted.problem, result, kind=planted.kind)
    assert evidence.status in (Status.INCORRECT, Status.NOT_FINITE)
