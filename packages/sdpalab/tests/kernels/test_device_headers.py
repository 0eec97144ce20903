"""The shared device headers: each stands alone on every architecture, and its functions do what the kernels rely on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sdpalab.compile import BuildError, build
from sdpalab.kernels.plan import HEADER_FOLDERS, INCLUDE_DIR, Module
from warpsan import launch

ARCHS = ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"]
HEADERS = sorted(path.relative_to(INCLUDE_DIR).as_posix() for path in INCLUDE_DIR.rglob("*.cuh"))
WRAPPERS = ["ptx/cluster.cuh", "ptx/gpu_scope.cuh", "ptx/offsets.cuh", "ptx/sm100.cuh", "ptx/sm80.cuh"]
WRAPPERS += ["ptx/sm89.cuh", "ptx/sm90.cuh", "ptx/wgmma.cuh", "ptx/wgmma_fp8.cuh"]
"""Headers that hold instructions."""
ALTERNATIVES = [f"backward/{name}.cuh" for name in ("own_loop", "own_tile")]
ALTERNATIVES += ["epilogue/cluster_merge.cuh", "tile/warp.cuh"]
"""The last two define a name that another header defines, too (``Partial``, ``WARP_M``); no kernel includes both. The
others include ``tile/warp.cuh``."""
OF_KEYS = [f"backward/{name}.cuh" for name in ("entry_rows", "key_loop", "key_tile", "query_gradient")]
"""They define names that ``backward/own_tile.cuh`` defines, too."""
ON_WARPGROUPS = [
    f"backward/{name}.cuh" for name in ("dq_sums", "warpgroup_consumer", "warpgroup_loop", "warpgroup_tile")
]
"""They define names that ``backward/own_tile.cuh`` defines, too, and have other sizes."""
DEFINES = {"HEAD_DIM": "64", "CAUSAL": "0", "DTYPE_BF16": "0"}
DEFINES |= {"WINDOW_LEFT": "-1", "WINDOW_RIGHT": "-1", "SOFTCAP": "0", "KV_LENGTHS": "0", "Q_LENGTHS": "0"}
DEFINES |= {"VARLEN": "1", "LENGTHS": "0"}
DEFINES |= {"BOTTOM_RIGHT": "0", "ALIBI_SLOPES": "0", "ATTN_MASK": "2", "BLOCK": "128", "STREAM": "32"}
DEFINES |= {"WARP_KEYS": "16", "QUERY_WARPS": "1"}
DEFINES |= {"ATTN_MASK_PER_BATCH": "1", "ATTN_MASK_PER_HEAD": "1", "DO_STAGES": "1", "DETERMINISTIC": "1"}


def _module(source: str, **defines: int) -> Module:
    return Module("probe.cu", source, "probe", {**DEFINES, **{name: str(value) for name, value in defines.items()}})


def _including(*headers: str) -> Module:
    """Module with these headers alone."""
    sizes = {"BLOCK": 64, "STREAM": 64, "NUM_STAGES": 2} if set(headers) & set(ON_WARPGROUPS) else {}
    return _module("".join(f'#include "{header}"\n' for header in headers) + "__global__ void probe() {}\n", **sizes)


def _launch(source: str, threads: int, args: Sequence[Any], *, dynamic_smem: int = 0, **defines: int) -> None:
    """Build ``source``, whose entry is ``probe``, and run one block of it on the simulator."""
    built = build(_module(source, **defines))
    report = launch(built.ptx, built.entry, 1, threads, args, dynamic_smem=dynamic_smem)
    assert not report.hazards


def test_headers_are_in_folders_and_no_two_have_the_same_name() -> None:
    # PTX, and so a hazard, names a header without its folder.
    names = [Path(header).name for header in HEADERS]
    assert len(set(names)) == len(names) > 20
    assert {(INCLUDE_DIR / header).parent for header in HEADERS} == set(HEADER_FOLDERS[1:])


def test_only_headers_hold_assembly() -> None:
    kernels = sorted(INCLUDE_DIR.parent.glob("*.cu"))
    assert {"scalar.cu", "wmma.cu", "flash.cu"} <= {path.name for path in kernels}
    for path in kernels:
        assert not re.search(r"\basm\b", path.read_text()), path.name
    assert [name for name in HEADERS if re.search(r"\basm\b", (INCLUDE_DIR / name).read_text())] == WRAPPERS


PURE = ("mma", "fma", "ex2", "lg2", "rcp", "cvt", "mov", "mapa")
"""Instructions that only compute, which the compiler may move and merge."""

ANEW = ("tid_x", "ctaid_x")
"""Wrappers that are volatile so that their result is made anew at each place."""


@pytest.mark.parametrize("header", WRAPPERS)
def test_one_wrapper_an_instruction_and_memory_is_clobbered(header: str) -> None:
    text = (INCLUDE_DIR / header).read_text().partition("namespace ptx {")[2].partition("}  // namespace ptx")[0]
    text = re.sub(r" *\\\n", "\n", text)  # one macro for wrappers that differ in their shape alone
    statements = re.findall(r"asm( volatile)?\((.*?)\);\n", text, re.DOTALL)
    names = re.findall(r"__forceinline__ [\w ]+ (\w+)\(", text)
    names = [name for name in names if name != "smem_address"]  # that is the compiler's own
    assert len(statements) == len(names)
    for name, (volatile, body) in zip(names, statements, strict=True):
        instruction = re.findall(r'"([a-z]\w*)', body)[0]  # behind the declaration of a predicate, where there is one
        assert name.startswith(instruction) or instruction == "mov", body
        assert bool(volatile) == (instruction not in PURE or name in ANEW), body
        assert ('"memory"' in body) == (instruction not in (*PURE, "setmaxnreg")), body


@pytest.mark.parametrize("arch", ARCHS)
def test_headers_compile_together(arch: str) -> None:
    groups = [ALTERNATIVES, OF_KEYS, ON_WARPGROUPS]
    others = [name for name in HEADERS if not any(name in group for group in groups)]
    for headers in (others, *groups):
        assert b".entry" in build(_including(*headers), arch).ptx


@pytest.mark.sample
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("header", HEADERS)
def test_each_header_stands_alone(header: str, arch: str) -> None:
    assert b".entry" in build(_including(header), arch).ptx


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("bf16", [0, 1])
def test_every_wrapper_compiles(arch: str, bf16: int) -> None:
    source = """
        #include "tile/dtype.cuh"
        __global__ void probe(const Element* in, float* out) {
            extern __shared__ __align__(128) unsigned char smem[];
            const unsigned at = ptx::smem_address(smem) + threadIdx.x * 16;
            ptx::cp_async_cg_16(at, in, 16);
            ptx::cp_async_commit_group();
            ptx::cp_async_wait_group<0>();
            __syncthreads();
            unsigned a[4], b[4];
            ptx::ldmatrix_x4(a, at);
            ptx::ldmatrix_x4_trans(b, at);
            float acc[4] = {ptx::ex2_approx_ftz_f32(out[0]), ptx::rcp_approx_ftz_f32(out[1]), to_float(in[0]), 0.0f};
            mma_m16n8k16(acc, a, b[0], b[1]);
            out[threadIdx.x] = acc[0] + acc[1] + acc[2] + acc[3] + __uint_as_float(pack_pair(acc[0], acc[1])) +
                               to_float(to_element(acc[2]));
        }"""
    ptx = build(_module(source, DTYPE_BF16=bf16), arch).ptx.decode()
    short = "bf16" if bf16 else "f16"
    expected = ["cp.async.cg.shared.global", "cp.async.commit_group", "cp.async.wait_group \t0", "ldmatrix", ".trans."]
    expected += ["ex2.approx.ftz", "rcp.approx.ftz", f"mma.sync.aligned.m16n8k16.row.col.f32.{short}.{short}.f32"]
    expected += [f"cvt.rn.{short}x2.f32", f"cvt.rn.{short}.f32"]
    for text in expected:
        assert text.replace(" \t", " ") in ptx, text


def test_a_missing_trait_is_named() -> None:
    module = Module("probe.cu", '#include "tile/dtype.cuh"\n__global__ void probe() {}\n', "probe", {})
    with pytest.raises(BuildError, match="define DTYPE_BF16"):
        build(module)


@pytest.mark.parametrize("cols", [32, 64, 96, 128])
def test_swizzle_is_free_of_bank_conflicts(cols: int) -> None:
    source = """
        #include "tile/swizzle96.cuh"
        __global__ void probe(int* offsets) {
            constexpr int CHUNKS = HEAD_DIM / 8;
            const int i = threadIdx.x;
            offsets[i] = swizzled_offset<HEAD_DIM>(i / CHUNKS, i % CHUNKS);
        }"""
    chunks = cols // 8
    offsets = np.full(16 * chunks, -1, np.int32)
    _launch(source, offsets.size, [offsets], HEAD_DIM=cols)
    table = offsets.reshape(16, chunks)
    assert sorted(offsets) == list(range(0, 16 * cols * 2, 16))  # one to one: the tile has no holes
    for chunk in range(chunks):
        for first in (0, 8):  # one 8x8 matrix of ldmatrix: eight rows, one wavefront if their 16-byte slots differ
            assert len(set(table[first : first + 8, chunk] % 128)) == 8
    for row in range(16):  # cp.async and vector stores write whole rows
        assert set(table[row] // (cols * 2)) == {row}


@pytest.mark.parametrize("cols", [32, 64, 96, 128])
def test_ldmatrix_addresses_move_by_blocks(cols: int) -> None:
    source = """
        #include "tile/swizzle96.cuh"
        __global__ void probe(int* moved, int* direct) {
            const int lane = threadIdx.x % 32, rows = threadIdx.x / 32 % 3, cols = threadIdx.x / 96;
            const int base = 8 * 1024;
            moved[2 * threadIdx.x] = block_address<HEAD_DIM>(base + row_block_offset<HEAD_DIM>(lane), rows, cols);
            direct[2 * threadIdx.x] = base + swizzled_offset<HEAD_DIM>(16 * rows + lane % 16, 2 * cols + lane / 16);
            moved[2 * threadIdx.x + 1] = block_address<HEAD_DIM>(base + col_block_offset<HEAD_DIM>(lane), rows, cols);
            direct[2 * threadIdx.x + 1] =
                base + swizzled_offset<HEAD_DIM>(16 * rows + lane % 8 + lane / 16 * 8, 2 * cols + lane / 8 % 2);
        }"""
    threads = 32 * 3 * (cols // 16)
    moved, direct = np.zeros(2 * threads, np.int32), np.ones(2 * threads, np.int32)
    _launch(source, threads, [moved, direct], HEAD_DIM=cols)
    assert np.array_equal(moved, direct)


@pytest.mark.parametrize(
    ("threads", "cols"),
    [(128, 64), (32, 32), (32, 64), (32, 128)],  # passes of 16, 8, 4 and 2 rows
)
@pytest.mark.parametrize("rows", [0, 17, 32])
def test_a_tile_is_copied_whole_and_its_end_is_zeros(threads: int, cols: int, rows: int) -> None:
    source = """
        #include "tile/copy.cuh"
        __global__ void probe(const Element* in, uint4* out, int rows, int bytes_before) {
            extern __shared__ __align__(1024) unsigned char smem[];
            const TileCopy<32, HEAD_DIM, THREADS> copy(threadIdx.x);
            const Element* src = in + copy.global_offset;
            if (bytes_before) {  // the same, from where a tensor begins of which it is row 5
                src = in + (static_cast<long long>(copy.bytes_from(5)) - bytes_before) / 2;
            }
            copy.start(ptx::smem_address(smem) + copy.smem_offset, src, rows - copy.row);
            ptx::cp_async_commit_group();
            ptx::cp_async_wait_group<0>();
            __syncthreads();
            constexpr int CHUNKS = HEAD_DIM / 8;
            for (int i = threadIdx.x; i < 32 * CHUNKS; i += THREADS) {
                out[i] = *reinterpret_cast<const uint4*>(smem + swizzled_offset<HEAD_DIM>(i / CHUNKS, i % CHUNKS));
            }
        }"""
    given = np.arange(1, 1 + max(rows, 1) * cols, dtype=np.uint16).reshape(-1, cols)  # ends at the last row
    for before in (0, 5 * cols * 2):
        out = np.full((32, cols), 0xFFFF, np.uint16)
        args = [given, out, rows, before]
        _launch(source, threads, args, dynamic_smem=32 * cols * 2, HEAD_DIM=cols, THREADS=threads)
        assert np.array_equal(out[:rows], given[:rows])
        assert not out[rows:].any()


@pytest.mark.parametrize("cols", [32, 64, 128])
def test_accumulators_are_stored_as_rows(cols: int) -> None:
    source = """
        #include "epilogue/store.cuh"
        __global__ void probe(Element* out, int rows) {
            extern __shared__ __align__(1024) unsigned char smem[];
            const int lane = threadIdx.x;
            unsigned pairs[HEAD_DIM / 8][2];
            for (int n = 0; n < HEAD_DIM / 8; ++n) {
                for (int half = 0; half < 2; ++half) {
                    const int first = (lane / 4 + 8 * half) * HEAD_DIM + 8 * n + lane % 4 * 2;
                    pairs[n][half] = first | (first + 1) << 16;
                }
            }
            store_warp_tile<HEAD_DIM>(out, rows, pairs, ptx::smem_address(smem), lane);
        }"""
    out = np.full((16, cols), 0xFFFF, np.uint16)
    _launch(source, 32, [out, 13], dynamic_smem=16 * cols * 2, HEAD_DIM=cols)
    assert np.array_equal(out[:13], np.arange(13 * cols, dtype=np.uint16).reshape(13, cols))
    assert (out[13:] == 0xFFFF).all()


@pytest.mark.parametrize("bf16", [0, 1])
def test_elements_survive_the_way_through_float(bf16: int) -> None:
    source = """
        #include "tile/dtype.cuh"
        __global__ void probe(const Element* in, Element* one, unsigned* pair) {
            for (int i = threadIdx.x; i < 4096; i += 256) {
                one[i] = to_element(to_float(in[i]));
                const float2 both = unpack_pair(in[i].bits | in[4095 - i].bits << 16);
                pair[i] = pack_pair(both.x, both.y);
            }
        }"""
    dtype = np.dtype(ml_dtypes.bfloat16 if bf16 else np.float16)
    bits = np.random.default_rng(1).permutation(1 << 16)[:4096].astype(np.uint16)
    bits = np.where(np.isnan(bits.view(dtype).astype(np.float32)), np.uint16(1), bits)  # 1: a subnormal
    one, pair = np.zeros_like(bits), np.zeros(4096, np.uint32)
    _launch(source, 256, [bits, one, pair], DTYPE_BF16=bf16)
    assert np.array_equal(one, bits)
    assert np.array_equal(pair, bits.astype(np.uint32) | bits[::-1].astype(np.uint32) << 16)


@pytest.mark.parametrize("scale", [0.125, -0.125, 0.0, -0.0, 1e-45, -3.0e37])
def test_the_sign_of_the_scale_is_taken_off_exactly(scale: float) -> None:
    source = """
        #include "softmax/online.cuh"
        __global__ void probe(float* out, unsigned* pair, float scale) {
            const ScoreScale s(scale);
            out[0] = s.log2;
            out[1] = s.sign;
            pair[0] = s.apply_sign(pair[0]);
        }"""
    out, pair = np.zeros(2, np.float32), np.array([0x3C00C200], np.uint32)  # -3 and 1 as float16
    _launch(source, 1, [out, pair, scale])
    sign = np.sign(np.float32(scale))
    assert out[1] == sign
    assert np.array_equal(pair.view(np.float16), np.array([-3.0, 1.0], np.float16) * np.float16(sign))
    assert out[0] == (np.abs(np.float32(scale)) * np.float32(np.log2(np.e)) if scale else 1.0)
    assert 0.0 < out[0] < np.inf


def test_online_softmax_agrees_with_float64_and_has_no_nan() -> None:
    source = """
        #include "softmax/online.cuh"
        __global__ void probe(const float* scores, float* out, float scale) {  // a row a thread; 4 tiles of 8 keys
            const ScoreScale s(scale);
            SoftmaxRow row;
            float mean = 0.0f;
            for (int tile = 0; tile < 4; ++tile) {
                float tile_max = NEGATIVE_INFINITY;
                for (int key = 0; key < 8; ++key) {
                    tile_max = fmaxf(tile_max, scores[threadIdx.x * 32 + tile * 8 + key]);
                }
                mean *= row.advance(tile_max, s.log2);
                for (int key = 0; key < 8; ++key) {
                    const float weight = softmax_weight(scores[threadIdx.x * 32 + tile * 8 + key], row.max, s.log2);
                    row.sum += weight;
                    mean += weight * (tile * 8 + key);
                }
            }
            out[threadIdx.x] = mean * softmax_normaliser(row.sum);
        }"""
    draw = np.random.default_rng(5)
    scores = (draw.standard_normal((32, 32)) * np.logspace(-2, 12, 32)[:, None]).astype(np.float32)
    scores[3, :8] = -np.inf  # nothing visible in the first tile
    scores[4, 5:] = -np.inf
    scores[5] = -np.inf  # nothing visible at all
    scores[6] -= np.float32(1e30)
    out = np.full(32, np.nan, np.float32)
    _launch(source, 32, [scores, out, 0.125])
    exact = scores.astype(np.float64) * np.float32(0.125)
    with np.errstate(invalid="ignore"):
        weights = np.exp(exact - exact.max(axis=1, keepdims=True))
        mean = (weights * np.arange(32)).sum(axis=1) / weights.sum(axis=1)
    mean[5] = 0.0
    assert np.allclose(out, mean, rtol=2e-6, atol=1e-6)
    assert out[5] == 0.0
    assert np.array_equal(out[20:], scores[20:].argmax(axis=1))  # far apart: the greatest alone, exactly


def test_fused_exponents_agree_with_float64_also_where_their_rounding_would_matter() -> None:
    source = """
        #include "softmax/online.cuh"
        __global__ void probe(const float* scores, float* out, int* fused, float scale) {  // 2 rows a thread, 32 keys
            const ScoreScale s(scale);
            SoftmaxRow rows[2];
            const float* own = scores + threadIdx.x * 64;
            for (int i = 0; i < 64; ++i) {
                rows[i / 32].max = fmaxf(rows[i / 32].max, own[i]);
            }
            FusedExponents exponents(rows, s.log2);
            fused[threadIdx.x] = exponents.in_range();
            const bool subtract = !exponents.in_range();
            if (subtract) {
                exponents.subtracted();
            }
            float mean[2] = {};
            for (int i = 0; i < 64; ++i) {
                const float score = subtract ? own[i] - rows[i / 32].max : own[i];
                const float weight = exponents.weight(score, i / 32, i % 4 == 3);
                rows[i / 32].sum += weight;
                mean[i / 32] += weight * (i % 32);
            }
            for (int row = 0; row < 2; ++row) {
                out[2 * threadIdx.x + row] = mean[row] * softmax_normaliser(rows[row].sum);
            }
        }"""
    draw = np.random.default_rng(5)
    scores = (draw.standard_normal((32, 2, 32)) * np.logspace(-2, 12, 32)[:, None, None]).astype(np.float32)
    scores[3, 0] = -np.inf  # nothing visible
    scores[4, 1, 5:] = -np.inf
    scores[6] -= np.float32(5000)
    out, fused = np.full((32, 2), np.nan, np.float32), np.full(32, -1, np.int32)
    _launch(source, 32, [scores, out, fused, 0.125])
    exact = scores.astype(np.float64) * np.float32(0.125)
    largest = exact.max(axis=2)
    with np.errstate(invalid="ignore"):
        weights = np.exp(exact - largest[..., None])
        mean = (weights * np.arange(32)).sum(axis=2) / weights.sum(axis=2)
    mean[3, 0] = 0.0
    assert np.array_equal(fused, (np.abs(largest).max(axis=1) * np.log2(np.e) <= 1024).astype(np.int32))
    assert 10 < fused.sum() < 25
    assert np.allclose(out, mean, rtol=2e-4, atol=1e-6)  # 1024 has a rounding of 2^-14, so a score may be off by it
    assert np.allclose(out[:8], mean[:8], rtol=2e-5, atol=1e-6)
    assert np.array_equal(out[24:], scores[24:].argmax(axis=2))  # far apart: the greatest alone, exactly


def test_bounds_of_rows_are_their_maxima_or_0() -> None:
    source = """
        #include "tile/warpgroup.cuh"
        __global__ void probe(const float* scores, float* bounds) {
            float s_frag[16];
            for (int i = 0; i < 16; ++i) {
                s_frag[i] = scores[16 * threadIdx.x + i];
            }
            float bound[2];
            row_bounds(bound, s_frag);
            bounds[2 * threadIdx.x] = bound[0];
            bounds[2 * threadIdx.x + 1] = bound[1];
        }"""
    scores = np.random.default_rng(5).standard_normal((8, 4, 4, 2, 2)).astype(np.float32)  # [quad, lane, 8 keys, row]
    scores[1] -= 10  # all negative
    scores[2, ..., 0, :] -= 10
    scores[3, ..., 1, :] = -np.inf
    scores[4, 2, 1, 1, 0] = np.inf
    scores[5] = -0.0
    bounds = np.full((8, 4, 2), np.nan, np.float32)
    _launch(source, 32, [scores, bounds])
    expected = np.maximum(scores.max(axis=(1, 2, 4)), 0)[:, None, :]
    assert np.array_equal(bounds, np.broadcast_to(expected, bounds.shape))


def test_powers_of_two_on_fma_units_have_the_error_that_is_stated() -> None:
    source = """
        #include "softmax/online.cuh"
        __global__ void probe(const float* x, float* power, int count, float factor, float offset) {
            for (int i = threadIdx.x; i < count; i += blockDim.x) {
                power[i] = PowerOnFma(factor, offset).of(x[i]);
            }
        }"""
    between = np.random.default_rng(5).uniform(-126, 8, 1 << 16)
    halves = (np.arange(-252, 16) / 2).astype(np.float32)  # where the nearest integer changes
    ends = [0.0, -np.inf, -3.0e38, -1.0e6, -150.0, -127.0, -126.9, -126.6, -126.4, 127.0, 150.0, np.inf, np.nan]
    x = np.concatenate([between, halves, np.nextafter(halves, np.float32(9)), ends]).astype(np.float32)
    power = np.full_like(x, np.nan)
    _launch(source, 1024, [x, power, x.size, 1.0, 0.0])
    normal = (x >= -126) & (x <= 8)
    error = np.abs(power[normal] / np.exp2(x[normal].astype(np.float64)) - 1)
    assert 2**-18 < error.max() <= 8.1e-6
    assert (power[x == 0] == 1).all()
    assert not power[(x < -127) | np.isnan(x)].any()
    assert (power[(x >= -127) & (x < -126)] <= 1.01 * 2.0**-126).all()
    assert (power[x >= 127] == 2.0**127).all()
    _launch(source, 1024, [x, power, x.size, 0.25, -40.0])
    inside = np.abs(x) < 200
    assert np.allclose(power[inside], np.exp2(x[inside].astype(np.float64) / 4 - 40), rtol=2**-16)


def test_weights_whose_exponents_would_be_out_of_range_are_no_numbers() -> None:
    source = """
        #include "softmax/online.cuh"
        __global__ void probe(const float* maxima, float* weight, int* reach, float bound) {
            SoftmaxRow rows[2];
            rows[0].max = maxima[2 * threadIdx.x];
            rows[1].max = maxima[2 * threadIdx.x + 1];
            FusedExponents exponents(rows, 0.5f);
            exponents.forbid_out_of_range();
            weight[2 * threadIdx.x] = exponents.weight(rows[0].max + 4, 0);
            weight[2 * threadIdx.x + 1] = exponents.weight(rows[1].max - 4, 1);
            const float bounds[2] = {rows[0].max + bound, rows[1].max + bound};
            reach[threadIdx.x] = exponents.reach(bounds);
        }"""
    lowest = np.finfo(np.float32).min  # before a key is seen
    maxima = np.array([(0, 8), (2048, -2048), (2050, 0), (0, -2050), (lowest, 0), (np.nan, 1)], np.float32)
    fits = np.array([(1, 1), (1, 1), (0, 1), (1, 0), (0, 1), (0, 1)], bool)
    for bound, reached in ((16.0, fits.all(axis=1)), (17.0, np.zeros(6, bool))):
        weight, reach = np.zeros((6, 2), np.float32), np.full(6, -1, np.int32)
        _launch(source, 6, [maxima, weight, reach, bound])
        assert np.array_equal(np.isnan(weight), ~fits)
        assert np.array_equal(weight[fits], np.broadcast_to(np.float32([4, 0.25]), (6, 2))[fits])
        assert np.array_equal(reach, reached.astype(np.int32))


@pytest.mark.parametrize("causal", [0, 1])
def test_tiles_of_the_mask_agree_with_its_definition(causal: int) -> None:
    source = """
        #include "softmax/mask.cuh"
        __global__ void probe(int* out, int seq_kv, int block) {
            const int first = threadIdx.x / 32, last = threadIdx.x % 32;
            out[3 * threadIdx.x] = visible_keys(first, seq_kv);
            out[3 * threadIdx.x + 1] = tiles_visible(last, seq_kv, block);
            out[3 * threadIdx.x + 2] = tiles_unmasked(first, seq_kv, block);
        }"""
    for seq_kv in (1, 7, 8, 20, 64):
        out = np.zeros((32, 32, 3), np.int32)
        _launch(source, 1024, [out, seq_kv, 8], CAUSAL=causal)
        sees = np.arange(seq_kv) <= (np.arange(32) if causal else np.full(32, seq_kv))[:, None]  # [row, key]
        tiles = [sees[:, first : first + 8] for first in range(0, seq_kv, 8)]
        for row in range(32):
            assert (out[row, :, 0] == sees[row].sum()).all()
            assert (out[:, row, 1] == sum(tile[: row + 1].any() for tile in tiles)).all()
            whole = [tile[row:].all() and tile.shape[1] == 8 for tile in tiles]
            assert (out[row, :, 2] == [*whole, False].index(False)).all()


def test_descriptors_have_the_manuals_fields() -> None:
    source = """
        #include "ptx/wgmma.cuh"
        __global__ void probe(unsigned long long* out, unsigned smem) {
            const unsigned long long q = tile_descriptor<64>(smem), v = tile_descriptor<128>(smem);
            out[0] = q;
            out[1] = v;
            for (int d = 0; d < 8; ++d) {
                out[2 + d] = q + column_step<64>(d);
                out[10 + d] = v + row_step(d);
            }
        }"""
    smem = 0x32400
    out = np.zeros(18, np.uint64)
    _launch(source, 1, [out, smem])

    def fields(word: int) -> tuple[int, ...]:  # start, leading and stride offset in bytes, swizzle, and all other bits
        return *((word >> at & 0x3FFF) << 4 for at in (0, 16, 32)), word >> 62, word & ~(3 << 62 | 0x3FFF3FFF3FFF)

    steps = [fields(int(word)) for word in out]
    assert steps[0] == (smem, 64 * 128, 1024, 1, 0)
    assert steps[1] == (smem, 128 * 128, 1024, 1, 0)
    # 16 columns are 32 bytes, four times a panel; 16 rows of 128 bytes.
    assert steps[2:10] == [(smem + d // 4 * 64 * 128 + d % 4 * 32, *steps[0][1:]) for d in range(8)]
    assert steps[10:] == [(smem + d * 16 * 128, *steps[1][1:]) for d in range(8)]


def test_a_ring_changes_its_parity_with_each_pass() -> None:
    source = """
        #include "mainloop/ring.cuh"
        __global__ void probe(int* out) {
            RingPosition<3> at;
            for (int i = 0; i < 8; ++i, at.advance()) {
                out[2 * i] = at.stage;
                out[2 * i + 1] = at.parity;
            }
        }"""
    out = np.full((8, 2), -1, np.int32)
    _launch(source, 1, [out])
    assert out.tolist() == [[i % 3, i // 3 % 2] for i in range(8)]


def test_headers_name_no_place_of_this_machine() -> None:
    for path in [*INCLUDE_DIR.rglob("*.cuh"), Path(INCLUDE_DIR.parent / "flash.cu")]:
        assert not re.search(r"(^|\s)/(home|tmp|root|work|usr)/", path.read_text()), path.name
