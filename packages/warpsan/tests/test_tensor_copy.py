"""cp.async.bulk.tensor: boxes of tensors in and out of shared memory, against NumPy's slicing."""

import ml_dtypes
import numpy as np
import pytest

import warpsan
from hopper_snippets import CTA_WAIT, MODES, kernel, kinds
from warpsan.planting import replace_once

PARAMS = ".param .align 64 .b8 a[128], .param .u64 p, .param .s32 x, .param .s32 y, .param .s32 z"
START = (
    "mov.b64 %rd3, a; cvta.param.u64 %rd4, %rd3;\n"
    "ld.param.s32 %r20, [x]; ld.param.s32 %r21, [y]; ld.param.s32 %r22, [z];\n"
    "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n"
    "bar.sync 0;\n"
)
READ = "shl.b32 %r5, %r0, 2; add.u32 %r6, %r1, %r5;\n" + "".join(
    f"ld.shared.u32 %r7, [%r6+{128 * i}]; st.global.u32 [%rd2+{128 * i}], %r7;\n" for i in range(32)
)
WHERE = {
    1: "{%r20}",
    2: "{%r20, %r21}",
    3: "{%r20, %r21, %r22}",
    4: "{%r20, %r21, %r22, %r22}",
    5: "{%r20, %r21, %r22, %r22, %r22}",
}


def load_of(rank: int, size: int) -> str:
    return (
        f"@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {size};\n"
        f"@%p1 cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        f" [%r1], [%rd4, {WHERE[rank]}], [%r2];\n"
    )


def load(tensor: warpsan.TensorMap, at: tuple[int, ...], **options: object) -> np.ndarray:
    """The first 4096 bytes of shared memory after the load of a box; the remaining bytes are poison."""
    out = np.zeros(1024, np.uint32)
    x, y, z = (*at, 0, 0)[:3]
    clear = "shl.b32 %r5, %r0, 2; add.u32 %r6, %r1, %r5;\n" + "".join(
        f"st.shared.u32 [%r6+{128 * i}], -1;\n" for i in range(32)
    )
    body = START.replace("bar.sync", clear + "fence.proxy.async.shared::cta;\nbar.sync")
    body += load_of(len(tensor.tiling.dims), tensor.tiling.box_bytes) + CTA_WAIT.format(0, "%r2", 0) + READ
    assert kinds(body, [tensor, out, x, y, z], params=PARAMS, block=32, **options) == []
    return out.view(np.uint8)


def padded(array: np.ndarray, at: tuple[int, ...], box: tuple[int, ...], fill: float = 0) -> np.ndarray:
    """The box of an array at coordinates that are innermost first, element by element."""
    out = np.full(box, fill, array.dtype)
    for place in np.ndindex(*box):
        source = tuple(i + start for i, start in zip(place, reversed(at), strict=True))
        if all(0 <= i < size for i, size in zip(source, array.shape, strict=True)):
            out[place] = array[source]
    return out


