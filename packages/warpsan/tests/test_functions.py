"""Device functions: arguments, results, frames, divergent calls, and rejections."""

import functools

import numpy as np
import pytest

import warpsan
from warpsan.build.nvrtc import compile_program
from warpsan.host.options import SCHEDULES

HEAD = ".version 8.7\n.target sm_90\n.address_size 64\n"
THREADS = 64


def launch(functions, body, *, kinds=frozenset(), **options):
    """Run a body on one block; ``%t`` is the thread, ``%d`` its result, ``%x``, ``%w``, ``%p`` are free.

    ``kinds`` has the expected hazard kinds.
    """
    text = (
        f"{HEAD}{functions}\n.visible .entry k(.param .u64 out)\n{{\n"
        ".reg .b64 %a, %w<4>; .reg .b32 %t, %d, %x<9>; .reg .pred %p<4>; .shared .align 4 .b8 tile[256];\n"
        "mov.u32 %t, %tid.x; mov.u32 %d, 0; mul.wide.u32 %w0, %t, 4; ld.param::entry.u64 %a, [out]; "
        "add.u64 %a, %a, %w0;\n"
        f"{body}\nst.global.u32 [%a], %d;\nret;\n}}\n"
    )
    out = np.full(THREADS, 0xDEAD, np.uint32)
    report = warpsan.launch(text, "k", 1, THREADS, [out], checks=("race", "memory", "async", "strict"), **options)
    assert {hazard.kind for hazard in report.hazards} == kinds
    return out.tolist()


INCREMENT = ".func (.reg .b32 out) inc (.reg .b32 x, .reg .b32 by)\n{ add.u32 out, x, by; ret; }"


def test_register_parameters_and_results():
    body = "call (%x0), inc, (%t, 5);\ncall.uni (%x1), inc, (%x0, %x0);\ncall (%d), inc, (%tid.x, %x1);"
    assert launch(INCREMENT, body) == [t + 2 * (t + 5) for t in range(THREADS)]


def test_a_result_may_be_its_own_argument_and_results_may_swap():
    swap = ".func (.reg .b32 u, .reg .b32 v) swap (.reg .b32 a, .reg .b32 b)\n{ mov.b32 u, b; mov.b32 v, a; ret; }"
    body = "mov.u32 %x0, 1000; call (%t, %x0), swap, (%t, %x0); mad.lo.u32 %d, %t, 7, %x0;"
    assert launch(swap, body) == [7000 + t for t in range(THREADS)]


def test_a_parameters_bytes_can_be_read_in_every_width():
    """Bytes in, in one order; a vector and halves out, from other offsets (PTX ISA: little endian)."""
    mix = (
        ".func (.param .align 16 .b8 out[16]) mix (.param .align 8 .b8 in[24])\n{ .reg .b32 %r<4>; .reg .b16 %h<2>;"
        " .reg .b64 %l;\nld.param.v2.u32 {%r0, %r1}, [in+8]; ld.param.u8 %r2, [in+1]; ld.param.s8 %r3, [in+16];\n"
        "ld.param::func.u64 %l, [in]; ld.param.u16 %h0, [in+6];\nst.param.v4.b32 [out], {%r1, %r0, %r2, %r3};"
        "st.param.b16 [out+2], %h0; ret; }"
    )
    body = (
        "{ .param .align 8 .b8 a[24]; .param .align 16 .b8 r[16]; .reg .b32 %v<4>;\n"
        "mov.b64 %w1, 0x8877665544332211; st.param::func.b64 [a], %w1; "
        "st.param.b32 [a+8], %t; st.param.b32 [a+12], 77;\n"
        "st.param.b8 [a+16], 0x80; call.uni (r), mix, (a);\n"
        "ld.param.v4.b32 {%v0, %v1, %v2, %v3}, [r]; add.u32 %d, %v1, %v2; add.u32 %d, %d, %v3; add.u32 %d, %d, %v0; }"
    )
    first = 77 | 0x8877 << 16
    assert launch(mix, body) == [(t + 0x22 - 128 + first) % 2**32 for t in range(THREADS)]


