"""Pre-flight: what the lab needs from this machine, whether it is there, and what to do where it is not.

Each check does the thing itself where that is cheap: it compiles, disassembles, writes and locks.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

from sdpalab.errors import MachineError, UserError
from sdpalab.kernels.plan import Module
from warpsan.locks import lock_file

__all__ = ["Check", "Health", "examine"]

TORCH_OF_RECORD = "2.13.0"
NVRTC_OF_RECORD = "13.0"
LEAST_DISK, LITTLE_DISK = 200 << 20, 2 << 30
"""Bytes: the job writes some tens of MiB; below the first it is not worth starting."""

_TRITON_ARCHS = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
"""One of each generation that Triton compiles for."""

_SOURCE = """#include <cuda_fp16.h>
__global__ void doctor(__half *out) { out[threadIdx.x] = __float2half(threadIdx.x); }
"""


class Health(str, Enum):
    """The result of a check: ``fail`` means that the main job cannot run."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One line of the pre-flight: what was checked, the result, and what to do (empty if nothing)."""

    name: str
    health: Health
    detail: str
    advice: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; ``found`` is the name of ``detail`` in them."""
        return {"name": self.name, "health": self.health.value, "found": self.detail, "advice": self.advice}


def examine() -> tuple[Check, ...]:
    """All checks, in the order in which the job needs what they check. None of them raises."""
    checks: tuple[Callable[[], Check], ...] = (
        _python,
        _torch,
        _packages,
        _nvrtc,
        _headers,
        _compile,
        _disassemblers,
        _triton,
        _gpu,
        _confinement,
        _cache,
        _disk,
    )
    return tuple(check() for check in checks)


def _python() -> Check:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    if platform.system() != "Linux":
        return Check("Python", Health.WARN, detail, "the lab is tested on Linux only")
    return Check("Python", Health.OK, detail)


def _torch() -> Check:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Check("torch", Health.FAIL, f"does not import: {error}", "pip install torch==2.13.0")
    version = str(torch.__version__)
    release = tuple(int(part) if part.isdigit() else 0 for part in version.split("+")[0].split(".")[:2])
    if release < (2, 6):
        return Check("torch", Health.FAIL, version, "the lab needs torch 2.6 or newer: pip install torch==2.13.0")
    if version.split("+")[0] != TORCH_OF_RECORD:
        return Check(
            "torch", Health.WARN, version, f"another yardstick than the constrained {TORCH_OF_RECORD}; records name it"
        )
    return Check("torch", Health.OK, version)


def _packages() -> Check:
    needed = ("numpy", "ml_dtypes", "cloudpickle", "pydantic", "platformdirs", "jinja2", "matplotlib")
    versions, missing = [], []
    for name in needed:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check("packages", Health.FAIL, f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return Check("packages", Health.OK, ", ".join(versions))


def _nvrtc() -> Check:
    from sdpalab.compile import compiler_version

    try:
        version = compiler_version()
    except MachineError as error:
        return Check("NVRTC", Health.FAIL, "none", str(error))
    if not version.startswith(f"NVRTC {NVRTC_OF_RECORD}."):
        advice = f"pin it to {NVRTC_OF_RECORD}: a 580 driver refuses the PTX of a newer one"
        return Check("NVRTC", Health.WARN, version, advice)
    return Check("NVRTC", Health.OK, version)


def _headers() -> Check:
    from sdpalab.compile import cuda_include_dirs

    try:
        folders = cuda_include_dirs()
    except MachineError as error:
        return Check("CUDA headers", Health.FAIL, "none", str(error))
    if len(folders) == 1:
        detail = f"{folders[0]}, without libcu++: <cstdint>, <cuda/barrier> and cooperative_groups.h do not compile"
        return Check("CUDA headers", Health.WARN, detail, "pip install nvidia-cuda-cccl")
    return Check("CUDA headers", Health.OK, f"{folders[0]}; libcu++ in {folders[1]}")


def _compile() -> Check:
    """Compile a kernel that needs the headers, in a cache of its own, and disassemble it."""
    from sdpalab.compile import Cache, build

    try:
        with tempfile.TemporaryDirectory(prefix="sdpalab-doctor-") as folder:
            built = build(Module("doctor.cu", _SOURCE, "doctor"), cache=Cache(folder))
    except (UserError, MachineError, OSError) as error:
        return Check("compile", Health.FAIL, f"a three-line kernel does not compile: {error}", "see the lines above")
    return Check(
        "compile", Health.OK, f"a three-line kernel to PTX and a cubin for {built.arch} in {built.seconds * 1e3:.0f} ms"
    )


def _disassemblers() -> Check:
    from warpsan.build import tool_version

    versions = []
    for tool in ("cuobjdump", "nvdisasm"):
        try:
            versions.append(f"{tool} {tool_version(tool).rpartition(' release ')[2].partition(',')[0]}")
        except MachineError as error:
            return Check("disassemblers", Health.FAIL, "missing", str(error))
    return Check("disassemblers", Health.OK, ", ".join(versions))


def _triton() -> Check:
    """Triton is an extra; where it is there, compile the shipped Triton kernel, and name its assemblers."""
    from sdpalab.compile import Cache, build
    from sdpalab.problem import Problem
    from warpsan.build import TESTED, ptxas_version

    try:
        import triton

        from sdpalab.kernels.triton_flash import TRITON_FLASH
    except ImportError as error:
        detail = f"not installed, which only Triton kernels need ({error})"
        return Check("Triton", Health.OK, detail, "pip install 'sdpalab[triton]'")
    version = str(triton.__version__)
    try:
        assemblers: dict[str, list[str]] = {}
        for arch in _TRITON_ARCHS:
            assemblers.setdefault(ptxas_version(arch), []).append(arch)
        (step,) = TRITON_FLASH.launch_plan(Problem(1, 1, 16, 16)).launches
        assert step.module is not None, "a launch plan names the module of every step"
        with tempfile.TemporaryDirectory(prefix="sdpalab-doctor-") as folder:
            built = build(step.module, cache=Cache(folder))
    except (UserError, MachineError, OSError) as error:
        return Check("Triton", Health.WARN, f"{version}, which compiles nothing here: {error}", _triton_advice())
    tools = "; ".join(f"ptxas {release} for {', '.join(archs)}" for release, archs in assemblers.items())
    detail = f"{version}: a kernel to PTX and a cubin for {built.arch} in {built.seconds * 1e3:.0f} ms; {tools}"
    if not TESTED[0] <= tuple(int(part) for part in version.split(".")[:2]) <= TESTED[1]:
        return Check("Triton", Health.WARN, detail, f"not a release that the lab is tested with; {_triton_advice()}")
    return Check("Triton", Health.OK, detail)


def _triton_advice() -> str:
    from warpsan.build import TESTED

    (least, oldest), (most, newest) = TESTED
    return (
        f"tested are {least}.{oldest} to {most}.{newest}: pip install 'triton>={least}.{oldest},<{most}.{newest + 1}'"
    )


def _gpu() -> Check:
    """A GPU is optional; a GPU that only one of driver, nvidia-smi and torch finds is a warning."""
    from sdpalab.run import gpu_problem, torch_gpu
    from sdpalab.run.gpu_driver import gpu_device

    problem = gpu_problem()
    if problem:
        listed = _listed_gpu()
        if listed:
            return Check("GPU", Health.WARN, f"{listed}, but {problem}", "kernels run on the simulator until it can")
        return Check("GPU", Health.OK, f"{problem}: kernels run on the simulator, and nothing is timed")
    try:
        gpu = gpu_device()
    except MachineError as error:
        return Check("GPU", Health.WARN, str(error), "see the driver's own messages")
    detail = "{}, sm_{}{}, through cuda.bindings {}".format(
        gpu.name, *gpu.capability, metadata.version("cuda-bindings")
    )
    with contextlib.suppress(ImportError, OSError):  # that torch is missing is said elsewhere
        if not torch_gpu.available():
            return Check("GPU", Health.WARN, f"{detail}, and torch does not find it", "install torch's CUDA build")
    return Check("GPU", Health.OK, detail)


def _confinement() -> Check:
    """Start a process in the way in which the judge starts a candidate's."""
    from sdpalab.judge.sandbox.confinement import call_filter
    from sdpalab.judge.sandbox.guarded import GuardedProcess, Quota, describe

    try:
        process = GuardedProcess("sdpalab.judge.sandbox.worker", Quota(cpu_seconds=60), untrusted=True)
        try:
            process.await_ready()
        finally:
            process.close()
    except MachineError as error:
        return Check("confinement", Health.FAIL, str(error), "the judge cannot start a process")
    detail = describe(process.confinement, process.confined_by)
    if not call_filter():
        detail += f"; no filter of system calls for {platform.machine()}"
    elif process.confinement == "namespaces":
        return Check("confinement", Health.OK, f"{detail}, and a filter of system calls")
    advice = "install bubblewrap, or let this user make user namespaces; docs/isolation.md says what is confined less"
    return Check("confinement", Health.WARN, detail, advice)