def unswizzled(raw: np.ndarray, mode: str, rows: int, inner: int) -> np.ndarray:
    """Rows of ``inner`` bytes from a swizzled box, by the manual's table: chunk c of 128-byte line r is at c ^ f(r)."""
    out = np.empty(rows * inner, np.uint8)
    for chunk in range(rows * inner // 16):
        line, column = divmod(chunk, 8)
        mixed = {"none": column, "32B": column ^ (line & 1), "64B": column ^ (line & 3), "128B": column ^ (line & 7)}[
            mode
        ]
        out[16 * chunk : 16 * chunk + 16] = raw[128 * line + 16 * mixed :][:16]
    return out


@pytest.mark.parametrize(("mode", "inner"), [("none", 32), ("32B", 16), ("64B", 32), ("128B", 64), ("none", 64)])
@pytest.mark.parametrize("at", [(0, 0), (0, 8), (0, 56), (0, -5), (0, 200)])
def test_boxes_of_a_matrix_in_every_swizzle(mode, inner, at):
    array = np.arange(64 * inner, dtype=np.uint16).reshape(64, inner)
    raw = load(warpsan.TensorMap(array, (16, inner), mode), at)
    got = unswizzled(raw, mode, 16, 2 * inner).view(np.uint16).reshape(16, inner)
    assert (got == padded(array, at, (16, inner))).all()
    assert (raw[16 * 2 * inner :] == 0xFF).all()


def test_a_tensor_may_begin_inside_its_array():
    array = np.arange(96 * 32, dtype=np.uint16).reshape(96, 32)
    tensor = warpsan.TensorMap(array, (16, 32), shape=(64, 32), offset=32 * 64)
    got = load(tensor, (0, 56)).view(np.uint16)[: 16 * 32].reshape(16, 32)
    assert (got == padded(array[32:], (0, 56), (16, 32))).all()
    for offset, words in ((8, "begins at a multiple of 16 bytes, not at 8"), (33 * 64, "reaches 6208 bytes")):
        with pytest.raises(warpsan.LaunchError, match=words):
            warpsan.TensorMap(array, (16, 32), shape=(64, 32), offset=offset)


@pytest.mark.parametrize(
    ("dtype", "shape", "box", "at"),
    [
        (np.float32, (100,), (24,), (90,)),
        (np.float32, (100,), (24,), (-3,)),
        (np.uint8, (40, 48), (8, 32), (17, 36)),
        (np.float16, (6, 10, 24), (2, 5, 16), (11, 7, 5)),
        (ml_dtypes.bfloat16, (6, 10, 24), (2, 5, 16), (-2, -3, -1)),
        (np.int32, (3, 4, 5, 8), (2, 2, 3, 4), (5, 3, 2)),
        (np.float64, (2, 3, 4, 5, 6), (1, 2, 2, 2, 4), (1, 4, 1)),
    ],
)
def test_boxes_of_one_to_five_axes_at_odd_places(dtype, shape, box, at):
    array = (np.arange(np.prod(shape)) % 251 + 1).astype(dtype).reshape(shape)
    tensor = warpsan.TensorMap(array, box)
    where = (*at, *(at[2:] * 2))[: len(shape)]
    got = load(tensor, at)[: tensor.tiling.box_bytes].view(dtype).reshape(box)
    np.testing.assert_array_equal(got, padded(array, where, box))


def test_strides_of_a_view_element_strides_and_nan_fill():
    array = np.arange(8 * 6 * 16, dtype=np.float16).reshape(8, 6, 16)
    heads = warpsan.TensorMap(array, (1, 4, 16), shape=(6, 8, 16), strides=(32, 192, 2))  # [S, H, D] seen as [H, S, D]
    got = load(heads, (0, 2, 3))[: heads.tiling.box_bytes].view(np.float16).reshape(4, 16)
    np.testing.assert_array_equal(got, array[2:6, 3])
    every_other = warpsan.TensorMap(array.reshape(48, 16), (8, 16), element_strides=(2, 1))
    got = load(every_other, (0, 4))[: every_other.tiling.box_bytes].view(np.float16).reshape(4, 16)
    np.testing.assert_array_equal(got, array.reshape(48, 16)[4:12:2])
    beyond = warpsan.TensorMap(array.reshape(48, 16), (8, 16), oob_fill="nan")
    got = load(beyond, (0, 44))[: beyond.tiling.box_bytes].view(np.float16).reshape(8, 16)
    assert np.isnan(got[4:]).all()
    np.testing.assert_array_equal(got[:4], array.reshape(48, 16)[44:])


STORE_PARAMS = PARAMS + ", .param .align 64 .b8 b[128]"
BACK = (
    "mov.b64 %rd6, b; cvta.param.u64 %rd7, %rd6;\n@!%p1 bra END;\n"
    "cp{}.async.bulk.tensor.3d.global.shared::cta{}.bulk_group [%rd7, {{%r20, %r21, %r22}}], [%r1];\n"
    "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\nEND:"
)


@pytest.mark.parametrize(("mode", "schedule"), MODES)
@pytest.mark.parametrize("swizzle", ["none", "128B"])
def test_a_store_clips_at_the_tensor_and_undoes_the_swizzle(mode, schedule, swizzle):
    array = np.arange(3 * 20 * 64).astype(np.float16).reshape(3, 20, 64)
    out = np.full_like(array, -1)
    box = (1, 16, 64)
    body = START + load_of(3, 2048) + CTA_WAIT.format(0, "%r2", 0) + BACK.format("", ".tile")
    maps = [warpsan.TensorMap(each, box, swizzle) for each in (array, out)]
    arguments = [maps[0], np.zeros(64, np.uint32), 0, 12, 1, maps[1]]
    assert kinds(body, arguments, params=STORE_PARAMS, async_mode=mode, schedule=schedule) == []
    want = np.full_like(array, -1)
    want[1, 12:20] = array[1, 12:20]
    np.testing.assert_array_equal(out, want)


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(("operation", "ufunc"), [("add", np.add), ("min", np.minimum), ("max", np.maximum)])
def test_reductions_of_boxes(operation, ufunc):
    rng = np.random.default_rng(0)
    array, out = (rng.integers(-50, 50, (2, 8, 32)).astype(np.float16) for _ in range(2))
    before = out.copy()
    body = START + load_of(3, 512) + CTA_WAIT.format(0, "%r2", 0) + BACK.format(".reduce", f".{operation}.tile")
    maps = [warpsan.TensorMap(each, (1, 8, 32)) for each in (array, out)]
    assert kinds(body, [maps[0], np.zeros(64, np.uint32), 0, 0, 1, maps[1]], params=STORE_PARAMS) == []
    np.testing.assert_array_equal(out[1], ufunc(before[1], array[1]))
    np.testing.assert_array_equal(out[0], before[0])


def test_a_reduction_of_a_box_outside_the_tensor_changes_nothing():
    array, out = np.ones((2, 8, 16), np.float32), np.ones((2, 8, 16), np.float32)
    body = START + load_of(3, 512) + CTA_WAIT.format(0, "%r2", 0) + BACK.format(".reduce", ".add.tile")
    maps = [warpsan.TensorMap(each, (1, 8, 16)) for each in (array, out)]
    assert kinds(body, [maps[0], np.zeros(64, np.uint32), 0, 0, 2, maps[1]], params=STORE_PARAMS) == []
    assert (out == 1).all()


TILES, STAGES = 6, 2
PIPELINE = (
    "mov.b64 %rd3, a; cvta.param.u64 %rd4, %rd3;\nadd.u32 %r3, %r2, 16;\n"  # full at %r2, empty at %r3
    "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n@%p1 mbarrier.init.shared::cta.b64 [%r2+8], 1;\n"
    "@%p1 mbarrier.init.shared::cta.b64 [%r3], 32;\n@%p1 mbarrier.init.shared::cta.b64 [%r3+8], 32;\n"
    "bar.sync 0;\nmov.u32 %r10, 0; setp.lt.u32 %p3, %r0, 32;\n"
    "LOOP: and.b32 %r11, %r10, 1; shr.u32 %r12, %r10, 1; and.b32 %r13, %r12, 1; xor.b32 %r14, %r13, 1;\n"
    "shl.b32 %r15, %r11, 3; add.u32 %r16, %r2, %r15; add.u32 %r17, %r3, %r15;\n"
    "shl.b32 %r18, %r11, 11; add.u32 %r18, %r18, %r1; shl.b32 %r19, %r10, 4; mov.u32 %r20, 0; mov.u32 %r21, %ctaid.x;\n"
    "@!%p3 bra CONSUME;\n@!%p1 bra NEXT;\n"
    + CTA_WAIT.format(1, "%r17", "%r14")
    + "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r16], 2048;\n"
    "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    " [%r18], [%rd4, {%r20, %r19, %r21}], [%r16];\nbra NEXT;\nCONSUME:\n"
    + CTA_WAIT.format(2, "%r16", "%r13")
    + "sub.u32 %r22, %r0, 32; shl.b32 %r22, %r22, 6; add.u32 %r22, %r22, %r18; mov.u32 %r25, 0;\n"
    + "".join(
        f"ld.shared.v4.u32 {{%r26, %r27, %r28, %r29}}, [%r22+{16 * i}];\n"
        "add.u32 %r25, %r25, %r26; add.u32 %r25, %r25, %r27; add.u32 %r25, %r25, %r28; add.u32 %r25, %r25, %r29;\n"
        for i in range(4)
    )
    + "mbarrier.arrive.shared::cta.b64 _, [%r17];\n"
    f"mad.lo.u32 %r30, %r21, {TILES}, %r10; mad.lo.u32 %r30, %r30, 32, %r0; sub.u32 %r30, %r30, 32;\n"
    "mul.wide.u32 %rd8, %r30, 4; add.u64 %rd8, %rd1, %rd8; st.global.u32 [%rd8], %r25;\n"
    f"NEXT: add.u32 %r10, %r10, 1; setp.lt.u32 %p4, %r10, {TILES};\n@%p4 bra LOOP;"
)


def pipeline(body: str, **options: object) -> tuple[list[str], bool]:
    """A producer warp loads tiles through two stages, a consumer warp sums 64 bytes per lane of each."""
    array = np.random.default_rng(1).integers(0, 1 << 20, (3, 16 * TILES, 32), dtype=np.int32)
    out = np.zeros((3, TILES, 32), np.uint32)
    tensor = warpsan.TensorMap(array, (1, 16, 32))
    reported = kinds(body, [tensor, out, 0, 0, 0], params=PARAMS, grid=3, **options)
    return reported, bool((out == array.view(np.uint32).reshape(3, TILES, 32, 16).sum(axis=3, dtype=np.uint32)).all())


@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_a_pipeline_of_full_and_empty_barriers_is_right_and_clean(mode, schedule):
    assert pipeline(PIPELINE, async_mode=mode, schedule=schedule) == ([], True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (CTA_WAIT.format(1, "%r17", "%r14"), ""),  # the producer does not wait for the consumer
        (CTA_WAIT.format(2, "%r16", "%r13"), ""),  # the consumer does not wait for the data
        ('"%r17", "%r14"', '"%r17", "%r13"'),  # the wrong phases
        ('"%r16", "%r13"', '"%r16", "%r14"'),
        ("_, [%r16], 2048", "_, [%r16], 1024"),
        ("_, [%r16], 2048", "_, [%r16], 4096"),
        ("[%r3], 32", "[%r3], 31"),
        ("[%r3+8], 32", "[%r3+8], 33"),
        ("bar.sync 0;\n", ""),
        ("mbarrier.arrive.shared::cta.b64 _, [%r17];\n", ""),
        ("%p2, [%r16]", "%p2, [%r2]"),  # the consumer waits for the first stage's barrier only
        ("mov.u32 %r25, 0;\n", "mov.u32 %r25, 0;\nmbarrier.arrive.shared::cta.b64 _, [%r17];\n"),  # too early as well
    ],
)
@pytest.mark.parametrize("mode", ["late", "early"])
def test_each_mistake_in_the_pipeline_is_found(old, new, mode):
    if old.startswith('"'):  # another parity in the wait with those operands
        number = 1 if "%r17" in old else 2
        old, new = (CTA_WAIT.format(number, *(part.strip('"') for part in each.split(", "))) for each in (old, new))
    try:
        reported, _ = pipeline(replace_once(PIPELINE, (old, new)), async_mode=mode)
    except warpsan.Deadlock:
        return
    assert set(reported) & {"race", "async", "mbarrier"}


