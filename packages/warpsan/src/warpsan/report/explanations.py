"""Explanation of each hazard kind: description, fix, example, and the matching tool of compute-sanitizer."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EXPLANATIONS", "Explanation"]


@dataclass(frozen=True)
class Explanation:
    """Explanation of one hazard kind.

    Attributes
    ----------
    title : str
        The error, in a few words.
    text : str
        Cause and fix.
    example : str
        Lines of CUDA C++ or PTX with the error and its fix.
    tool : str
        Matching tool of NVIDIA's compute-sanitizer on a GPU; empty without one.
    """

    title: str
    text: str
    example: str
    tool: str = ""


EXPLANATIONS: dict[str, Explanation] = {
    "async": Explanation(
        "An asynchronous operation in flight is disturbed",
        "A thread reads what a copy in flight still writes, or overwrites what it still reads. Wait for the "
        "group (cp.async.wait_group, counted from the newest) before the access, and check which copies the "
        "group holds.",
        "__pipeline_memcpy_async(&tile[threadIdx.x], &in[threadIdx.x], 4);\n"
        "__pipeline_commit();\n"
        "// missing: __pipeline_wait_prior(0);\n"
        "out[threadIdx.x] = tile[threadIdx.x];",
        "memcheck",
    ),
    "barrier": Explanation(
        "A CTA barrier is misused",
        "All arrivals at a barrier in one phase must name the same number of threads: a multiple of 32, and "
        "no more than arrive. All threads of a warp arrive by the same instruction, once. A reduction needs "
        "its own barrier.",
        "if (threadIdx.x < 96) __syncthreads();  // 96 threads arrive, and the block has 128\n"
        "// right: all threads of the block reach the barrier",
        "synccheck",
    ),
    "cluster": Explanation(
        "Another block of the cluster may have exited",
        "The shared memory of a block is invalid after its exit. Put a barrier.cluster between the last access "
        "to it and the exit of its block.",
        "float *other = cluster.map_shared_rank(tile, 1);\n"
        "out[0] = other[0];  // missing: cluster.sync() before block 1 exits",
        "memcheck",
    ),
    "deadlock": Explanation(
        "Threads wait for an event that cannot happen",
        "A barrier expects more threads than can still arrive: its count is wrong, some threads wait at "
        "another barrier, or it stands in a branch that not all take.",
        'if (warp == 0) asm volatile("bar.sync 1, 64;");  // 32 threads arrive at a barrier of 64\n'
        "// right: both warps reach barrier 1, or its count is 32",
        "synccheck",
    ),
    "divergent": Explanation(
        "A warp-wide instruction is reached by part of a warp",
        "All lanes named in the mask of an aligned instruction must execute it together. Move it out of the "
        "branch, or name only the lanes that are there.",
        "if (lane < 16) x = __shfl_sync(0xffffffff, x, 0);  // 16 lanes of the mask are not there\n"
        "// right: name the lanes that take the branch: __shfl_sync(0x0000ffff, x, 0)",
        "synccheck",
    ),
    "endless": Explanation(
        "The kernel does not come to an end",
        "It took more steps than the limit: a loop whose condition never changes, or a wait for a flag that "
        "is never set. Raise --max-steps if the launch is merely long.",
        "while (flag[0] == 0) {}  // nothing sets the flag\n"
        "// right: volatile or an atomic load, and a thread that stores to it",
    ),
    "lane-race": Explanation(
        "Lanes of one warp race in shared memory",
        "Since sm_70 the lanes of a warp need not run together. Put a __syncwarp() between the write of one "
        "lane and the access of another.",
        "tile[lane] = x;\ny = tile[lane ^ 1];  // missing: __syncwarp() between the store and the load",
        "racecheck",
    ),
    "mbarrier": Explanation(
        "An mbarrier is misused",
        "Initialise it once, with the number of arrivals of a phase, before any thread uses it (and a fence "
        "and a barrier behind that); expect exactly the bytes that the copies bring; touch its memory with "
        "nothing else.",
        "mbarrier.init.shared.b64 [bar], 2;    // two arrivals a phase, and one thread arrives\n"
        "// right: the count is the number of arrivals of a phase",
        "synccheck",
    ),
    "misaligned": Explanation(
        "An access is not aligned to its width",
        "A vector access of 4, 8 or 16 bytes needs an address that is a multiple of that. Check the row "
        "stride, the padding and the vector width.",
        "float4 x = *reinterpret_cast<const float4 *>(&row[1]);  // byte 4, not a multiple of 16\n"
        "// right: an index that is a multiple of 4",
        "memcheck",
    ),
    "out-of-bounds": Explanation(
        "An access lies outside its buffer",
        "The address is in no buffer of the launch, or beyond the block's shared memory. Usually the last "
        "rows of a ragged tile lack a bound, or the launch gives too little dynamic shared memory.",
        "int i = blockIdx.x * blockDim.x + threadIdx.x;\nout[i] = in[i];  // missing: if (i < n)",
        "memcheck",
    ),
    "progress": Explanation(
        "A block waits for one that may not run before it ends",
        "Blocks are not all resident at once, and they begin in any order. Launch no more blocks than fit, as "
        "a cooperative launch does, or let a block wait only for those that drew an earlier ticket from an "
        "atomic.",
        "while (atomicAdd(&done, 0) < gridDim.x) {}  // waits for blocks that may not have begun\n"
        "// right: a cooperative launch, or no more blocks than are resident",
    ),
    "proxy": Explanation(
        "The asynchronous proxy has no order with ordinary accesses",
        "A bulk copy or wgmma reads what threads wrote, or the reverse, and a barrier alone does not order "
        "the two. Put a fence.proxy.async after the threads' accesses and before the barrier.",
        "tile[threadIdx.x] = x;\n"
        "__syncthreads();  // missing: fence.proxy.async before the barrier\n"
        "if (threadIdx.x == 0) cp_async_bulk_store(out, tile, bytes);",
        "racecheck",
    ),
    "race": Explanation(
        "Two accesses to the same bytes have no order",
        "Different warps access the same bytes, at least one writes, and no barrier orders them. Put a "
        "__syncthreads() or a named barrier between them; after an asynchronous copy, a wait by the issuer "
        "and then a barrier.",
        "tile[threadIdx.x] = in[threadIdx.x];\n"
        "// missing: __syncthreads();\n"
        "out[threadIdx.x] = tile[255 - threadIdx.x];",
        "racecheck",
    ),
    "registers": Explanation(
        "setmaxnreg requests more registers than the block has, or not for a whole warpgroup",
        "setmaxnreg.inc waits until the block's other warps have given enough back with setmaxnreg.dec. Over "
        "all warps, the requested registers must not exceed those the block was launched with. All warps of a "
        "warpgroup must execute the same setmaxnreg.",
        "setmaxnreg.inc.sync.aligned.u32 240;  // missing: setmaxnreg.dec in the producer warps",
    ),
    "tensor-map": Explanation(
        "A tensor copy is given no tensor map",
        "The address does not point to a 128-byte descriptor. Pass one as a __grid_constant__ parameter, by value.",
        "__global__ void copy(const CUtensorMap map)  // missing: __grid_constant__\n"
        "// right: __global__ void copy(const __grid_constant__ CUtensorMap map)",
        "memcheck",
    ),
    "tensor-memory": Explanation(
        "Tensor memory is misused",
        "A warp allocates columns and frees them again, and accesses the 32 lanes of its number modulo 4. Products run "
        "on after their issue: their sums can be read when a thread has waited for the mbarrier of a tcgen05.commit. "
        "tcgen05.wait::ld and wait::st complete the warp's own loads and stores; a fence before and one after a "
        "synchronisation pass the order on.",
        "tcgen05.mma.cta_group::1.kind::f16 [tmem], descA, descB, idesc, p;\n"
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];\n"
        "tcgen05.ld.sync.aligned.32x32b.x8.b32 {...}, [tmem];  // missing: a wait for the phase of bar",
        "synccheck",
    ),
    "trap": Explanation(
        "The kernel ends the launch itself",
        "An assert failed, or __trap() or a breakpoint was reached.",
        "assert(n % 64 == 0);  // the launch has n = 100",
    ),
    "uninitialised": Explanation(
        "An unwritten value is read",
        "Memory or a register has an arbitrary value. Usually a tile was not filled to its last row, or was "
        "filled in another layout than the read assumes; or a buffer was not cleared; or a variable is set in "
        "one branch only.",
        "__shared__ float tile[64];\n"
        "if (threadIdx.x < n) tile[threadIdx.x] = in[threadIdx.x];\n"
        "__syncthreads();\n"
        "sum += tile[63];  // n is 60: element 63 was never written",
        "initcheck",
    ),
    "result": Explanation(
        "A buffer differs from its expected content",
        "The launch file has the expected buffers after the launches, with a tolerance. The message has the "
        "worst element.",
        '"expect": {"o": {"file": "o.npy", "atol": 0.001}}  // in the launch file',
    ),
    "wgmma": Explanation(
        "A warpgroup's matrix product is misused",
        "Its registers must not be touched from its issue until wgmma.wait_group has waited for its group, "
        "and a wgmma.fence belongs between other accesses to them and the next product. All four warps "
        "execute it with the same descriptors.",
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {...}, descA, descB, 1, 1, 1, 0, 0;\n"
        "wgmma.commit_group.sync.aligned;\n"
        "st.global.f32 [out], %f0;  // missing: wgmma.wait_group.sync.aligned 0 before the store",
    ),
}
"""Explanations by hazard kind."""
