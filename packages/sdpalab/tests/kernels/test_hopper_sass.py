"""Machine code of the kernels for Hopper: softmax beside products, registers as shared out, Hopper's instructions.

Their static limits are here too, as these builds are for sm_90a alone.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
from checking import assert_gate, built, resources_of

from sdpalab.compile.loops import reached
from sdpalab.compile.sass import SassInstruction, disassemble, parse, successors
from sdpalab.kernels.hopper import HOPPER
from sdpalab.kernels.hopper_fp8 import HOPPER_FP8, SCALE_ROWS
from sdpalab.kernels.kernel import Config, CudaKernel
from sdpalab.model.turn import short_turn, turn_clocks
from sdpalab.problem import Problem
from warpsan.gpus import default_sms, gpu_named

AUTO = HOPPER.default_config
ONE = AUTO.but(BLOCK_M=64, BLOCK_N=64, NUM_STAGES=2, SPLIT=1, KEY_GROUPS=1, PACK_GQA=1, SCHEDULE="tiles")
TWO = ONE.but(BLOCK_M=128)
WIDE = TWO.but(BLOCK_N=128)
CLUSTER_2 = ONE.but(SPLIT=2)
GROUPS = ONE.but(KEY_GROUPS=2, NUM_STAGES=4)
PERSISTENT = WIDE.but(SCHEDULE="persistent", NUM_CTAS=2)
FP8_WIDE = Config(BLOCK_M=128, BLOCK_N=128, NUM_STAGES=2, SPLIT=1)
FP8_SMALL = FP8_WIDE.but(BLOCK_M=64, BLOCK_N=64)

HOPPER_CODES = [
    (Problem(1, 8, 512, 64), AUTO),
    (Problem(1, 8, 512, 64, causal=True), WIDE),
    (Problem(1, 8, 512, 64), WIDE.but(BLOCK_M=192)),
    (Problem(1, 8, 512, 64, causal=True), ONE.but(SPLIT=4)),
    (Problem(1, 8, 512, 64, dtype="bfloat16"), AUTO),
    (Problem(1, 8, 512, 128, causal=True), WIDE),
    (Problem(1, 8, 512, 128), TWO.but(BLOCK_N=176)),
    (Problem(1, 8, 512, 128), CLUSTER_2.but(BLOCK_N=80)),
    (Problem(1, 8, 512, 256, causal=True), TWO.but(BLOCK_N=80)),
    (Problem(1, 8, 512, 256), CLUSTER_2.but(BLOCK_N=80)),
    (Problem(1, 8, 512, 64, causal=True), GROUPS.but(BLOCK_N=128)),
    (Problem(1, 8, 512, 128, causal=True), GROUPS.but(SPLIT=2)),
    (Problem(1, 8, 512, 64), PERSISTENT.but(BLOCK_M=64, BLOCK_N=80)),
    (Problem(1, 8, 512, 64, causal=True, dtype="bfloat16"), PERSISTENT),
    (Problem(1, 8, 512, 64, causal=True), PERSISTENT.but(BLOCK_M=192)),
    (Problem(1, 8, 512, 128), PERSISTENT),
    (Problem(1, 8, 512, 128, causal=True), PERSISTENT),
    (Problem(1, 8, 512, 256, causal=True), PERSISTENT.but(BLOCK_M=64, BLOCK_N=80)),
]
FP8_CODES = [
    (Problem(1, 8, 512, 64), FP8_WIDE),
    (Problem(1, 8, 512, 64, causal=True), FP8_SMALL),
    (Problem(1, 8, 512, 64, causal=True, dtype="bfloat16"), FP8_WIDE.but(BLOCK_N=64)),
    (Problem(1, 8, 512, 128), FP8_SMALL),
    (Problem(1, 8, 512, 128, causal=True), FP8_WIDE),
    (Problem(1, 8, 512, 64), HOPPER_FP8.default_config),
    (Problem(1, 8, 512, 128, causal=True), FP8_WIDE.but(SPLIT=2)),
    (Problem(1, 8, 512, 256, causal=True), FP8_WIDE),
    (Problem(1, 8, 512, 256, dtype="bfloat16"), FP8_SMALL),
    (Problem(1, 8, 512, 256), HOPPER_FP8.default_config),
]
EACH_CODE = pytest.mark.parametrize(
    ("kernel", "problem", "config"),
    [
        pytest.param(kernel, problem, config, id=f"{kernel.name}-{problem.label}-{config}")
        for kernel, codes in ((HOPPER, HOPPER_CODES), (HOPPER_FP8, FP8_CODES))
        for problem, config in codes
    ],
)
PRODUCTS = {"hopper": ("HGMMA", 16), "hopper_fp8": ("QGMMA", 32)}
"""Each of 64 rows, and of so many columns of Q and K or rows of V."""


def label(value: object) -> str:
    return str(getattr(value, "label", value))


def sass_of(kernel: CudaKernel, problem: Problem, config: Config) -> tuple[SassInstruction, ...]:
    compiled = built(kernel, problem, config)
    return parse(disassemble(compiled))[compiled.entry]


def count_of(kernel: CudaKernel, problem: Problem, config: Config) -> Counter[str]:
    return Counter(instruction.base for instruction in sass_of(kernel, problem, config))


def macros_of(kernel: CudaKernel, problem: Problem, config: Config) -> dict[str, int]:
    """Knobs as the source has them: none is left to be chosen."""
    resolved = kernel.resolved(problem, config, default_sms("sm_90a"))
    return {name: int(value) for name, value in kernel.module(problem, resolved).defines.items()}


@pytest.mark.sample(2)
@EACH_CODE
def test_static_gate(kernel: CudaKernel, problem: Problem, config: Config) -> None:
    if kernel is HOPPER_FP8 and problem.head_dim == 256 and problem.dtype == "bfloat16":
        with pytest.raises(AssertionError, match=r"quantise_blocks<128>.*reported_spill_bytes=8"):  # of 1,024 threads
            assert_gate(kernel, problem, config)
    else:
        assert_gate(kernel, problem, config)
    # C7510 and the like: ptxas found registers of a product in use, and lets products wait for each other.
    log = built(kernel, problem, config).log
    assert "serialized" not in log
    assert "injected" not in log


@pytest.mark.sample(2)
@EACH_CODE
def test_warpgroups_use_the_registers_that_they_keep_or_take(
    kernel: CudaKernel, problem: Problem, config: Config
) -> None:
    # ptxas reports the registers of a thread at launch. setmaxnreg changes their number.
    code = sass_of(kernel, problem, config)
    following = successors(code)
    sizes = []
    for place, instruction in enumerate(code):
        if instruction.base == "USETMAXREG":
            of_warpgroup = [code[each] for each in reached(following, place)]
            names = (name for each in of_warpgroup for name in re.findall(r"\bR(\d+)\b", each.operands))
            size = int(instruction.operands.rpartition(" ")[2], 16)
            assert max(map(int, names)) < size
            sizes.append(size)
    macros = macros_of(kernel, problem, config)
    consumers = macros["BLOCK_M"] // 64 * macros.get("KEY_GROUPS", 1)
    launched = resources_of(kernel, problem, config).registers
    assert min(sizes) + consumers * max(sizes) <= (1 + consumers) * launched


@pytest.mark.sample(2)
@EACH_CODE
def test_the_softmax_is_computed_beside_the_product(kernel: CudaKernel, problem: Problem, config: Config) -> None:
    # This hides the one behind the other: a turn issues all products, waits for the scores, computes the weights, and
    # only then waits for the product with V. ptxas moves the last wait up if nothing stops it.
    macros = macros_of(kernel, problem, config)
    keys, head_dim, depth = macros["BLOCK_N"], problem.head_dim, PRODUCTS[kernel.name][1]
    turn = short_turn(sass_of(kernel, problem, config))  # without the branch that rescales
    scores, weights = ["issue"] * (head_dim // depth), ["exp"] * _exponentials(kernel, keys, macros)
    part = ["issue"] * (keys // depth)  # of the output, all of it but for the last of these
    order = [event for event in map(_event, turn) if event]
    if in_steps(kernel, head_dim):  # beside the products of the other consumers; a part is added up beside the next
        between = ["wait 1", *part] * 2
        assert order == [*scores, "wait 0", *weights, *part, *part, *between, "wait 1", "wait 0"]
        return
    issued = [*scores, *part]
    if macros["BLOCK_M"] > 64 and head_dim <= 128:
        issued = ["turn", *issued, "pass"]
    assert order == [*issued, "wait 1", *weights, "wait 0"]


@pytest.mark.sample(1, first=True)
@pytest.mark.parametrize("causal", [False, True])
def test_a_turn_leaves_the_tensor_cores_room(causal: bool) -> None:
    problem = Problem(4, 16, 4096, 64, causal=causal)
    clocks = turn_clocks(sass_of(HOPPER, problem, AUTO), problem.head_dim, gpu_named("H200"))
    assert clocks is not None
    assert clocks.share("issue") <= 0.75
    assert clocks.share("special") < 0.8


def in_steps(kernel: CudaKernel, head_dim: int) -> bool:
    """Whether a consumer issues no scores before the product of the tile before: it has no registers for both."""
    return kernel is HOPPER_FP8 and head_dim == 256


def _exponentials(kernel: CudaKernel, keys: int, macros: dict[str, int]) -> int:
    """A thread's exponentials per tile on the special function unit; in e4m3 with the factors of two rows."""
    if kernel is HOPPER_FP8:
        return keys // 2 + 2
    on_fma = macros["EXP_ON_FMA"]
    return sum(score * on_fma % 64 < 64 - on_fma for score in range(keys // 2))


def _event(instruction: SassInstruction) -> str:
    if instruction.opcode == "WARPGROUP.DEPBAR.LE":
        return f"wait {int(instruction.operands.rpartition(',')[2], 16)}"
    names = {"HGMMA": "issue", "QGMMA": "issue", "BAR.SYNC": "turn", "BAR.ARV": "pass", "MUFU.EX2": "exp"}
    return next((name for opcode, name in names.items() if instruction.opcode.startswith(opcode)), "")


@pytest.mark.sample(2)
@EACH_CODE
def test_hoppers_own_instructions_are_in_the_sass(kernel: CudaKernel, problem: Problem, config: Config) -> None:
    count = count_of(kernel, problem, config)
    opcode, depth = PRODUCTS[kernel.name]
    # The first scores, and in the loop; the output in the loop, and behind it. A lone consumer adds the second turn,
    # whose scores are issued ahead.
    macros = macros_of(kernel, problem, config)
    ahead = kernel is HOPPER and problem.head_dim == 64 and macros["BLOCK_M"] * macros["KEY_GROUPS"] == 64
    if in_steps(kernel, problem.head_dim):  # one loop, and in it four products of 64 columns
        assert count[opcode] == (problem.head_dim + 4 * macros["BLOCK_N"]) // depth
    else:
        assert count[opcode] == (2 + ahead) * (problem.head_dim + macros["BLOCK_N"]) // depth
    assert sum(many for name, many in count.items() if name.endswith("MMA")) == count[opcode]
    assert count["UTMASTG"] == 1
    assert count["STSM"] == problem.head_dim // 16
    assert count["USETMAXREG"] == 2
    assert count["STG"] >= 2  # the log-sum-exp of two rows; more where lanes that diverge have code of their own
    assert not {"LDSM", "LDL", "STL"} & set(count)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("problem", "config"), HOPPER_CODES, ids=label)
def test_what_hopper_loads_and_what_a_cluster_sends(problem: Problem, config: Config) -> None:
    count, macros = count_of(HOPPER, problem, config), macros_of(HOPPER, problem, config)
    # Q, the tiles that are under way before all else, and those as a place is free; the next Q and its first tiles.
    of_q = macros["BLOCK_M"] // 64
    assert count["UTMALDG"] == of_q + 2 + 2 + (of_q + 2 if macros["PERSISTENT"] else 0)
    assert count["LDG"] == 0
    partial, split = problem.head_dim // 8 + 1, macros["SPLIT"]
    groups = macros["KEY_GROUPS"]
    assert count["LDS"] == (split + groups - 2) * partial
    assert count["STAS"] == (partial if split > 1 else 0)
    assert count["STS"] == (partial if groups > 1 else 0)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("problem", "config"), FP8_CODES, ids=label)