WRITE = (
    "shl.b32 %r5, %r0, 5; add.u32 %r6, %r1, %r5;\n"
    "st.shared.v4.u32 [%r6], {%r0, %r0, %r0, %r0}; st.shared.v4.u32 [%r6+16], {%r0, %r0, %r0, %r0};\n"
)
OTHER = WRITE.replace("%r0, %r0, %r0, %r0", "%r1, %r1, %r1, %r1")
FENCE = "fence.proxy.async.shared::cta;\n"


@pytest.mark.parametrize(
    ("middle", "expected"),
    [
        (FENCE + "bar.sync 0;\n", []),
        ("bar.sync 0;\n" + FENCE, []),
        ("bar.sync 0;\n", ["proxy"]),
        (FENCE, ["race"]),
        ("bar.sync 0;\nfence.proxy.async.global;\n", ["proxy"]),
        ("bar.sync 0;\nfence.acq_rel.cta;\n", ["proxy"]),
        ("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;\nbar.sync 0;\n", []),
        ("fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;\nbar.sync 0;\n", ["proxy"]),
        ("fence.proxy.alias;\nbar.sync 0;\n", ["proxy"]),
    ],
)
def test_what_a_store_reads_needs_a_fence_between_the_proxies(middle, expected):
    out = np.zeros((1, 16, 64), np.float16)
    body = START + WRITE + middle + BACK.format("", "")
    arguments = [
        warpsan.TensorMap(out.copy(), (1, 16, 64)),
        np.zeros(64, np.uint32),
        0,
        0,
        0,
        warpsan.TensorMap(out, (1, 16, 64)),
    ]
    assert kinds(body, arguments, params=STORE_PARAMS) == expected


