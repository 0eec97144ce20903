"""Pre-flight checks: requirements of the lab on this machine, with advice for missing ones.

Each check performs the operation itself if that is cheap: it compiles, disassembles, writes and locks.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib import metadata

from sdpalab.errors import MachineError, UserError
from warpsan.doctor import (
    Check,
    Health,
    cache_folder,
    compile_kernel,
    compiler,
    cpp_compiler,
    disk,
    headers,
    packages,
    python,
)

__all__ = ["examine"]

TORCH_OF_RECORD = "2.13.0"

_TRITON_ARCHS = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
"""One architecture of each generation that Triton compiles for."""


def examine() -> tuple[Check, ...]:
    """All checks, in the order of use in the main job. No check raises."""
    checks: tuple[Callable[[], Check], ...] = (
        python,
        _torch,
        _packages,
        compiler,
        headers,
        compile_kernel,
        cpp_compiler,
        _disassemblers,
        _triton,
        _gpu,
        _confinement,
        cache_folder,
        disk,
    )
    return tuple(check() for check in checks)


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
    return packages("numpy", "ml_dtypes", "cloudpickle", "pydantic", "platformdirs", "jinja2", "matplotlib")


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
    """Triton is optional; if present, compile the shipped Triton kernel, and name Triton's assemblers."""
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
    """A GPU is optional; warns if only some of driver, nvidia-smi and torch find one."""
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
    with contextlib.suppress(ImportError, OSError):  # another check reports a missing torch
        if not torch_gpu.available():
            return Check("GPU", Health.WARN, f"{detail}, and torch does not find it", "install torch's CUDA build")
    return Check("GPU", Health.OK, detail)


def _confinement() -> Check:
    """Start a process with the confinement of a judged candidate."""
    from sdpalab.judge.sandbox.confinement import call_filter
    from sdpalab.judge.sandbox.guarded import GuardedProcess, Quota, describe

    try:
        process = GuardedProcess("sdpalab.judge.sandbox.candidate_server", Quota(cpu_seconds=60), untrusted=True)
        process.await_ready().close()
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
    """The first GPU that nvidia-smi lists, with its driver; empty without a GPU or nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    try:
        asked = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else ""
