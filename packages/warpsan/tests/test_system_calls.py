"""Driver functions in a kernel: printf, assert, traps and breakpoints."""

import functools

import numpy as np
import pytest

import warpsan
from outcomes import alike
from warpsan.build.nvrtc import compile_program
from warpsan.host.options import SCHEDULES
from warpsan.profile.recording import AccessRecorder

PRINTING = r"""
extern "C" __global__ void kernel(int n) {
  const int t = threadIdx.x + 2 * blockIdx.x;
  __shared__ char word[8];
  if (threadIdx.x == 0) { word[0] = 'o'; word[1] = 'k'; word[2] = 0; }
  __syncthreads();
  if (t == 1) printf("%d|%5d|%-5d|%05d|%+d|%x|%X|%#x|%o|%u\n", n, n, n, n, n, n, n, n, n, -1);
  if (t == 2) printf("%lld|%llu|%lx|%hd|%hhu|%c|%%|%p", -1ll << 40, ~0ull, 1ull << 33, 70000, 300, 'x', (void*)0x10);
  if (t == 3) printf("%f|%.2f|%10.3e|%g|%G|%*d|%.*f", 1.5f, 2.0 / 3, 12345.678, 1e-9, 1e20, 6, n, 1, 0.25);
  if (t == 4) printf("%s and %8s and %-4s.", "text", word, "ab");
  if (t == 5) printf("nothing to fill in\n");
}
"""

WRITTEN = [
    "42|   42|42   |00042|+42|2a|2A|0x2a|52|4294967295\n",
    "-1099511627776|18446744073709551615|200000000|4464|44|x|%|0x10",
    "1.500000|0.67| 1.235e+04|1e-09|1E+20|    42|0.2",
    "text and       ok and ab  .",
    "nothing to fill in\n",
]
"""Output of the C library's printf for the same calls."""


@functools.cache
def compiled(source):
    options = ("--gpu-architecture=sm_90", "-lineinfo")
    return compile_program(source, "calls.cu", "kernel", (), options).ptx.decode().rstrip("\0")


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_printf_writes_what_c_writes(schedule):
    report = warpsan.launch(compiled(PRINTING), "kernel", 3, 2, [42], schedule=schedule)
    assert sorted(report.printed) == sorted(WRITTEN)
    assert report.hazards == []


@pytest.mark.usefixtures("recorded_launches")
def test_printf_returns_how_many_arguments_it_took_and_keeps_the_order_of_the_lanes():
    source = (
        'extern "C" __global__ void kernel(int* out) { out[threadIdx.x] = printf("%d %d\\n", threadIdx.x, 7);'
        ' out[threadIdx.x] += 10 * printf("end"); }'
    )
    out = np.zeros(4, np.int32)
    report = warpsan.launch(compiled(source), "kernel", 1, 4, [out])
    assert out.tolist() == [2] * 4
    assert report.printed == tuple(f"{t} 7\n" for t in range(4)) + ("end",) * 4


def test_a_pointer_to_nothing_is_said():
    source = 'extern "C" __global__ void kernel(const char* p) { printf("%s", p); }'
    with pytest.raises(
        warpsan.IllegalAccess, match=r"call\.uni at PTX line \d+ is given the address 0x8, where there is"
    ):
        warpsan.launch(compiled(source), "kernel", 1, 1, [8])


ASSERTING = r"""
extern "C" __device__ [[noreturn]] void __assertfail(const char*, const char*, unsigned, const char*, unsigned long);
#define check(what) ((what) ? (void)0 : __assertfail(#what, "calls.cu", __LINE__, "kernel", 1))
extern "C" __global__ void kernel(int* x, int limit) {
  check(x[threadIdx.x] < limit);
  x[threadIdx.x] = -1;
}
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_failed_assertion_says_what_where_and_who(schedule):
    x = np.arange(64, dtype=np.int32)
    assert warpsan.launch(compiled(ASSERTING), "kernel", 1, 64, [x, 64], schedule=schedule).hazards == []
    assert (x == -1).all()
    x = np.arange(64, dtype=np.int32)
    what = r"^calls\.cu:5: kernel: block \(0, 0, 0\), thread \(61, 0, 0\): assertion `x\[threadIdx\.x\] < limit` failed"
    with pytest.raises(warpsan.DeviceAssertion, match=what):
        warpsan.launch(compiled(ASSERTING), "kernel", 1, 64, [x, 61], schedule=schedule)


@pytest.mark.parametrize(("statement", "opcode"), [("__trap();", "trap"), ("__brkpt();", "brkpt")])
def test_a_trap_ends_the_launch(statement, opcode):
    source = f'extern "C" __global__ void kernel(int n) {{\n  if (threadIdx.x == n)\n    {statement}\n}}'
    assert warpsan.launch(compiled(source), "kernel", 1, 32, [32]).hazards == []
    what = rf"^{opcode} at PTX line \d+ \(calls\.cu:3\), by block \(0, 0, 0\), thread \(7, 0, 0\)"
    with pytest.raises(warpsan.KernelTrap, match=what):
        warpsan.launch(compiled(source), "kernel", 1, 32, [7])


@pytest.mark.parametrize(
    "call",
    ["call (%r), vprintf, (%a, %r);", "call (%r), vprintf, (%a);", "call (%r), malloc, (%a);", "trap.now;"],
)
def test_other_forms_are_refused(call):
    text = (
        ".version 8.7\n.target sm_90\n.address_size 64\n.extern .func (.param .b64 r) malloc (.param .b64 n);\n"
        f".entry k()\n{{ .reg .b64 %a; .reg .b32 %r;\n{call}\nret; }}"
    )
    with pytest.raises(warpsan.UnsupportedInstruction, match="line 7"):
        warpsan.launch(text, "k", 1, 32, [])


RACING = r"""
extern "C" __global__ void kernel(int *x, int n) {
  __shared__ int all[64];
  const int t = threadIdx.x;
  int *mine = (int *)malloc(8);
  *mine = t + n;
  all[t] = *mine;
  free(mine);
  if (t % 32 == 3) printf("%d\n", t);
  x[t] = all[63 - t];
}
"""
"""No barrier between write and read of shared memory."""


@pytest.mark.parametrize("schedule", ["lockstep", "random"])
def test_a_race_beside_calls_counters_and_recorders_is_reported(schedule, recorded):
    recorder = AccessRecorder("calls.cu:10")
    options = {"schedule": schedule, "counters": True, "watchers": [recorder]}
    report = warpsan.launch(compiled(RACING), "kernel", 1, 64, [np.zeros(64, np.int32), 4], **options)
    assert sorted(report.printed) == ["3\n", "35\n"]
    assert {each.space for each in recorder.records} == {"global", "shared"}
    assert {each.kind for each in report.hazards} == {"race"}
    recorded.check([alike(report.hazards), report.counters.total("wavefronts"), report.counters.by_warp])