def test_a_store_without_a_wait_or_whose_source_is_overwritten():
    out = np.zeros((1, 16, 64), np.float16)
    good = START + WRITE + FENCE + "bar.sync 0;\n" + BACK.format("", "") + "\nbar.sync 0;\n" + OTHER
    arguments = [
        warpsan.TensorMap(out.copy(), (1, 16, 64)),
        np.zeros(64, np.uint32),
        0,
        0,
        0,
        warpsan.TensorMap(out, (1, 16, 64)),
    ]
    wait, commit = "cp.async.bulk.wait_group.read 0;\n", "cp.async.bulk.commit_group;\n"
    for mode in ("late", "early"):
        assert kinds(good, arguments, params=STORE_PARAMS, async_mode=mode) == []
        for old, new in ((wait, ""), (commit, ""), (wait, wait.replace("0", "1")), ("\nbar.sync 0;\n" + OTHER, OTHER)):
            reported = kinds(good.replace(old, new), arguments, params=STORE_PARAMS, async_mode=mode)
            assert set(reported) & {"async", "race"}, (old, mode)


def test_a_box_that_is_misaligned_or_too_large_for_shared_memory():
    out = np.zeros((1, 16, 64), np.float16)
    for shift, kind in ((64, "misaligned"), (16384 - 1024, "out-of-bounds")):
        body = START + f"add.u32 %r1, %r1, {shift};\n" + load_of(3, 2048)
        arguments = [warpsan.TensorMap(out, (1, 16, 64)), np.zeros(64, np.uint32), 0, 0, 0]
        assert kinds(body, arguments, params=PARAMS) == [kind]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"box": (16,)}, "2 axes needs 2 numbers"),
        ({"box": (16, 4)}, "multiple of 16 bytes"),
        ({"box": (16, 128), "swizzle": "128B"}, "at most 128 bytes"),
        ({"box": (300, 64)}, "1 to 256"),
        ({"box": (16, 64), "swizzle": "96B"}, "swizzle"),
        ({"box": (16, 64), "interleave": "16B"}, "interleave"),
        (
            {"box": (16, 64), "shape": (64, 64), "strides": (136, 2)},
            "multiples of 16.*along axis 0, of size 64, it is 136",
        ),
        (
            {"box": (1, 4, 64), "shape": (4, 16, 64), "strides": (0, 128, 2)},
            "0 only along an axis of size 1.*axis 0.*4",
        ),
        ({"box": (16, 64), "shape": (65, 64)}, "reaches"),
        ({"box": (16, 64), "element_strides": (9, 1)}, "element strides"),
    ],
)
def test_a_map_that_the_driver_would_refuse(options, message):
    with pytest.raises(warpsan.LaunchError, match=message):
        warpsan.TensorMap(np.zeros((64, 64), np.float16), **options)


