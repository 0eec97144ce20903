"""Pairs of small CUDA kernels: a correct one, and one with a bug of registers, barriers or atomics by a one-line edit.

All are ``entry(const unsigned* in, unsigned* out, int n)``. They compute no attention, so the judge cannot reject them,
and they are not in the catalogue (``sdpalab.bugs``): each tests one check of the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpsan.planting import replace_once

__all__ = ["PAIRS", "Pair"]

ALL = ("lockstep", "forward", "reverse", "random")

_HEAD = """
__device__ __forceinline__ void sync(int name, int count) {
    asm volatile("bar.sync %0, %1;" : : "r"(name), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(int name, int count) {
    asm volatile("bar.arrive %0, %1;" : : "r"(name), "r"(count) : "memory");
}
"""


@dataclass(frozen=True)
class Pair:
    """A correct kernel, and the edit that breaks it.

    Attributes
    ----------
    name : str
    body : str
        Body of the correct kernel; ``t`` is the thread.
    edit : (str, str)
        Text that occurs once, and its replacement.
    kind : str
        Expected hazard of the broken kernel.
    says : str
        Expected part of its message.
    shows : tuple of str
        Schedules that show the hazard.
    threads : int
    arch : str
    bounds : str
        Launch bounds.
    """

    name: str
    body: str
    edit: tuple[str, str]
    kind: str
    says: str
    shows: tuple[str, ...] = ALL
    threads: int = 128
    arch: str = "sm_89"
    bounds: str = ""

    def source(self, *, broken: bool) -> str:
        """CUDA source of the correct or broken kernel."""
        body = replace_once(self.body, self.edit, where=self.name) if broken else self.body
        return (
            f'{_HEAD}extern "C" __global__ void {self.bounds} entry(const unsigned* in, unsigned* out, int n) {{\n'
            f"    const int t = threadIdx.x;\n    out += 512 * blockIdx.x;\n{body}\n}}"
        )


_MMA = """    unsigned a[4], b[2];
    for (int i = 0; i < 4; ++i) a[i] = in[t];
    for (int i = 0; i < 2; ++i) b[i] = in[t];
    float acc[4] = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    for (int i = 0; i < 4; ++i) out[t] = __float_as_uint(acc[i]);"""

# Two warps produce, two consume; a round trip over barriers 1 and 2.
_PIPE = """    __shared__ unsigned slot[64];
    if (t < 64) {
        for (int i = 0; i < 3; ++i) {
            if (i > 0) sync(2, 128);
            slot[t] = in[t] + i;
            arrive(1, 128);
        }
    } else {
        for (int i = 0; i < 3; ++i) {
            sync(1, 128);
            out[t] = slot[t - 64];
            if (i < 2) arrive(2, 128);
        }
    }"""

_REGISTERS = """    if (t < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    }
    out[t] = in[t];"""

_ATOMIC = """    __shared__ unsigned count;
    if (t == 0) count = 0;
    __syncthreads();
    if (t % 32 == 0) atomicAdd(&count, in[t]);
    __syncthreads();  // counted
    if (t % 32 == 0) out[t] = count;"""

PAIRS: tuple[Pair, ...] = (
    Pair(
        "a variable set in one branch only",
        "    unsigned x = 7;\n    if (t < n) x = in[t];\n    out[t] = x;",
        ("unsigned x = 7", "unsigned x"),
        "uninitialised",
        "used as a stored value, and was never set",
    ),
    Pair(
        "a sum that is not zeroed",
        "    unsigned sum = 0;\n    for (int i = 0; i < n; ++i) sum += in[i];\n    out[t] = sum;",
        ("sum = 0", "sum"),
        "uninitialised",
        "never set",
    ),
    Pair(
        "a maximum without a first value",
        "    float top = 0;\n    for (int i = 0; i < n; ++i) top = fmaxf(top, in[i]);\n"
        "    out[t] = __float_as_uint(top);",
        ("top = 0", "top"),
        "uninitialised",
        "never set",
    ),
    Pair("an accumulator that is not zeroed", _MMA, (" = {0, 0, 0, 0}", ""), "uninitialised", "mma.sync", threads=32),
    Pair(
        "a shuffle from a lane that has nothing",
        "    unsigned x;\n    if (t % 32 == 0) x = in[t];\n    out[t] = __shfl_sync(~0u, x, 0);",
        ("x, 0)", "x, 1)"),
        "uninitialised",
        "never set",
    ),
    Pair(
        "an array of which part is filled",
        "    unsigned a[4];\n    for (int i = 0; i < 4; ++i) if (32 * i + t < n) a[i] = in[t];\n    unsigned sum = 0;\n"
        "    for (int i = 0; i < 4; ++i) if (32 * i + t < n) sum += a[i];\n    out[t] = sum;",
        ("if (32 * i + t < n) sum", "sum"),
        "uninitialised",
        "never set",
    ),
    Pair(
        "what a search did not find",
        "    unsigned found = 0;\n    for (int i = 0; i < n; ++i) if (in[i] == 1000) found = i;\n    out[t] = found;",
        ("found = 0", "found"),
        "uninitialised",
        "never set",
    ),
    Pair(
        "an index that a search did not find",
        "    unsigned at = 0;\n    for (int i = 0; i < n; ++i) if (in[i] == 1000) at = i;\n"
        "    atomicAdd(&out[at], 1u);",
        ("at = 0", "at"),
        "uninitialised",
        "as an address",
    ),
    Pair(
        "a tile filled from a variable that is not set",
        "    __shared__ unsigned tile[128];\n    unsigned x = 0;\n    if (t < n) x = in[t];\n    tile[t] = x;\n"
        "    __syncthreads();\n    out[t] = tile[127 - t];",
        ("x = 0", "x"),
        "uninitialised",
        "st.shared",
    ),
    Pair(
        "two counts for one barrier",
        _PIPE,
        ("arrive(1, 128);\n", "arrive(1, 96);\n"),
        "barrier",
        "in the same phase",
    ),
    Pair("a count that is no number of warps", _PIPE, ("sync(1, 128)", "sync(1, 120)"), "barrier", "not a multiple of"),
    Pair("a count of more than the block", _PIPE, ("sync(1, 128)", "sync(1, 160)"), "barrier", "the block has 128"),
    Pair("a barrier that does not exist", _PIPE, ("sync(1, 128)", "sync(16, 128)"), "barrier", "there are 0 to 15"),
    Pair(
        "a producer that does not wait",
        _PIPE,
        ("            if (i > 0) sync(2, 128);\n", "            if (i == 2) sync(2, 128);\n            if (i < 2)\n"),
        "barrier",
        "again, before the phase is complete",
        shows=("lockstep", "forward"),
    ),
    Pair(
        "barrier 0 for half of the block, and for all of it",
        "    __shared__ unsigned tile[128];\n    tile[t] = in[t];\n    if (t < 64) {\n        sync(1, 64);\n"
        "        out[t] = tile[63 - t];\n    }\n    __syncthreads();\n    out[t] = tile[127 - t];",
        ("sync(1, 64)", "sync(0, 64)"),
        "barrier",
        "in the same phase",
        shows=("reverse",),  # half of the threads complete their phase alone if they run first
    ),
    Pair(
        "more threads than the count",
        "    __shared__ unsigned tile[128];\n    tile[t] = in[t];\n    sync(1, 128);\n    out[t] = tile[t ^ 31];",
        ("sync(1, 128)", "sync(1, 64)"),
        "barrier",
        "128 threads are at barrier 1, which is given 64",
        shows=("lockstep",),  # in sequence, two pairs of warps complete a phase each
    ),
    Pair(
        "a barrier in both branches of a warp",
        "    __shared__ unsigned tile[128];\n    tile[t] = in[t];\n    if (t < 64) {\n        out[t] = 1;\n"
        '        asm volatile("bar.sync 1;" ::: "memory");\n    } else {\n'
        '        asm volatile("bar.sync 1;" ::: "memory");\n        out[t] = tile[127 - t];\n    }',
        ("if (t < 64)", "if (t < 48)"),
        "barrier",
        "part of a warp is at barrier 1",
    ),
    Pair(
        "__syncthreads in a branch at the end",
        "    out[t] = in[t];\n    if (t < 64) {\n        out[t] = 1;\n    }\n    __syncthreads();",
        ("    }\n    __syncthreads();", "        __syncthreads();\n    }"),
        "barrier",
        "64 of the block's 128 threads have exited and never come to barrier 0",
    ),
    Pair(
        "__syncthreads in two branches",
        "    __shared__ unsigned tile[128];\n    tile[t] = in[t];\n    __syncthreads();\n    if (t < 64) {\n"
        "        out[t] = 1;\n    } else {\n        out[t] = tile[127 - t];\n    }",
        (
            "    __syncthreads();\n    if (t < 64) {\n        out[t] = 1;\n    } else {\n",
            "    if (t < 64) {\n        out[t] = 1;\n        __syncthreads();\n    } else {\n"
            "        __syncthreads();\n",
        ),
        "barrier",
        "part of the block is at barrier 0, and part at bar.sync",
    ),
    Pair(
        "a reduction and a wait at one barrier",
        "    if (t < 64) {\n        out[t] = __syncthreads_or(in[t] > 3);\n    } else {\n"
        "        out[t] = __syncthreads_or(0);\n    }",
        ("out[t] = __syncthreads_or(0)", "__syncthreads()"),
        "barrier",
        "only one of the two is a reduction",
    ),
    Pair(
        "more registers than the block has",
        _REGISTERS,
        ("u32 232", "u32 240"),
        "registers",
        "the warps of the block ask for 66560 registers in all, and a block of 384 threads has 64512",
        threads=384,
        arch="sm_90a",
        bounds="__launch_bounds__(384, 1)",
    ),
    Pair(
        "registers taken that were to be given back",
        _REGISTERS,
        ("dec.sync.aligned.u32 40", "dec.sync.aligned.u32 176"),
        "registers",
        "a thread is to have 176 registers, more than its 168",
        threads=384,
        arch="sm_90a",
        bounds="__maxnreg__(168)",
    ),
    Pair(
        "a read after the own warp's atomic only",
        _ATOMIC,
        ("__syncthreads();  // counted", ""),
        "race",
        "reads what atom.shared.add.u32 of warp",
    ),
)