def test_the_address_of_a_parameter_lies_in_local_memory():
    third = (
        ".func (.param .b32 out) third (.param .align 4 .b8 in[16])\n{ .reg .b32 %r; .reg .b64 %l;\n"
        "mov.b64 %l, in; ld.local.u32 %r, [%l+8]; st.param.b32 [out], %r; ret; }"
    )
    body = (
        "{ .param .align 4 .b8 a[16]; .param .b32 r; st.param.v4.b32 [a], {1, 2, %t, 4};\n"
        "call (r), third, (a); ld.param.b32 %d, [r]; }"
    )
    assert launch(third, body) == list(range(THREADS))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_registers_that_live_across_nested_calls_keep_their_values(schedule):
    """Each level keeps its values during deeper calls, whose registers have the same names."""
    inner = ".func (.reg .b32 out) inner (.reg .b32 x)\n{ .reg .b32 %x<4>; mul.lo.u32 %x0, x, x; add.u32 out, %x0, 1; }"
    outer = (
        ".func (.reg .b32 out) outer (.reg .b32 x)\n{ .reg .b32 %x<4>; mul.lo.u32 %x0, x, 10; add.u32 %x3, x, 3;\n"
        "call (%x1), inner, (x); call (%x2), inner, (%x3); add.u32 out, %x1, %x2; add.u32 out, out, %x0; ret; }"
    )
    body = (
        "add.u32 %x0, %t, 100000; mul.lo.u32 %x1, %t, 1000000; call (%x2), outer, (%t); call (%x3), inner, (%x2);\n"
        "add.u32 %d, %x0, %x1; add.u32 %d, %d, %x3;"
    )

    def want(t):
        below = t * t + 1 + (t + 3) ** 2 + 1 + 10 * t
        return (t + 100000 + t * 1000000 + below * below + 1) % 2**32

    assert launch(inner + outer, body, schedule=schedule) == [want(t) for t in range(THREADS)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_divergent_calls_join_again_behind_the_call(schedule):
    body = (
        "and.b32 %x0, %t, 3; setp.eq.u32 %p0, %x0, 0; @%p0 call (%d), inc, (%t, 100);\n"
        "setp.lt.u32 %p1, %x0, 2; @%p1 bra LOW; call (%d), inc, (%d, %t); bra JOIN;\n"
        "LOW: add.u32 %d, %d, 7;\nJOIN: activemask.b32 %x1; setp.ne.u32 %p2, %x1, -1; @%p2 trap;"
    )
    want = [(t + 107 if t % 4 == 0 else 7) if t % 4 < 2 else t for t in range(THREADS)]
    assert launch(INCREMENT, body, schedule=schedule) == want


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lanes_from_two_call_sites_meet_in_a_warp_wide_instruction(schedule):
    """The function's code exists once: its shuffle is one instruction for both halves of each warp."""
    reverse = ".func (.reg .b32 out) flip (.reg .b32 x)\n{ shfl.sync.bfly.b32 out, x, 31, 31, -1; ret; }"
    body = (
        "and.b32 %x0, %t, 1; setp.eq.u32 %p0, %x0, 0; @%p0 bra EVEN; add.u32 %x1, %t, 1000; call (%d), flip, (%x1);\n"
        "bra JOIN; EVEN: call (%d), flip, (%t); add.u32 %d, %d, 5; JOIN:"
    )
    source = [t + 1000 if t % 2 else t for t in range(THREADS)]
    want = [source[t ^ 31] + (0 if t % 2 else 5) for t in range(THREADS)]
    assert launch(reverse, body, schedule=schedule) == want


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_barrier_and_an_exit_in_a_function(schedule):
    """Threads from 48 on exit inside the function; the barrier does not wait for them, and it is a hazard."""
    share = (
        ".func (.reg .b32 out) share (.reg .b32 t, .reg .b32 tile)\n{ .reg .b32 %r<3>; .reg .pred %p;\n"
        "setp.ge.u32 %p, t, 48; @%p exit; mad.lo.u32 %r0, t, 4, tile; st.shared.u32 [%r0], t; bar.sync 0;\n"
        "xor.b32 %r1, t, 15; mad.lo.u32 %r1, %r1, 4, tile; ld.shared.u32 out, [%r1]; bar.sync 0;\n}"
    )
    body = "mov.u32 %x0, tile; mov.u32 %x1, 0;\nAGAIN: call (%x2), share, (%t, %x0); add.u32 %d, %d, %x2;\n"
    body += "add.u32 %x1, %x1, 1; setp.lt.u32 %p0, %x1, 3; @%p0 bra AGAIN;"
    result = launch(share, body, schedule=schedule, kinds={"barrier"})
    assert result == [3 * (t ^ 15) if t < 48 else 0xDEAD for t in range(THREADS)]


def test_early_returns_scopes_labels_and_a_call_without_parameters():
    """Both functions and the entry have a label DONE and a register %p0."""
    functions = (
        ".func clamp (.param .b64 place)\n{ .reg .b64 %l; .reg .b32 %r; .reg .pred %p0; ld.param.u64 %l, [place];\n"
        "ld.shared.u32 %r, [%l]; setp.lt.u32 %p0, %r, 9; @%p0 ret; setp.gt.u32 %p0, %r, 40; @%p0 bra DONE;\n"
        "{ .reg .b32 %r; mov.u32 %r, 9; st.shared.u32 [%l], %r; } DONE: }\n"
        ".func nothing\n{ bra DONE; DONE: ret; }\n"
    )
    body = (
        "setp.eq.u32 %p0, %t, %t; mov.u64 %w1, tile; add.u64 %w1, %w1, %w0; st.shared.u32 [%w1], %t;\n"
        "{ .param .b64 q; st.param.b64 [q], %w1; call clamp, (q); } call nothing;\n"
        "@%p0 bra DONE; trap; DONE: ld.shared.u32 %d, [%w1];"
    )
    assert launch(functions, body) == [9 if 9 <= t <= 40 else t for t in range(THREADS)]


def test_declarations_linkage_and_aliases():
    functions = (
        ".extern .func (.param .b32 r) elsewhere (.param .b32 x);\n"
        ".func (.reg .b32 out) inc (.reg .b32 x, .reg .b32 by);\n"
        ".visible .func (.reg .b32 out) inc (.reg .b32 x, .reg .b32 by) { add.u32 out, x, by; ret; }\n"
        ".weak .func stop () .noreturn { exit; }\n.visible .func (.reg .b32 o) more (.reg .b32 x, .reg .b32 by);\n"
        ".alias more, inc;\n"
    )
    body = "call (%d), more, (%t, 3); setp.lt.u32 %p0, %t, 60; @!%p0 call stop;"
    assert launch(functions, body) == [t + 3 if t < 60 else 0xDEAD for t in range(THREADS)]


@pytest.mark.parametrize(
    ("functions", "body", "what"),
    [
        (".extern .func f ();", "call f;", "the function f is declared, and the PTX does not define it"),
        (INCREMENT, "call (%d), inc, (%t);", "inc has 2 arguments, and 1 are given"),
        (INCREMENT, "call inc, (%t, 1);", "inc has 1 results, and 0 are given"),
        (INCREMENT, "call (%d), inc, (%w1, 1);", "8 bytes are passed for 4 bytes of inc"),
        (INCREMENT, "call (%d), inc, (tile, 1);", "expected a register or a .param variable"),
        (INCREMENT, "call.fast (%d), inc, (%t, 1);", "not modelled: .fast"),
        (INCREMENT, "{ .param .b32 q; st.param.b64 [q], %w1; }", "reaches beyond the 4 bytes of parameter q"),
    ],
)
def test_what_cannot_be_called_is_refused_with_its_line(functions, body, what):
    with pytest.raises(warpsan.UnsupportedInstruction, match=what):
        launch(functions, body)


@pytest.mark.parametrize(
    ("functions", "body", "what"),
    [
        ("", "call (%d) inc (%t);", "line 9: expected .results., function, .arguments."),
        (INCREMENT + INCREMENT, "", "line 5: function inc is defined twice"),
        (".func f (.param .b32)\n{ ret; }", "", "line 4: expected a parameter"),
        (".func 7 ()\n{ ret; }", "", "expected the function's name"),
    ],
)
def test_what_is_no_ptx_is_refused_with_its_line(functions, body, what):
    with pytest.raises(warpsan.PtxSyntaxError, match=what):
        launch(functions, body)


def test_an_entry_that_does_not_call_what_is_refused_runs():
    assert launch(".extern .func f ();\n.func a () { call a; call f; }", "mov.u32 %d, 3;") == [3] * THREADS


def test_hazards_and_counters_name_the_functions_line():
    """Two call sites: every line of the function is counted for both, in one place."""
    text = (
        f"{HEAD}.shared .b32 slot;\n.entry k()\n{{ .reg .b32 %t;\n"
        "mov.u32 %t, %tid.x;\ncall put, (%t);\ncall put, (1);\nret;\n}\n"
        ".func put (.reg .b32 x)\n{\nst.shared.u32 [slot], x;\nret;\n}\n"
    )
    report = warpsan.launch(text, "k", 1, 64, [], counters=True)
    assert {(hazard.kind, hazard.ptx_line) for hazard in report.hazards} == {("race", 14), ("lane-race", 14)}
    counts = {each.ptx_line: (each.text, each.warps) for each in report.counters.by_instruction}
    assert counts == {
        7: ("mov.u32", 2),
        8: ("call", 2),
        9: ("call", 2),
        10: ("ret", 2),
        14: ("st.shared.u32", 4),
        15: ("ret", 4),
    }


# ---- from the compiler -----------------------------------------------------------------------------------------------

SOURCE = r"""
struct Pair { int a; float b; short c; };
struct Big { float4 v; int n; };
FUNCTION float axpy(float a, const float* x, int i) { return a * x[i] + 1.0f; }
FUNCTION Pair turn(Pair p, int k) { Pair r; r.a = p.c + k; r.b = p.b * 2; r.c = (short)(p.a - 3); return r; }
FUNCTION float4 quad(float x) { return make_float4(x, x + 1, x + 2, x * 3); }
FUNCTION Big big(Big b, signed char c, bool t) { b.v.x += c; if (t) b.n += 5; return b; }
FUNCTION void put(int* p, int v) { *p = v; }
FUNCTION int outer(int x, int* q) { int t = x; put(&t, x * 3); put(q, t); return t + 1; }
FUNCTION int neighbour(int* tile, int t) {
  tile[t] = t * t;
  __syncthreads();
  int r = tile[t ^ 33];
  __syncthreads();
  return r;
}
FUNCTION float warp_sum(float x) {
  for (int i = 16; i; i /= 2) x += __shfl_xor_sync(-1u, x, i);
  return x;
}
FUNCTION double power(double x, int n) {
  double r = 1;
  while (n) { if (n & 1) r *= x; x *= x; n >>= 1; }
  return r;
}
extern "C" __global__ void kernel(const float* x, float* out, int* ints, int n) {
  __shared__ int tile[128];
  const int t = threadIdx.x;
  float acc = 0;
  for (int i = 0; i < n + t % 3; ++i) acc += axpy(2.0f, x, i + t);
  if (t % 3 == 0) acc += axpy(3.0f, x, t); else if (t % 3 == 1) acc += (float)power(1.0 + x[t], t % 6);
  Pair p{t, acc, (short)(t + 1)};
  p = turn(p, n);
  const float4 q = quad(acc);
  Big b = big(Big{q, t}, (signed char)(t - 64), t & 1);
  out[t] = q.x + q.w + p.b + b.v.x + warp_sum(acc);
  ints[t] = p.a + p.c + b.n + outer(t, ints + 128 + t) + neighbour(tile, t);
}
"""


@functools.cache
def compiled(function):
    options = ("--gpu-architecture=sm_90", f"-DFUNCTION=__device__ {function}", "-fmad=false")
    return compile_program(SOURCE, "calls.cu", "kernel", (), options).ptx.decode().rstrip("\0")


def results(ptx, **options):
    x = np.random.default_rng(0).standard_normal(160).astype(np.float32)
    out, ints = np.zeros(128, np.float32), np.zeros(256, np.int32)
    report = warpsan.launch(ptx, "kernel", 1, 128, [x, out, ints, 7], **options)
    assert report.hazards == []
    return out, ints


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_compiled_functions_compute_what_they_do_when_inlined(schedule):
    called = compiled("__noinline__")
    assert called.count("call.uni") >= 14
    inlined = compiled("__forceinline__")
    assert "call" not in inlined
    out, ints = results(called, schedule=schedule)
    want_out, want_ints = results(inlined)
    np.testing.assert_array_equal(out.view(np.uint32), want_out.view(np.uint32))
    np.testing.assert_array_equal(ints, want_ints)
    t = np.arange(128)
    assert (ints[128:] == 3 * t).all()
    expected = (t + 1 + 7) + (t - 3) + t + 5 * (t & 1) + 3 * t + 1 + (t ^ 33) ** 2
    assert (ints[:128] == expected).all()


def test_a_missing_barrier_inside_a_function_is_found():
    broken = compiled("__noinline__").replace("bar.sync", "// bar.sync", 1)
    x, out, ints = np.ones(160, np.float32), np.zeros(128, np.float32), np.zeros(256, np.int32)
    assert {hazard.kind for hazard in warpsan.launch(broken, "kernel", 1, 128, [x, out, ints, 7]).hazards} == {"race"}


TABLES = """
struct Row { int* place; int count; };
__device__ int first[4] = {1, 2, 3, 4}, second[2] = {10, 20};
__constant__ int third = 100;
__device__ Row rows[3] = {{first, 4}, {second + 1, 1}, {first + 2, 2}};
__device__ Row* last = &rows[2];
__device__ __noinline__ int total(const Row& row) {
  int s = 0;
  for (int i = 0; i < row.count; ++i) s += row.place[i];
  return s;
}
extern "C" __global__ void kernel(int* out) { out[threadIdx.x] = total(rows[threadIdx.x]) + total(*last) + third; }
"""


def test_tables_of_addresses_in_global_memory():
    options = ("--gpu-architecture=sm_90",)
    ptx = compile_program(TABLES, "tables.cu", "kernel", (), options).ptx.decode().rstrip("\0")
    assert "generic(first)" in ptx
    out = np.zeros(3, np.int32)
    assert warpsan.launch(ptx, "kernel", 1, 3, [out]).hazards == []
    assert out.tolist() == [10 + 7 + 100, 20 + 7 + 100, 7 + 7 + 100]


def test_a_table_of_functions_does_not_matter_where_it_is_not_used():
    table = ".func f () { ret; }\n.global .align 8 .u64 table[1] = {f};"
    assert launch(table, "mov.u32 %d, 2;") == [2] * THREADS
