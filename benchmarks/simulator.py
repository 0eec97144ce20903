"""The simulator on the mission shape beside Triton's interpreter, and on several kernels beside another version.

    python benchmarks/simulator.py [--repeats 5] [--longest 8192]
    python benchmarks/simulator.py --before PYTHONPATH [--cases flash gemm] [--repeats 5]

With ``--before``, prints CPU time of each kernel of :mod:`cases`, plain and with all checks, with the packages in those
folders and with these, alternately, and their ratio pair by pair.

Without it, prints how long a kernel takes that no process has run before; the median and the spread of wall times
beside Triton's interpreter on the same tile sizes; the growth with the sequence length, and what threads give at the
longest (both with one run each: Triton's interpreter takes minutes there, and is left out beyond S=4096). Needs the
extra ``triton`` for the comparison; says so where it is missing. Times are of this machine's CPU: they say how long a
simulation takes, never how fast a kernel is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import numpy as np
from cases import CASES, attention

import warpsan
from sdpalab.inputs import make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.problem import MISSION, Problem
from warpsan.host import usable_cpus

BLOCK_M, BLOCK_N = 64, 64
_LONGEST_BESIDE = 4096


def simulate(
    problem: Problem, checks: tuple[str, ...], workers: int | None = None, numerics: str = warpsan.DEFAULT_NUMERICS
) -> tuple[Callable[[], warpsan.Report], np.ndarray]:
    """A function that simulates ``flash`` in whole tiles once, and the array its output lands in."""
    launch, out = attention("flash", problem, SCHEDULE="tiles")  # a block for each tile, as the peer has

    def run() -> warpsan.Report:
        out.fill(np.nan)
        return warpsan.launch(**launch, checks=checks, workers=workers, numerics=numerics)

    return run, out


def interpret(problem: Problem) -> tuple[Callable[[], None], np.ndarray]:
    """A function that runs a FlashAttention-2 style Triton kernel once in Triton's interpreter, and its output."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def attention(q, k, v, o, scale_log2, seq: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
        head = tl.program_id(1)
        rows = tl.program_id(0) * M + tl.arange(0, M)
        dims = tl.arange(0, D)
        base = head * seq * D
        q_tile = tl.load(q + base + rows[:, None] * D + dims[None, :])
        top = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        acc = tl.zeros([M, D], tl.float32)
        for start in range(0, seq, N):
            cols = start + tl.arange(0, N)
            k_tile = tl.load(k + base + cols[:, None] * D + dims[None, :])
            s = tl.dot(q_tile, tl.trans(k_tile)) * scale_log2
            new_top = tl.maximum(top, tl.max(s, 1))
            p = tl.exp2(s - new_top[:, None])
            fade = tl.exp2(top - new_top)
            total = total * fade + tl.sum(p, 1)
            v_tile = tl.load(v + base + cols[:, None] * D + dims[None, :])
            acc = tl.dot(p.to(tl.float16), v_tile, acc * fade[:, None])
            top = new_top
        tl.store(o + base + rows[:, None] * D + dims[None, :], (acc / total[:, None]).to(tl.float16))

    inputs = make_inputs(problem, "normal", 0)
    q, k, v = (torch.from_numpy(array.copy()) for array in (inputs.q, inputs.k, inputs.v))
    o = torch.empty_like(q)
    grid = (problem.seq_q // BLOCK_M, problem.batch * problem.heads)
    scale_log2 = problem.scale * 1.4426950408889634

    def run() -> None:
        attention[grid](q, k, v, o, scale_log2, seq=problem.seq_q, D=problem.head_dim, M=BLOCK_M, N=BLOCK_N)

    return run, o.numpy()


def seconds(function: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def line(name: str, samples: list[float], extra: str = "") -> None:
    """One row: median and range."""
    print(f"{name:<44} {statistics.median(samples):7.3f} s   ({min(samples):.3f} to {max(samples):.3f}) {extra}")


def relative_error(out: np.ndarray, problem: Problem) -> float:
    """Relative L2 distance from the float64 reference."""
    inputs = make_inputs(problem, "normal", 0)
    reference = attention_float64(inputs.q, inputs.k, inputs.v, scale=problem.scale, causal=problem.causal)
    return float(np.linalg.norm(out.astype(np.float64) - reference) / np.linalg.norm(reference))


def beside(before: str, cases: Sequence[str], repeats: int) -> None:
    """CPU time of each case of :mod:`cases`, plain and with all checks, alternately with the packages of another
    ``PYTHONPATH`` and with those of this process; and their ratio pair by pair."""
    print("CPU ms of a launch, medians: before, now, before / now pair by pair")
    for name in cases:
        for mode in ("plain", "checked"):
            with serving(name, mode, before) as other, serving(name, mode) as this:
                pairs = [(one_launch(other), one_launch(this)) for _ in range(repeats)]
            ratios = [there / here for there, here in pairs]
            there, here = (1e3 * statistics.median(each) for each in zip(*pairs, strict=True))
            spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
            print(
                f"  {name:<8} {mode:<8} {there:8.1f} {here:8.1f} {statistics.median(ratios):6.2f}x {spread}", flush=True
            )


@contextmanager
def serving(name: str, mode: str, path: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a case for each line, with another ``PYTHONPATH`` if one is given."""
    command = [sys.executable, str(Path(__file__).with_name("cases.py")), name, mode]
    environment = os.environ | ({} if path is None else {"PYTHONPATH": path})
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit(f"{name} {mode} does not run with PYTHONPATH={environment.get('PYTHONPATH', '')}")
        yield process
        process.stdin.close()


def one_launch(process: subprocess.Popen[str]) -> float:
    """The CPU seconds of one launch of a process."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


SMALL = """.version 8.0
.target sm_90
.address_size 64
.entry k(.param .u64 out) {{ .reg .b32 %r<9>; .reg .b64 %rd<4>;
mov.u32 %r1, %tid.x; {line} ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;
st.global.u32 [%rd3], %r1; ret; }}"""


def first_launches() -> None:
    """How long a small kernel takes that this process has not run yet: what is compiled, in a cache that is empty."""
    print("first launches of small kernels, all checks, empty cache of machine code, wall seconds:")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WARPSAN_CACHE_DIR"] = folder
        script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import simulator as s; s.small()"
        for name in ("in an empty cache", "in another process"):
            print(f"  {name}:")
            subprocess.run([sys.executable, "-c", script], check=True)
        del os.environ["WARPSAN_CACHE_DIR"]


def small() -> None:
    """Rows of :func:`first_launches`, in this process."""
    out = np.zeros(32, np.uint32)
    for name, body in (("the first", ""), ("one with new instructions", "popc.b32 %r2, %r1; brev.b32 %r2, %r2;")):
        line(f"    {name}", [seconds(lambda body=body: warpsan.launch(SMALL.format(line=body), "k", 1, 32, [out]))])


def mission(repeats: int) -> bool:
    """The mission shape in one process, beside the peer; whether there is one."""
    first = time.perf_counter()
    plain, out = simulate(MISSION, (), 1)
    report = plain()
    print(f"flash, {MISSION.label}, sm_89: first call with build {time.perf_counter() - first:.3f} s")
    checked, _ = simulate(MISSION, warpsan.CHECKS, 1)
    checked()
    float32, float32_out = simulate(MISSION, (), 1, "float32")
    float32()
    peer: Callable[[], None] | None = None
    try:
        peer, peer_out = interpret(MISSION)
        peer()
    except ImportError as error:
        print(
            f"Triton's interpreter: not run, because {error.name or error} is not installed "
            "(pip install sdpalab[triton])"
        )
    times: dict[str, list[float]] = {"plain": [], "checked": [], "float32": [], "peer": []}
    for _ in range(repeats):
        times["plain"].append(seconds(plain))
        times["checked"].append(seconds(checked))
        times["float32"].append(seconds(float32))
        if peer is not None:
            times["peer"].append(seconds(peer))
    rate = report.lane_instructions / statistics.median(times["plain"])
    line(
        "simulator, no checks",
        times["plain"],
        f"{rate:.2e} lane-instructions/s, rel L2 {relative_error(out, MISSION):.2e}",
    )
    line(f"simulator, checks: {', '.join(warpsan.CHECKS)}", times["checked"])
    ratio = statistics.median(plain / other for plain, other in zip(times["plain"], times["float32"], strict=True))
    line(
        "simulator, no checks, sums in float32",
        times["float32"],
        f"rel L2 {relative_error(float32_out, MISSION):.2e}; the tensor cores' sums take {ratio:.2f} times as long",
    )
    if peer is not None:
        line("Triton's interpreter, same tiles", times["peer"], f"rel L2 {relative_error(peer_out, MISSION):.2e}")
        ratios = [b / a for a, b in zip(times["plain"], times["peer"], strict=True)]
        spread = f"({min(ratios):.1f} to {max(ratios):.1f})"
        print(f"Triton's interpreter / simulator: {statistics.median(ratios):.1f}x {spread}")
    return peer is not None


def growth(longest: int, has_peer: bool) -> None:
    """A row for each sequence length; the simulator takes workers where it finds that they pay."""
    print("growth with S (B=1, H=8, D=64), no checks:")
    seq = MISSION.seq_q
    while seq <= longest:
        problem = Problem(1, 8, seq, 64)
        time_simulated, extra = seconds(simulate(problem, ())[0]), ""
        if has_peer and seq <= _LONGEST_BESIDE:
            time_peer = seconds(interpret(problem)[0])
            extra = f"Triton's interpreter {time_peer:.3f} s, {time_peer / time_simulated:.1f}x"
        line(f"  S={seq}", [time_simulated], extra)
        seq *= 2


def scaling(seq: int) -> None:
    """A row for each number of workers up to that of the CPUs."""
    most = usable_cpus()
    for checks in ((), warpsan.CHECKS):
        print(f"workers, S={seq}, {'all' if checks else 'no'} checks:")
        alone = 0.0
        for workers in sorted({1, 2, 4, 8, most}):
            if workers <= most:
                taken = seconds(simulate(Problem(1, 8, seq, 64), checks, workers)[0])
                alone = alone or taken
                line(f"  {workers}", [taken], f"{alone / taken:.2f}x")


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--longest", type=int, default=8192)
    parser.add_argument("--before", metavar="PYTHONPATH")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    if options.before is not None:
        beside(options.before, options.cases, options.repeats)
        return
    first_launches()
    peer = mission(options.repeats)
    growth(options.longest, peer)
    scaling(options.longest)


if __name__ == "__main__":
    main()
