"""Ahead-of-time Triton: a function with types and constants to PTX and cubin, for any architecture, without a GPU.

Triton is an optional dependency; only this module imports it, and only for builds of Triton kernels.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from warpsan.build.nvrtc import BuildError
from warpsan.build.options import check_triton_options
from warpsan.build.source import TritonModule
from warpsan.errors import MachineError

__all__ = ["TESTED", "TritonCompiled", "TritonProgram", "assemble", "assemblers_version", "ptxas_version"]

TESTED = ((3, 6), (3, 9))
"""Oldest and newest tested release of Triton. The module uses compiler functions that are not public and move between
releases.
"""

_FIXED_OPTIONS = {"enable_fp_fusion": True}
"""Options with a different default from Triton 3.10 on, or with a default from an environment variable."""

_DIVISIBLE = [["tt.divisibility", 16]]
"""Attribute of Triton's launcher for a pointer to an allocated buffer."""


@dataclass(frozen=True)
class TritonCompiled:
    """Output of one compiler run.

    Attributes
    ----------
    ptx, cubin : bytes
        Cubin of this PTX; the PTX contains no path of this machine.
    entry : str
        Name in the PTX.
    log : str
        Output of ptxas: registers and spills.
    dynamic_smem : int
        Dynamic shared memory per block, in bytes.
    threads : int
        Threads per block; more than 32 per requested warp with warp specialization.
    scratch_params : int
        Pointers that Triton appends to the parameters; null without scratch memory.
    """

    ptx: bytes
    cubin: bytes
    entry: str
    log: str
    dynamic_smem: int
    threads: int
    scratch_params: int


class TritonProgram:
    """Compilation of a module to PTX for one architecture.

    Parameters
    ----------
    module : TritonModule
    arch : str
        Architecture, such as ``sm_89``. From ``sm_90`` on, Triton uses architecture-specific features (``sm_90a``).

    Raises
    ------
    BuildError
        If the module sets a disallowed option (:mod:`warpsan.build.options`).
    MachineError
        If Triton or its ptxas is not installed.
    """

    def __init__(self, module: TritonModule, arch: str) -> None:
        check_triton_options(module.name, module.options)
        try:
            import triton
            from triton.backends.compiler import GPUTarget
            from triton.compiler import ASTSource, make_backend
        except ImportError as error:
            raise MachineError(f"Triton is not installed: pip install 'warpsan[triton]' ({error})") from None
        self.module = module
        self.options = {**_FIXED_OPTIONS, **module.options}
        self.target = GPUTarget("cuda", int("".join(filter(str.isdigit, arch))), 32)
        pointers = {
            (place,): _DIVISIBLE for place, kind in enumerate(module.signature.values()) if kind.startswith("*")
        }
        self.source = ASTSource(module.fn, dict(module.signature), dict(module.constants), pointers)
        self.backend = make_backend(self.target)
        self.compiler = f"Triton {triton.__version__}, ptxas {ptxas_version(arch)}"

    @property
    def command(self) -> tuple[str, ...]:
        """Target, types, constants and options, as text for records."""
        module = self.module
        values = {**module.signature, **module.constants, **module.options}
        return (f"cuda:{self.target.arch}", *(f"{name}={value}" for name, value in values.items()))

    def key_parts(self) -> tuple[str, ...]:
        """All inputs of the result, except the compiler and the file name.

        Triton's digest of a function covers its callees and the globals that it reads.

        Raises
        ------
        BuildError
            If the function uses a name, or an option has a value, that Triton does not support.
        """
        from triton._C.libtriton import get_cache_invalidating_env_vars

        try:
            options = self.backend.parse_options(dict(self.options)).hash()
            digest = self.source.hash()
        except Exception as error:
            raise BuildError(f"{self.module.name}{_described(error, self.module)}") from None
        return (*self.command, digest, options, str(sorted(get_cache_invalidating_env_vars().items())))

    def compile(self) -> TritonCompiled:
        """Compile without Triton's own cache.

        Raises
        ------
        BuildError
            If the function does not compile (one sentence with the line), or needs scratch memory.
        MachineError
            If the disk has no space for intermediate files.
        """
        import triton
        from triton import knobs

        output = io.StringIO()
        try:
            with tempfile.TemporaryDirectory() as folder, knobs.cache.scope(), contextlib.redirect_stdout(output):
                knobs.cache.dir = folder
                compiled = triton.compile(self.source, target=self.target, options=dict(self.options))
        except OSError as error:
            raise MachineError(f"{self.module.name}: Triton could not run: {error.strerror or error}") from None
        except Exception as error:
            message = f"{self.module.name}{_described(error, self.module)}"
            raise BuildError(message, f"{output.getvalue()}{error}") from None
        return _finished(compiled, self.module)


