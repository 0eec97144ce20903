"""Function addresses, recursion, device heap, clocks, cooperative launches, instructions rejected on execution."""

import numpy as np
import pytest

import warpsan
from hopper_snippets import CTA_WAIT, kernel
from warpsan.build.nvrtc import compile_program
from warpsan.host.options import SCHEDULES

SOURCE = """
#define KERNEL extern "C" __global__ void
struct Shape { __device__ virtual int area(int) const = 0; __device__ virtual ~Shape() {} };
struct Square : Shape {
    int a; __device__ Square(int a) : a(a) {}
    __device__ int area(int k) const override { return a * a + k; }
};
struct Box : Shape {
    int a, b; __device__ Box(int a, int b) : a(a), b(b) {}
    __device__ int area(int k) const override { return a * b * k; }
};
KERNEL shapes(int *o) {
    int t = threadIdx.x;
    Shape *s = t & 1 ? (Shape *)new Square(t) : (Shape *)new Box(t, 3);
    o[t] = s->area(5);
    delete s;
}
__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
KERNEL fibs(int *o) { o[threadIdx.x] = fib(threadIdx.x % 11); }
__device__ __noinline__ bool odd(unsigned);
__device__ __noinline__ bool even(unsigned n) { return n == 0 || odd(n - 1); }
__device__ __noinline__ bool odd(unsigned n) { return n != 0 && even(n - 1); }
KERNEL parities(int *o) { o[threadIdx.x] = even(threadIdx.x); }
// Each depth has an array of its own, whose address it passes on.
__device__ __noinline__ int nested(const int *p, int n, int d) {
    int mine[4];
    for (int i = 0; i < 4; i++) mine[i] = p[i] + d + (i == n);
    if (n == 0) return mine[0] + mine[1] + mine[2] + mine[3];
    int below = nested(mine, n - 1, d + 1);
    return below + mine[n & 3] + p[(n + 1) & 3];
}
KERNEL nest(int *o) {
    int p[4] = {1, 2, 3, (int)threadIdx.x};
    o[threadIdx.x] = nested(p, threadIdx.x % 5, 1);
}
__device__ __noinline__ int endless(int n) { return n + endless(n + 1) * (n | 1); }
KERNEL deep(int *o) { o[threadIdx.x] = endless(threadIdx.x); }
__device__ int plus(int a) { return a + 1; }
__device__ int twice(int a) { return a * 2; }
__device__ int minus(int a) { return -a; }
typedef int (*Function)(int);
__device__ Function table[3] = {plus, twice, minus};
__device__ Function null_pointer;
KERNEL pointers(int *o) { o[threadIdx.x] = table[threadIdx.x % 3](threadIdx.x); }
KERNEL nowhere(int *o) { o[threadIdx.x] = null_pointer(1); }
KERNEL lists(int *o) {
    struct Node { Node *next; int value; };
    Node *head = nullptr;
    for (int i = 0; i < 5; i++) head = new Node{head, i * (int)threadIdx.x};
    int sum = 0;
    while (head) { Node *next = head->next; sum = 3 * sum + head->value; delete head; head = next; }
    o[threadIdx.x] = sum;
}
__device__ int *kept;
KERNEL keep(int *o) { kept = (int *)malloc(16); kept[3] = 7; o[0] = 1; }
KERNEL use(int *o) { o[0] = kept[3]; free(kept); }
KERNEL beyond(int *o) { int *p = (int *)malloc(16); p[4] = 1; o[0] = 1; free(p); }
KERNEL after_free(int *o) { volatile int *p = (int *)malloc(16); p[0] = 1; free((void *)p); o[0] = p[0]; }
KERNEL twice_free(int *o) { int *p = (int *)malloc(16); *p = 1; free(p); free(p); }
KERNEL full(int *o) { o[0] = malloc(64 << 20) == nullptr; }
"""
T = np.arange(32)


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def nested(p, n, d):
    mine = [p[i] + d + (i == n) for i in range(4)]
    return sum(mine) if n == 0 else nested(mine, n - 1, d + 1) + mine[n & 3] + p[(n + 1) & 3]


def listed(t):
    total = 0
    for i in reversed(range(5)):
        total = 3 * total + i * t
    return total


WANT = {
    "shapes": [t * t + 5 if t & 1 else t * 3 * 5 for t in T],
    "fibs": [fib(t % 11) for t in T],
    "parities": [t % 2 == 0 for t in T],
    "nest": [nested([1, 2, 3, t], t % 5, 1) for t in T],
    "pointers": [(t + 1, t * 2, -t)[t % 3] for t in T],
    "lists": [listed(t) for t in T],
}


