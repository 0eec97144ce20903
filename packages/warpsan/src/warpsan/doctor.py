"""Check of the machine's requirements for warpsan, with fixes for missing ones.

Cheap checks execute the operation itself: compile, write, lock and launch.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

from warpsan.errors import MachineError, UserError
from warpsan.locks import lock_file

__all__ = [
    "CHECKS",
    "Check",
    "Health",
    "cache_folder",
    "compile_kernel",
    "compiler",
    "cpp_compiler",
    "disk",
    "examine",
    "headers",
    "packages",
    "python",
]

NVRTC_OF_RECORD = "13.0"
LEAST_DISK, LITTLE_DISK = 200 << 20, 2 << 30
"""Free space in bytes: minimum for a run, and threshold of a warning."""

_SOURCE = """#include <cuda_fp16.h>
__global__ void doctor(__half *out) { out[threadIdx.x] = __float2half(threadIdx.x); }
"""


class Health(str, Enum):
    """Result of a check; ``fail`` prevents all runs."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One check: its name, result, and fix (empty if none is needed)."""

    name: str
    health: Health
    detail: str
    advice: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, with ``found`` as the name of ``detail``."""
        return {"name": self.name, "health": self.health.value, "found": self.detail, "advice": self.advice}


def python() -> Check:
    """Interpreter and system."""
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    if platform.system() != "Linux":
        return Check("Python", Health.WARN, detail, "only Linux is tested")
    return Check("Python", Health.OK, detail)


def packages(*needed: str) -> Check:
    """Packages with the given names, and their versions."""
    versions, missing = [], []
    for name in needed:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check("packages", Health.FAIL, f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return Check("packages", Health.OK, ", ".join(versions))


def compiler() -> Check:
    """NVRTC, in a release whose PTX older drivers accept."""
    from warpsan.build import compiler_version

    try:
        version = compiler_version()
    except MachineError as error:
        return Check("NVRTC", Health.FAIL, "none", str(error))
    if not version.startswith(f"NVRTC {NVRTC_OF_RECORD}."):
        advice = f"pin it to {NVRTC_OF_RECORD}: a 580 driver refuses the PTX of a newer one"
        return Check("NVRTC", Health.WARN, version, advice)
    return Check("NVRTC", Health.OK, version)


def headers() -> Check:
    """CUDA's headers and libcu++."""
    from warpsan.build import cuda_include_dirs

    try:
        folders = cuda_include_dirs()
    except MachineError as error:
        return Check("CUDA headers", Health.FAIL, "none", str(error))
    if len(folders) == 1:
        detail = f"{folders[0]}, without libcu++: <cstdint>, <cuda/barrier> and cooperative_groups.h do not compile"
        return Check("CUDA headers", Health.WARN, detail, "pip install nvidia-cuda-cccl")
    return Check("CUDA headers", Health.OK, f"{folders[0]}; libcu++ in {folders[1]}")


def compile_kernel() -> Check:
    """Compile a kernel with CUDA headers, in a temporary cache."""
    from warpsan.build import Cache, Module, build

    try:
        with tempfile.TemporaryDirectory(prefix="warpsan-doctor-") as folder:
            built = build(Module("doctor.cu", _SOURCE, "doctor"), cache=Cache(folder))
    except (UserError, MachineError, OSError) as error:
        return Check("compile", Health.FAIL, f"a three-line kernel does not compile: {error}", "see the lines above")
    detail = f"a three-line kernel to PTX and a cubin for {built.arch} in {built.seconds * 1e3:.0f} ms"
    return Check("compile", Health.OK, detail)


def cpp_compiler() -> Check:
    """The C++ compiler, which compiles the host code of extensions of torch."""
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    try:
        done = subprocess.run([*command, "-dumpfullversion"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        detail = f"no {command[0]}, which only extensions of torch in C++ (load_inline) need"
        return Check("C++ compiler", Health.OK, detail, "install g++ 10 or newer")
    return Check("C++ compiler", Health.OK, f"{' '.join(command)} {done.stdout.strip()}")


def cache_folder() -> Check:
    """Write, lock and rename in the cache folder."""
    from warpsan.build import Cache

    folder = Cache().root
    advice = "set WARPSAN_CACHE_DIR to a folder that can be written to"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=folder) as name:
            draft = Path(name) / "draft"
            with draft.open("wb") as file:
                lock_file(file.fileno(), wait=False)
                file.write(b"warpsan")
                file.flush()
                os.fsync(file.fileno())
            draft.rename(Path(name) / "entry")
    except OSError as error:
        # Builds also work without a cache, but slower.
        return Check("build cache", Health.WARN, f"{folder}: {error.strerror}", advice)
    return Check("build cache", Health.OK, f"{folder}: can be written and locked")


def disk() -> Check:
    """Free space for temporary files and for the caches."""
    from warpsan.build import Cache

    worst = Check("disk", Health.OK, "")
    sizes = []
    places = ("here", Path.cwd()), ("temporary files", Path(tempfile.gettempdir())), ("cache", Cache().root)
    for name, folder in places:
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free
        sizes.append(f"{name} {free / 2**30:.1f} GiB")
        if free < LEAST_DISK:
            worst = Check("disk", Health.FAIL, "", f"free some space: a run needs {LEAST_DISK >> 20} MiB")
        elif free < LITTLE_DISK and worst.health is Health.OK:
            worst = Check("disk", Health.WARN, "", "space is getting short")
    return Check("disk", worst.health, "free: " + ", ".join(sizes), worst.advice)


def _packages() -> Check:
    return packages("numpy", "ml_dtypes", "llvmlite", "platformdirs", "typer", "rich")


CHECKS: tuple[Callable[[], Check], ...] = (
    python,
    _packages,
    compiler,
    headers,
    compile_kernel,
    cpp_compiler,
    cache_folder,
    disk,
)
"""The checks in order of dependence; none of them raises."""


def examine() -> tuple[Check, ...]:
    """All checks."""
    return tuple(check() for check in CHECKS)