def test_wrong_arguments_and_forms():
    array = np.zeros((64, 64), np.float16)
    with pytest.raises(warpsan.LaunchError, match="tensor map"):
        warpsan.launch(kernel(""), "k", 1, 32, [warpsan.TensorMap(array, (16, 64))])
    body = START + load_of(3, 2048)
    arguments = [warpsan.TensorMap(array, (16, 64)), np.zeros(64, np.uint32), 0, 0, 0]
    assert kinds(body, arguments, params=PARAMS) == ["tensor-map"]  # two axes instead of three
    for form in (".im2col", ".tile::gather4", ".tile.cta_group::3"):
        with pytest.raises(warpsan.UnsupportedInstruction, match=r"PTX line \d+: cp.async.bulk.tensor"):
            warpsan.launch(kernel(body.replace(".tile", form), PARAMS), "k", 1, 32, arguments)


def test_a_stride_of_zero_along_an_axis_of_size_one():
    """As batched kernels pass it for a batch of one."""
    array = np.arange(16 * 32, dtype=np.float16).reshape(16, 32)
    tensor = warpsan.TensorMap(array, (1, 16, 32), shape=(1, 16, 32), strides=(0, 64, 2))
    assert (
        load(tensor, (0, 4, 0))[:1024].view(np.float16) == padded(array[None], (0, 4, 0), (1, 16, 32)).ravel()
    ).all()


def test_a_map_that_cute_has_edited_is_still_a_map():
    """CuTe clears bit 21 of the second word of a CUtensorMap, for drivers of CUDA 12.2 and earlier."""
    gpu = warpsan.Device()
    array = gpu.array(np.arange(64 * 32, dtype=np.float16).reshape(64, 32))
    out = gpu.empty(1024, np.uint32)
    raw = np.frombuffer(warpsan.TensorMap(array, (16, 32)).descriptor(array.address), np.uint64).copy()
    for second in (int(raw[1]) | 1 << 21, int(raw[1]) & ~(1 << 21)):
        raw[1] = second
        body = START + load_of(2, 1024) + CTA_WAIT.format(0, "%r2", 0) + READ.split("ld.shared.u32 %r7, [%r6+1024]")[0]
        report = gpu.module(kernel(body, PARAMS))["k"].launch(1, 32, [raw.tobytes(), out, 0, 16, 0])
        assert report.hazards == []
        assert (out.view(np.float16)[:512] == array[16:32].ravel()).all()