@pytest.fixture(scope="module")
def ptx():
    options = ("--gpu-architecture=sm_90", "--device-as-default-execution-space")
    return compile_program(SOURCE, "dynamic.cu", "fibs", (), options).ptx.decode().rstrip("\0")


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", WANT)
def test_programs_with_recursion_and_pointers_to_functions(ptx, name, schedule):
    out = np.full(32, -99, np.int32)
    assert warpsan.launch(ptx, name, 1, 32, [out], schedule=schedule).hazards == []
    assert out.tolist() == WANT[name]


def test_they_are_really_in_the_code(ptx):
    assert "callprototype" in ptx
    assert "malloc" in ptx
    assert "call.uni (retval0), _Z3fibi" in ptx.replace("\t", "").replace("\n", " ").replace("  ", " ")


@pytest.mark.usefixtures("recorded_launches")
def test_the_heap_lasts_as_long_as_the_device(ptx):
    gpu = warpsan.Device(1 << 26)
    module, out = gpu.module(ptx), gpu.empty(1, np.int32)
    for _ in range(2):
        module["keep"].launch(1, 1, [out])
        assert module["use"].launch(1, 1, [out]).hazards == []
        assert out[0] == 7
    with pytest.raises(warpsan.IllegalAccess, match="is free already"):
        module["use"].launch(1, 1, [out])


@pytest.mark.parametrize(("name", "kind"), [("beyond", "out-of-bounds"), ("after_free", "out-of-bounds")])
def test_accesses_beyond_an_allocation(ptx, name, kind):
    hazards = warpsan.launch(ptx, name, 1, 1, [np.zeros(1, np.int32)]).hazards
    assert [hazard.kind for hazard in hazards] == [kind]


def test_a_full_heap_gives_a_null_pointer(ptx):
    out = np.zeros(1, np.int32)
    warpsan.launch(ptx, "full", 1, 1, [out])
    assert out[0] == 1


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("deep", r"calls within calls are \d+ deep, where the stack ends"),
        ("nowhere", "calls the address 0x0, where there is no function"),
        ("twice_free", "free is given 0x.* is free already"),
    ],
)
def test_what_cannot_go_on(ptx, name, what):
    with pytest.raises(warpsan.IllegalAccess, match=what):
        warpsan.launch(ptx, name, 1, 1, [np.zeros(1, np.int32)])


# ---- hand-written barriers -------------------------------------------------------------------------------------------

HEAD = ".version 8.7\n.target sm_90\n.address_size 64\n"


def entry(body, before=""):
    registers = ".reg .b64 %d<9>; .reg .b32 %r<9>; .reg .pred %p<4>;"
    return (
        f"{HEAD}{before}\n.visible .entry k(.param .u64 out)\n{{ {registers}\nld.param.u64 %d0, [out];\n{body} ret;\n}}"
    )


def test_clocks_count_steps():
    body = (
        "mov.u64 %d1, %clock64; mov.u32 %r1, %clock; mov.u64 %d2, %globaltimer; mov.u32 %r2, %clock_hi;\n"
        "LOOP: mov.u64 %d3, %clock64; sub.u64 %d4, %d3, %d1; setp.lt.u64 %p0, %d4, 1000; @%p0 bra LOOP;\n"
        "st.global.u64 [%d0], %d1; st.global.u32 [%d0+8], %r1; st.global.u64 [%d0+16], %d2;\n"
        "st.global.u64 [%d0+24], %d3;"
        "st.global.u32 [%d0+12], %r2; mov.u32 %r3, %globaltimer_lo; st.global.u32 [%d0+32], %r3;"
    )
    out = np.full(5, -1, np.int64)
    report = warpsan.launch(entry(body), "k", 1, 1, [out])
    first, second, third, last, lower = (int(value) for value in out)
    assert first < second < third < last < lower & 0xFFFFFFFF
    assert last - first >= 1000
    assert report.steps <= 2 * 1200