def _listed_gpu() -> str:
    """The first GPU that nvidia-smi lists, with its driver; empty if there is none, or no nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    try:
        asked = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else ""


def _cache() -> Check:
    """Write, lock and rename in the build cache's folder."""
    from sdpalab.compile import Cache

    folder = Cache().root
    advice = "set WARPSAN_CACHE_DIR to a folder that can be written to"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=folder) as name:
            draft = Path(name) / "draft"
            with draft.open("wb") as file:
                lock_file(file.fileno(), wait=False)
                file.write(b"sdpalab")
                file.flush()
                os.fsync(file.fileno())
            draft.rename(Path(name) / "entry")
    except OSError as error:
        # Builds go on without a cache, only slower.
        return Check("build cache", Health.WARN, f"{folder}: {error.strerror}", advice)
    return Check("build cache", Health.OK, f"{folder}: can be written and locked")


def _disk() -> Check:
    from sdpalab.compile import Cache

    worst = Check("disk", Health.OK, "")
    sizes = []
    for name, folder in (
        ("here", Path.cwd()),
        ("temporary files", Path(tempfile.gettempdir())),
        ("cache", Cache().root),
    ):
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free
        sizes.append(f"{name} {free / 2**30:.1f} GiB")
        if free < LEAST_DISK:
            worst = Check("disk", Health.FAIL, "", f"free some space: a run needs {LEAST_DISK >> 20} MiB")
        elif free < LITTLE_DISK and worst.health is Health.OK:
            worst = Check("disk", Health.WARN, "", "space is getting short")
    return Check("disk", worst.health, "free: " + ", ".join(sizes), worst.advice)