def test_a_map_of_freed_memory_is_a_hazard():
    gpu = warpsan.Device()
    array, out = gpu.empty((64, 32), np.float16), gpu.empty(1024, np.uint32)
    raw = warpsan.TensorMap(array, (16, 32)).descriptor(array.address)
    gpu.free(array)
    report = gpu.module(kernel(START + load_of(2, 1024), PARAMS))["k"].launch(1, 32, [raw, out, 0, 0, 0])
    assert [hazard.kind for hazard in report.hazards] == ["tensor-map"]
    assert "do not lie in one buffer" in report.hazards[0].message


@pytest.mark.parametrize(("mode", "schedule"), MODES)
@pytest.mark.parametrize("checks", [warpsan.CHECKS, (*warpsan.CHECKS, "lanes")])
def test_lanes_that_store_the_same_box_write_equal_bytes(mode, schedule, checks):
    """All lanes of a warp issue one store: FlashAttention-4's epilogue. Another box in the same place is a race."""
    out = np.zeros((1, 16, 64), np.float16)
    arguments = [warpsan.TensorMap(out.copy(), out.shape), np.zeros(64, np.uint32), 0, 0, 0]
    arguments.append(warpsan.TensorMap(out, out.shape))
    store = BACK.format("", "").replace("@!%p1", "setp.ge.u32 %p1, %r0, 32; @%p1")
    body = START + WRITE + FENCE + "bar.sync 0;\n" + store
    others = body.replace(
        "cp.async.bulk.tensor", "and.b32 %r5, %r0, 1; mad.lo.u32 %r1, %r5, 128, %r1; cp.async.bulk.tensor"
    )
    options = {"params": STORE_PARAMS, "async_mode": mode, "schedule": schedule}
    assert kinds(body, arguments, **options) == []
    assert "lane-race" in kinds(others, arguments, **options)


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("casts", ["", ".multicast::cluster"])
def test_copies_of_a_pair_signal_the_mbarrier_of_the_leading_cta(mode, casts):
    """Both CTAs load a box; the address of the mbarrier has the lowest bit of the rank cleared."""
    array = np.arange(32 * 64).astype(np.float16).reshape(1, 32, 64)
    out = np.zeros((2, 16), np.uint32)
    copy = f"cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{casts}.cta_group::2"
    place = "mapa.shared::cluster.u32 %r15, %r1, %r10; " if casts else "mov.u32 %r15, %r1; "
    body = (
        "ld.param.u64 %rd8, [p]; mov.b64 %rd6, a; cvta.param.u64 %rd7, %rd6; mov.u32 %r10, %cluster_ctarank;\n"
        "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n@%p1 fence.mbarrier_init.release.cluster;\n"
        "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
        "setp.eq.and.u32 %p3, %r10, 0, %p1; @%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 4096;\n"
        f"and.b32 %r11, %r2, -16777217; shl.b32 %r12, %r10, 4; mov.u32 %r13, 0; {place}\n"
        "mov.u32 %r14, 1; shl.b32 %r14, %r14, %r10; cvt.u16.u32 %h1, %r14;\n"
        f"@%p1 {copy} [%r15], [%rd7, {{%r13, %r12, %r13}}], [%r11]{', %h1' if casts else ''};\n"
        "setp.ne.u32 %p4, %r10, 0; @%p4 bra SKIP;\n" + CTA_WAIT.format(0, "%r2", 0) + "SKIP:\n"
        "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
        "shl.b32 %r16, %r0, 2; add.u32 %r17, %r1, %r16; ld.shared.u32 %r18, [%r17]; shl.b32 %r19, %r10, 6;\n"
        "add.u32 %r19, %r19, %r16; cvt.u64.u32 %rd9, %r19; add.u64 %rd9, %rd8, %rd9;\n"
        "setp.lt.u32 %p5, %r0, 16; @%p5 st.global.u32 [%rd9], %r18;\n"
    )
    params = ".param .u64 p, .param .align 64 .b8 a[128]"
    text = kernel(body, params).replace("ld.param.u64 %rd1, [p]; ", "mov.u64 %rd1, 0; ", 1)
    arguments = [out, warpsan.TensorMap(array, (1, 16, 64))]
    report = warpsan.launch(text, "k", 2, 64, arguments, cluster=(2, 1, 1), async_mode=mode)
    assert [hazard.message for hazard in report.hazards] == []
    np.testing.assert_array_equal(out.view(np.float16), array[0, ::16, :32])