def test_what_hopper_fp8_loads_and_what_a_cluster_sends(problem: Problem, config: Config) -> None:
    count, macros = count_of(HOPPER_FP8, problem, config), macros_of(HOPPER_FP8, problem, config)
    # Q, the tiles that are under way before all else, and those as a place is free.
    assert count["UTMALDG"] == macros["BLOCK_M"] // 64 + 2 + 2
    # The scale of Q, and the first scales of K and V; those of the next tile, in the first turn and in the loop.
    same = macros["BLOCK_N"] < SCALE_ROWS and macros["SPLIT"] == 1  # those of the second tile are those of the first
    assert count["LDG"] == (3 if in_steps(HOPPER_FP8, problem.head_dim) else 4 - same)
    partial, split = problem.head_dim // 8 + 1, macros["SPLIT"]
    assert count["LDS"] == (split - 1) * partial
    assert count["STAS"] == (partial if split > 1 else 0)
    assert count["STS"] == 0


def assert_pipelined(ptx: str) -> None:
    assert ptx.count("wgmma.fence") == 3
    assert ptx.count("wgmma.commit_group") == 4
    assert ptx.count("fence.proxy.async.shared::cta") == 1
    assert ptx.count("setmaxnreg.dec") == ptx.count("setmaxnreg.inc") == 1
    assert not re.search(r"\b(ld|st)\.local|\bcall\b", ptx)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_algorithm_of_hopper_is_in_the_ptx(dtype: str) -> None:
    ptx = built(HOPPER, Problem(1, 1, 64, 256, dtype=dtype), CLUSTER_2).ptx.decode()
    short = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    assert_pipelined(ptx)
    assert ptx.count(f"wgmma.mma_async.sync.aligned.m64n64k16.f32.{short}.{short}") == 2 * 256 // 16
    assert ptx.count(f"wgmma.mma_async.sync.aligned.m64n256k16.f32.{short}.{short}") == 2 * 64 // 16
    assert ptx.count("st.async.weak.shared::cluster") == 256 // 8 + 1
    assert ptx.count("barrier.cluster.arrive") == ptx.count("barrier.cluster.wait") == 1
    assert "bar.sync" not in ptx
    assert "ld.global" not in ptx


