"""Time to build each kernel for the mission shape: this lab, torch's ``load_inline`` and ``nvcc -cubin``, in one run.

    python benchmarks/build.py [--repeats 5] [--kernel flash] [--no-peers] [--load-inline flash]

A cold build has an empty cache; the compiler library is loaded, which is timed apart. A hit is read from the cache and
verified. Peers compile the same source with the same macros; ``load_inline`` takes minutes, so must be named.
What cannot be run here is said, with the reason. All times are wall time on this machine's CPU; the processor time that
ours took stands beside, since other work on the machine changes the one and not the other.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sdpalab.compile import Cache, build, compiler_version, cuda_include_dirs
from sdpalab.kernels.plan import INCLUDE_DIR, Module
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import MISSION

ARCH = "sm_89"


def modules(names: list[str]) -> dict[str, Module]:
    """The kernels' modules for the mission shape, in their default configuration."""
    kernels = {name: KERNELS[name] for name in names or KERNELS}
    plans = {name: kernel.launch_plan(MISSION) for name, kernel in kernels.items()}
    return {name: module for name, plan in plans.items() if isinstance(module := plan.launches[-1].module, Module)}


def seconds(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def spread(times: list[float]) -> str:
    """Median and range in milliseconds."""
    low, middle, high = (1e3 * value for value in (min(times), statistics.median(times), max(times)))
    return f"{middle:8.2f} ms  ({low:.2f} to {high:.2f}, n={len(times)})"


def cold(module: Module, folder: Path, repeats: int) -> tuple[list[float], list[float]]:
    """Wall and processor times of builds, each with an empty cache."""
    wall, processor = [], []
    for number in range(repeats):
        begin = time.process_time()
        wall.append(build(module, ARCH, cache=Cache(folder / f"{module.name}-{number}")).seconds)
        processor.append(time.process_time() - begin)
    return wall, processor


def hits(module: Module, folder: Path, repeats: int) -> list[float]:
    """Builds from one filled cache."""
    cache = Cache(folder / f"{module.name}-hits")
    build(module, ARCH, cache=cache)
    times = []
    for _ in range(repeats):
        built = build(module, ARCH, cache=cache)
        assert built.cache_hit
        times.append(built.seconds)
    return times


def load_inline(module: Module, folder: Path) -> tuple[float, str] | str:
    """Wall time of torch's ``load_inline`` on the same source and what it did, or why it does not run here.

    A torch without CUDA has all that the two compile steps need, but no CUDA libraries to link with: there the time is
    that up to the link step, a lower bound.
    """
    from torch.utils import cpp_extension

    compiler = nvcc_path()
    if compiler is None:
        return "there is no nvcc"
    if cpp_extension.CUDA_HOME is None:
        cpp_extension.CUDA_HOME = str(Path(compiler).parents[1])
    wrapper = f"\ntorch::Tensor same(torch::Tensor x) {{ return x; }}\nauto* keep = &{module.entry};\n"
    unset = [f"-U__CUDA_NO_{what}__" for what in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS")]
    unset.append("-U__CUDA_NO_BFLOAT16_CONVERSIONS__")
    macros = [f"-D{name}={text}" for name, text in module.defines.items()]
    os.environ["TORCH_CUDA_ARCH_LIST"] = f"{int(ARCH[3:]) / 10}"
    start = time.perf_counter()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            cpp_extension.load_inline(
                name=f"inline_{Path(module.name).stem}",
                cpp_sources="torch::Tensor same(torch::Tensor x);",
                cuda_sources=module.source + wrapper,
                functions=["same"],
                extra_cuda_cflags=["-lineinfo", *unset, *macros],
                extra_include_paths=[str(path) for path in (*module.include_dirs, INCLUDE_DIR, *cuda_include_dirs())],
                build_directory=str(folder),
                is_python_module=False,
            )
    except (OSError, RuntimeError) as error:
        elapsed = time.perf_counter() - start
        if "cannot find -ltorch_cuda" in str(error) and (folder / "cuda.cuda.o").exists():
            return elapsed, "at least: without its link step, which this torch, built without CUDA, cannot do"
        lines = [line for line in str(error).splitlines() if "error" in line.lower()] or [str(error).strip()]
        return lines[0]
    return time.perf_counter() - start, ""


def nvcc_path() -> str | None:
    """Where nvcc is, links and wrapper scripts aside; None if there is none."""
    for folder in (os.environ.get("CUDA_HOME"), "/usr/local/cuda", "/usr/local/cuda-13.0"):
        path = shutil.which("nvcc", path=f"{folder}/bin") if folder else None
        if path is not None:
            return path
    return shutil.which("nvcc")


def nvcc(module: Module, folder: Path) -> tuple[float, str] | str:
    """Wall time of ``nvcc -cubin`` on the same source, or why it does not run here."""
    path = nvcc_path()
    if path is None:
        return "there is no nvcc"
    source = folder / module.name
    source.write_text(f"{module.source}\nauto* keep = &{module.entry};\n")
    command = [
        path,
        "-cubin",
        f"-arch={ARCH}",
        "-std=c++17",
        "-lineinfo",
        str(source),
        "-o",
        str(folder / "nvcc.cubin"),
    ]
    command += [f"-D{name}={text}" for name, text in module.defines.items()]
    command += [f"-I{folder}" for folder in (*module.include_dirs, INCLUDE_DIR, *cuda_include_dirs())]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    elapsed = time.perf_counter() - start
    return (elapsed, "") if not done.returncode else f"nvcc failed: {done.stderr.strip().partition(chr(10))[0]}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kernel", action="append", choices=sorted(KERNELS), default=[])
    parser.add_argument("--no-peers", action="store_true", help="do not run nvcc")
    parser.add_argument(
        "--load-inline", metavar="KERNEL", choices=sorted(KERNELS), help="run load_inline on this kernel"
    )
    arguments = parser.parse_args()
    chosen = modules(arguments.kernel)
    print(f"load the compiler {1e3 * seconds(compiler_version):8.2f} ms  ({compiler_version()}, {ARCH})")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kernel, module in chosen.items():
            mine, processor = cold(module, folder, arguments.repeats)
            print(f"\n{kernel}\n  cold build   {spread(mine)}; processor {1e3 * statistics.median(processor):.0f} ms")
            print(f"  cache hit    {spread(hits(module, folder, 10 * arguments.repeats))}")
            peers = {} if arguments.no_peers else {"nvcc -cubin": nvcc}
            if kernel == arguments.load_inline:
                peers["load_inline"] = load_inline
            for label, peer in peers.items():
                place = folder / f"{kernel}-{label}"
                place.mkdir()
                took = peer(module, place)
                if isinstance(took, str):
                    print(f"  {label}  not run: {took}")
                else:
                    ratio = took[0] / statistics.median(mine)
                    print(f"  {label}  {1e3 * took[0]:8.2f} ms  ({ratio:.1f} x ours){took[1] and '  ' + took[1]}")
        cache = Cache(folder / "together")
        together = seconds(lambda: [build(module, ARCH, cache=cache) for module in chosen.values()])
        print(f"\nall {len(chosen)}, cold, one after the other: {1e3 * together:.2f} ms")


if __name__ == "__main__":
    main()
