"""Time to build each kernel for the mission shape: this lab, torch's ``load_inline`` and ``nvcc -cubin``, in one run.

    python benchmarks/build.py [--repeats 5] [--kernel flash] [--no-peers]

A cold build has an empty cache; the compiler library is loaded, which is timed apart. A hit is read from the cache and
verified. Peers compile the same source with the same macros. What cannot be run here is said, with the reason.
All times are wall time on this machine's CPU.
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

from sdpalab.build import Cache, build, compiler_version, cuda_include_dirs
from sdpalab.kernels.plan import INCLUDE_DIR, Module
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import MISSION

ARCH = "sm_89"


def modules(names: list[str]) -> dict[str, Module]:
    """The kernels' modules for the mission shape, in their default configuration."""
    kernels = {name: KERNELS[name] for name in names or KERNELS}
    return {name: kernel.module(MISSION, kernel.default_config) for name, kernel in kernels.items()}


def seconds(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def spread(times: list[float]) -> str:
    """Median and range in milliseconds."""
    low, middle, high = (1e3 * value for value in (min(times), statistics.median(times), max(times)))
    return f"{middle:8.2f} ms  ({low:.2f} to {high:.2f}, n={len(times)})"


def cold(module: Module, folder: Path, repeats: int) -> list[float]:
    """Builds, each with an empty cache."""
    caches = [Cache(folder / f"{module.name}-{number}") for number in range(repeats)]
    return [seconds(lambda cache=cache: build(module, ARCH, cache=cache)) for cache in caches]  # type: ignore[misc]


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


def load_inline(module: Module, folder: Path) -> float | str:
    """Seconds of torch's ``load_inline`` on the same source, or why it does not run here."""
    from torch.utils import cpp_extension

    wrapper = f"\ntorch::Tensor same(torch::Tensor x) {{ return x; }}\nauto* keep = &{module.entry};\n"
    flags = [f"-arch={ARCH}", "-std=c++17", "-lineinfo", *(f"-D{name}={text}" for name, text in module.defines.items())]

    def compile_it() -> None:
        cpp_extension.load_inline(
            name=f"inline_{Path(module.name).stem}",
            cpp_sources="torch::Tensor same(torch::Tensor x);",
            cuda_sources=module.source + wrapper,
            functions=["same"],
            extra_cuda_cflags=flags,
            extra_include_paths=[str(path) for path in (*module.include_dirs, INCLUDE_DIR)],
            build_directory=str(folder),
            is_python_module=False,
        )

    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return seconds(compile_it)
    except (OSError, RuntimeError) as error:
        return str(error).strip().partition("\n")[0]


def nvcc(module: Module, folder: Path) -> float | str:
    """Seconds of ``nvcc -cubin`` on the same source, or why it does not run here."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    path = shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")
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
    done: list[subprocess.CompletedProcess[str]] = []
    elapsed = seconds(lambda: done.append(subprocess.run(command, capture_output=True, text=True)))
    failed = done[0].returncode
    return f"nvcc failed: {done[0].stderr.strip().partition(chr(10))[0]}" if failed else elapsed


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kernel", action="append", choices=sorted(KERNELS), default=[])
    parser.add_argument("--no-peers", action="store_true")
    arguments = parser.parse_args()
    chosen = modules(arguments.kernel)
    print(f"load the compiler {1e3 * seconds(compiler_version):8.2f} ms  ({compiler_version()}, {ARCH})")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kernel, module in chosen.items():
            mine = cold(module, folder, arguments.repeats)
            print(f"\n{kernel}\n  cold build   {spread(mine)}")
            print(f"  cache hit    {spread(hits(module, folder, 10 * arguments.repeats))}")
            for label, peer in () if arguments.no_peers else (("load_inline", load_inline), ("nvcc -cubin", nvcc)):
                place = folder / f"{kernel}-{label}"
                place.mkdir()
                took = peer(module, place)
                if isinstance(took, str):
                    print(f"  {label}  not run: {took}")
                else:
                    print(f"  {label}  {1e3 * took:8.2f} ms  ({took / statistics.median(mine):.1f} x ours)")
        cache = Cache(folder / "together")
        together = seconds(lambda: [build(module, ARCH, cache=cache) for module in chosen.values()])
        print(f"\nall {len(chosen)}, cold, one after the other: {1e3 * together:.2f} ms")


if __name__ == "__main__":
    main()