def fp8_products(ptx: str) -> Counter[str]:
    """Number of occurrences of each shape in the PTX."""
    return Counter(re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m64n\d+k32)\.f32\.e4m3\.e4m3", ptx))


def test_the_algorithm_of_hopper_fp8_at_head_dim_256_is_in_the_ptx() -> None:
    ptx = built(HOPPER_FP8, Problem(1, 1, 64, 256), FP8_WIDE).ptx.decode()
    assert fp8_products(ptx) == {"m64n128k32": 256 // 32, "m64n64k32": 256 // 64 * SCALE_ROWS // 32}
    assert ptx.count("wgmma.commit_group") == 1 + 256 // 64
    assert ptx.count("wgmma.fence") == 1 + 256 // 64 - 1  # the second part has registers that nobody used meanwhile
    assert ptx.count("cvt.rn.satfinite.e4m3x2.f32") == SCALE_ROWS // 4
    assert "bar.arrive" not in ptx  # no turns


@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_algorithm_of_hopper_fp8_is_in_the_ptx(head_dim: int) -> None:
    ptx = built(HOPPER_FP8, Problem(1, 1, 64, head_dim), FP8_WIDE).ptx.decode()
    assert_pipelined(ptx)
    shapes = fp8_products(ptx)
    scores, output = 2 * head_dim // 32, 2 * SCALE_ROWS // 32
    assert shapes == (
        {"m64n128k32": scores, "m64n64k32": output} if head_dim == 64 else {"m64n128k32": scores + output}
    )
    assert ptx.count("cvt.rn.satfinite.e4m3x2.f32") == 2 * SCALE_ROWS // 4  # the first tile's weights, and in the loop
    assert not re.search(r"\bdiv\.\w+\.f", ptx)
    # The number of the warpgroup, and the scales of a tile, in the first turn and in the loop: no weight moves.
    assert ptx.count("shfl.sync.idx") == 1 + 2 * 2