def _finished(compiled: Any, module: TritonModule) -> TritonCompiled:
    """Read Triton's metadata of the kernel, and reassemble the PTX without paths and with ptxas's report."""
    name, runtime = str(compiled.metadata.name), sum(kind != "constexpr" for kind in module.signature.values())
    scratch = sum(getattr(compiled.metadata, f"{kind}_scratch_size", 0) for kind in ("global", "profile"))
    if scratch:
        raise BuildError(
            f"{module.name}: {module.entry} needs {scratch} bytes of scratch memory in global memory "
            "(tensor descriptors made in the kernel do), which the build does not support"
        )
    ptx = _without_paths(compiled.asm["ptx"])
    params = re.search(rf"\.entry\s+{re.escape(name)}\s*\(([^)]*)\)", ptx)
    threads = re.search(r"^\s*\.reqntid\s+(\d+)", ptx, re.MULTILINE)
    if params is None or threads is None:
        raise MachineError(f"{module.name}: Triton's PTX lacks its parameters or its block size")
    cubin, log = assemble(ptx.encode(), module.name)
    return TritonCompiled(
        ptx=ptx.encode(),
        cubin=cubin,
        entry=name,
        log=log,
        dynamic_smem=int(compiled.metadata.shared),
        threads=int(threads[1]),
        scratch_params=params[1].count(".param") - runtime,
    )


def _described(error: BaseException, module: TritonModule) -> str:
    """``, line 12: message``, from the innermost of Triton's errors."""
    while isinstance(error.__cause__, type(error)):
        error = error.__cause__
    text = str(getattr(error, "error_message", None) or error.__cause__ or error)
    text = " ".join(text.split())[:300] or type(error).__name__
    line = getattr(getattr(error, "node", None), "lineno", None)
    if line is None:
        return f": Triton does not compile {module.entry}: {text}"
    source = getattr(error, "src", None) or ""
    if source != module.fn.src:
        return f": in a function that {module.entry} calls, at {source.splitlines()[line - 1].strip()!r}: {text}"
    first = module.fn.starting_line_number + len(module.fn.raw_src) - len(source.splitlines())
    return f", line {first + line - 1}: {text}"


def _without_paths(ptx: str) -> str:
    """Machine-independent PTX of Triton: file names without folders, and no DWARF, which contains them.

    Line information is in the ``.loc`` and ``.file`` directives.
    """
    ptx = re.sub(r"^\s*\.section\s+\.debug_(?!str)\w+\s*\{.*?\}\n", "", ptx, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r'^(\s*\.file\s+\d+\s+")[^"]*?([^"/]+")', r"\1/\2", ptx, flags=re.MULTILINE)


_NEWEST = "sm_100"
"""An architecture for which every release of Triton uses the newer of its assemblers."""


def _ptxas(arch: str) -> str:
    """Triton's assembler for ``arch``. Triton includes two; the newer one is for Blackwell up to release 3.8, and from
    sm_90 on in 3.9.
    """
    from triton.backends.nvidia.compiler import get_ptxas

    try:
        return str(get_ptxas(int("".join(filter(str.isdigit, arch)))).path)
    except RuntimeError as error:
        raise MachineError(f"Triton has no ptxas: {error}") from None


def ptxas_version(arch: str) -> str:
    """Release of the assembler for ``arch``; raises MachineError without one."""
    return _version(_ptxas(arch))


@cache
def _version(path: str) -> str:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"V(\d+\.\d+\.\d+)", done.stdout)
    if match is None:
        raise MachineError(f"{path} does not print its version")
    return match[1]


def assemblers_version(arch: str) -> str:
    """Releases of both assemblers that :func:`assemble` may use; raises MachineError without one."""
    return f"{ptxas_version(arch)} {ptxas_version(_NEWEST)}"


def assemble(ptx: bytes, name: str) -> tuple[bytes, str]:
    """Assemble PTX for its target; returns the cubin and the output of ptxas.

    The assembler is Triton's choice for the target, or the newer of Triton's two if the PTX version is too new for it.

    Raises
    ------
    BuildError
        If ptxas rejects the PTX; ``name`` is the name of the source.
    MachineError
        If the PTX has no target, or ptxas is missing.
    """
    named = re.search(rb"^\.target\s+(\w+)", ptx, re.MULTILINE)
    if named is None:
        raise MachineError(f"{name}: the PTX has no target")
    target = named[1].decode()
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_bytes(ptx)
        options = ["-lineinfo", "-v", f"--gpu-name={target}", str(source), "-o", str(cubin)]
        for assembler in dict.fromkeys((_ptxas(target), _ptxas(_NEWEST))):
            done = subprocess.run([assembler, *options], capture_output=True, text=True, check=False)
            if "Unsupported .version" not in done.stderr:
                break
        log = (done.stdout + done.stderr).replace(f"{folder}/", "")
        if done.returncode:
            raise BuildError(f"{name}: ptxas refuses the PTX: {log.strip().partition(chr(10))[0]}", log)
        return cubin.read_bytes(), log