GRID_SYNC = """
mov.u32 %r0, %envreg1; mov.u32 %r1, %envreg2; mov.b64 %d1, {%r1, %r0};
setp.ne.u64 %p0, %d1, 0; @!%p0 trap;
mov.u32 %r2, %ctaid.x; mov.u32 %r3, %nctaid.x; mul.wide.u32 %d2, %r2, 4; add.u64 %d2, %d2, %d0;
st.global.u32 [%d2], %r2;
membar.gl; atom.add.global.u32 %r4, [%d1+4], 1;
WAIT: ld.acquire.gpu.global.u32 %r5, [%d1+4]; setp.lt.u32 %p1, %r5, %r3; @%p1 bra WAIT;
sub.u32 %r6, %r3, 1; sub.u32 %r6, %r6, %r2; mul.wide.u32 %d3, %r6, 4; add.u64 %d3, %d3, %d0;
ld.global.u32 %r7, [%d3]; st.global.u32 [%d2+4096], %r7;
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_blocks_of_a_cooperative_launch_wait_for_each_other(schedule):
    """More blocks than a chunk would have; all of them are resident."""
    out = np.zeros(2048, np.uint32)
    options = {"schedule": schedule, "cooperative": True}
    assert warpsan.launch(entry(GRID_SYNC), "k", 600, 1, [out], **options).hazards == []
    assert out[1024:1624].tolist() == list(reversed(range(600)))


# Each thread writes a word and reads the word of the opposite thread of the grid. In between, twice, the first thread
# of each block counts it in and waits for the others, like cooperative groups.
ROUND = """
bar.sync 0; @%p2 bra MET{0};
membar.gl; atom.add.global.u32 %r4, [%d1+4], 1; mul.lo.u32 %r8, %r3, {0};
WAIT{0}: ld.volatile.global.u32 %r5, [%d1+4]; setp.lt.u32 %p1, %r5, %r8; @%p1 bra WAIT{0};
membar.gl; MET{0}: bar.sync 0;
"""
GRID_GROUP = (
    """mov.u32 %r0, %envreg1; mov.u32 %r1, %envreg2; mov.b64 %d1, {%r1, %r0}; mov.u32 %r0, %tid.x; mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %nctaid.x; setp.ne.u32 %p2, %r0, 0; mad.lo.u32 %r6, %r2, %r1, %r0;
    mul.wide.u32 %d2, %r6, 4; add.u64 %d2, %d2, %d0; mul.lo.u32 %r7, %r3, %r1; sub.u32 %r7, %r7, 1;
    sub.u32 %r7, %r7, %r6; mul.wide.u32 %d3, %r7, 4; add.u64 %d3, %d3, %d0; st.global.u32 [%d2], %r6;"""
    + ROUND.format(1)
    + "ld.global.u32 %r7, [%d3];"
    + ROUND.format(2)
    + "st.global.u32 [%d2], %r7;"
)


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_cooperative_launch(schedule):
    """A race without its fences, or without the second round."""
    options = {"schedule": schedule, "cooperative": True}
    without = GRID_GROUP.replace("membar.gl;", ""), GRID_GROUP.replace(ROUND.format(2), "")
    for body in (GRID_GROUP, *without):
        out = np.zeros(2048, np.uint32)
        reported = warpsan.launch(entry(body), "k", 8, 64, [out], **options).hazards
        assert {hazard.kind for hazard in reported} == (set() if body == GRID_GROUP else {"race"})
        assert body != GRID_GROUP or out[:512].tolist() == list(reversed(range(512)))


def test_without_a_cooperative_launch_there_is_no_workspace():
    with pytest.raises(warpsan.KernelTrap):
        warpsan.launch(entry(GRID_SYNC), "k", 2, 1, [np.zeros(2048, np.uint32)])


UNMODELLED = {
    "an opcode": "stackrestore.u32 %r1;",
    "a modifier": "ld.global.b32.fancy %r1, [%d0];",
    "a special register": "mov.u32 %r1, %smid;",
    "a texture": "tex.2d.v4.f32.s32 {%r1, %r2, %r3, %r4}, [picture, {%r5, %r6}];",
    "a register of 128 bits": "mov.b128 %wide, {%d1, %d2};",
    "an end of a block": "bar.sync.fancy 0;",
    "a call of what is not there": "call elsewhere;",
}
BEFORE = ".global .texref picture; .extern .func elsewhere ();"


@pytest.mark.parametrize("instruction", UNMODELLED.values(), ids=UNMODELLED)
@pytest.mark.parametrize("guarded", [False, True])
def test_what_is_not_modelled_is_refused_where_a_lane_reaches_it(instruction, guarded):
    """An instruction on an unexecuted path is accepted, behind a branch or a guard."""
    body = ".reg .b128 %wide; mov.u32 %r0, %tid.x; setp.ge.u32 %p0, %r0, 32;\n"
    around = f"@%p0 {instruction}" if guarded else f"@!%p0 bra OVER;\n{instruction}\nOVER:"
    text = entry(f"{body}{around}\nst.global.u32 [%d0], 3;", BEFORE)
    out = np.zeros(1, np.uint32)
    assert warpsan.launch(text, "k", 1, 32, [out]).hazards == []
    assert out[0] == 3
    with pytest.raises(warpsan.UnsupportedInstruction, match=r"PTX line \d+"):
        warpsan.launch(text, "k", 1, 33, [out])


PARAMS = ".param .align 64 .b8 a[128], .param .u64 p, .param .u64 q, .param .u64 g"
REPLACE = """
// The map to shared memory, word by word; lane 0 edits it there, and the warp copies it to global memory.
mov.b64 %rd3, a; cvta.param.u64 %rd4, %rd3; ld.param.u64 %rd5, [q]; ld.param.u64 %rd6, [g];
shl.b32 %r5, %r0, 2; add.u32 %r6, %r1, %r5; add.u32 %r6, %r6, 8192; cvt.u64.u32 %rd7, %r5; add.u64 %rd7, %rd7, %rd4;
ld.b32 %r7, [%rd7]; st.shared.b32 [%r6], %r7; bar.warp.sync -1; add.u32 %r8, %r1, 8192;
@%p1 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r8], %rd5;
@%p1 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r8], 1, 12;
@%p1 tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r8], 0, 128;
@%p1 tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%r8], 1;
bar.warp.sync -1;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd6], [%r8], 128;
fence.proxy.tensormap::generic.acquire.gpu [%rd6], 128;
@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
bar.sync 0;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024;
@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd6, {0, 4}], [%r2];
"""
OUT = "shl.b32 %r5, %r0, 2; add.u32 %r6, %r1, %r5;\n" + "".join(
    f"ld.shared.u32 %r7, [%r6+{128 * i}]; st.global.u32 [%rd2+{128 * i}], %r7;\n" for i in range(8)
)


@pytest.mark.usefixtures("recorded_launches")
def test_a_kernel_edits_a_tensor_map():
    """Another tensor, with fewer rows, a doubled stride, and NaN beyond its end (as in CUTLASS's grouped products)."""
    gpu = warpsan.Device(1 << 24)
    first, second = (gpu.array(np.arange(64 * 32).reshape(64, 32) + add, np.float16) for add in (0, 1))
    out, place = gpu.empty(256, np.uint32), gpu.empty(128, np.uint8)
    text = kernel(REPLACE + CTA_WAIT.format(0, "%r2", 0) + OUT, PARAMS).replace(".version 8.0", ".version 8.5")
    for checks in (warpsan.CHECKS, ()):
        out[...] = 0
        arguments = [warpsan.TensorMap(first, (16, 32)), out, second, place]
        assert gpu.module(text)["k"].launch(1, 32, arguments, checks=checks).hazards == []
    got, want = out.view(np.float16).reshape(16, 32), np.full((16, 32), np.nan, np.float16)
    want[:8] = second[8:24:2]
    np.testing.assert_array_equal(got, want)
    old = gpu.module(text.replace(".version 8.5", ".version 8.4").replace("[%r8], 0, 128", "[%r8], 0, 8"))["k"]
    out[...] = 0
    old.launch(1, 32, [warpsan.TensorMap(first, (16, 32)), out, second, place], checks=())
    np.testing.assert_array_equal(out.view(np.float16).reshape(16, 32), want)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("[%r8], 1, 12", "[%r8], 1, 99"), "bytes do not lie in one buffer"),
        (("[%r8], 0, 128", "[%r8], 0, 120"), "multiples of 16 bytes"),
        (
            ("fill_mode.shared::cta.b1024.b32 [%r8], 1", "rank.shared::cta.b1024.b32 [%r8], 2"),
            "at least one element",
        ),
        (("fill_mode.shared::cta.b1024.b32 [%r8], 1", "swizzle_mode.shared::cta.b1024.b32 [%r8], 4"), "not modelled"),
    ],
)
def test_an_edit_that_leaves_no_tensor_map(change, what):
    text = kernel(REPLACE, PARAMS).replace(".version 8.0", ".version 8.5").replace(*change)
    first = np.zeros((64, 32), np.float16)
    arguments = [warpsan.TensorMap(first, (16, 32)), np.zeros(256, np.uint32), first.copy(), np.zeros(128, np.uint8)]
    hazards = warpsan.launch(text, "k", 1, 32, arguments).hazards
    assert [hazard.kind for hazard in hazards] == ["tensor-map"]
    assert what in hazards[0].message
