"""Builds: a module (CUDA C++ or Triton, with fixed knobs) to PTX and cubin, through the cache."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from warpsan.build.cache import Cache, key_of
from warpsan.build.headers import Header
from warpsan.build.host_code import device_code, file_name, full_name
from warpsan.build.nvrtc import BuildError, Compiled, check_arch, compile_program, compiler_version
from warpsan.build.options import allowed_options, check_macro
from warpsan.build.source import DEFAULT_ARCH, Module, PtxSource, Source, TritonModule
from warpsan.build.triton_compiler import TritonProgram, assemble, assemblers_version
from warpsan.build.untrusted import Workshop, workshop_of
from warpsan.errors import MachineError, UserError

__all__ = ["DEFAULT_ARCH", "FILES", "Build", "ForeignBuild", "build", "build_key"]

CACHE_FORMAT = 1
"""Part of every key; raised when the files of an entry or their meaning change."""

FILES = ("kernel.ptx", "kernel.cubin", "build.json")
"""Files of a build in the cache."""

_BASE_OPTIONS = (
    "--std=c++17",
    "-lineinfo",
    "--no-source-include",  # without it, NVRTC searches the working directory for headers
    "--frandom-seed=sdpalab",  # without it, names of internal symbols contain the process id
    "--ptxas-options=-v",
)
_LINE_NUMBERS = (b".loc", b".file")
"""Prefixes of PTX lines that only map to source lines."""


@dataclass(frozen=True)
class Build:
    """A module compiled for one architecture.

    Attributes
    ----------
    key : str
        Sha256 of all inputs of the result.
    name : str
        Readable and unique: source, architecture and first digits of the key, such as ``flash-sm_89-0123456789abcdef``.
    module : str
        File name of the source.
    entry : str
        Lowered (mangled) name of the ``__global__`` function.
    arch : str
        Architecture, such as ``sm_89``.
    ptx, cubin : bytes
        Output of one run of the compiler, without paths of this machine.
    log : str
        Output of the compiler, with ptxas's register and spill counts.
    command : tuple of str
        The compiler's options.
    compiler : str
        Release and build of the compiler.
    sources : mapping of str to str
        Sha256 of the source and of all reachable headers, by name.
    compile_seconds : float
        Duration of the compiler run that made the result.
    seconds : float
        Duration of this call.
    cache_hit : bool
        Whether the result was read from the cache.
    cache_problem : str
        Reason why the cache was unusable; empty otherwise.
    triton : mapping of str to int
        Launch values that only Triton defines: ``threads`` per block, ``dynamic_smem`` in bytes, and the number of
        appended parameters, ``scratch_params``. Empty for CUDA C++.
    """

    key: str
    name: str
    module: str
    entry: str
    arch: str
    ptx: bytes
    cubin: bytes
    log: str
    command: tuple[str, ...]
    compiler: str
    sources: Mapping[str, str]
    compile_seconds: float
    seconds: float
    cache_hit: bool
    cache_problem: str = ""
    triton: Mapping[str, int] = field(default_factory=dict)

    @property
    def ptx_sha256(self) -> str:
        """Digest of the PTX."""
        return sha256(self.ptx).hexdigest()

    @property
    def code_sha256(self) -> str:
        """Digest of the PTX without its line numbers; equal digests mean equal code.

        A comment in the source moves the lines (``.loc``, ``.file``) without an effect on execution. Everything else
        counts: the compiler's build, which the PTX names and the cubin depends on, and register names. NVRTC compiles
        some sources (``scalar``) to one of several texts, and a verdict holds for one text only. Source: PTX ISA,
        "Debugging Directives".
        """
        lines = (line.strip() for line in self.ptx.splitlines())
        return sha256(b"\n".join(line for line in lines if not line.startswith(_LINE_NUMBERS))).hexdigest()

    @property
    def cubin_sha256(self) -> str:
        """Digest of the cubin."""
        return sha256(self.cubin).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: digests in place of PTX and cubin, and all other attributes."""
        return {
            "key": self.key,
            "name": self.name,
            "module": self.module,
            "entry": self.entry,
            "arch": self.arch,
            "ptx_sha256": self.ptx_sha256,
            "code_sha256": self.code_sha256,
            "cubin_sha256": self.cubin_sha256,
            "log": self.log,
            "command": list(self.command),
            "compiler": self.compiler,
            "sources": dict(self.sources),
            "compile_seconds": self.compile_seconds,
            "seconds": self.seconds,
            "cache_hit": self.cache_hit,
            "cache_problem": self.cache_problem,
            "triton": dict(self.triton),
        }


@dataclass(frozen=True)
class ForeignBuild(Build):
    """A build of an untrusted source; its ``workshop`` disassembles it."""

    workshop: Workshop | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class _Facts:
    """Facts stored beside PTX and cubin; for an untrusted source they come from another process."""

    entry: str
    log: str
    compile_seconds: float
    triton: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        texts = isinstance(self.entry, str) and isinstance(self.log, str)
        triton = isinstance(self.triton, dict) and all(type(value) is int for value in self.triton.values())
        if not texts or not triton or type(self.compile_seconds) not in (int, float):
            raise TypeError("a fact of a build has the wrong type")


@dataclass(frozen=True)
class _Compilation:
    """A compilation: the inputs of its key, its record, and its function."""

    key: str
    command: tuple[str, ...]
    compiler: str
    sources: Mapping[str, str]
    make: Callable[[], tuple[bytes, bytes, dict[str, Any]]]
    """Returns PTX, cubin, and the facts to store beside them."""


def build(
    module: Source,
    arch: str = DEFAULT_ARCH,
    *,
    cache: Cache | None = None,
    options: Sequence[str] = (),
) -> Build:
    """Compile ``module`` for ``arch``, or read the result from the cache.

    Parameters
    ----------
    module : Module, TritonModule or PtxSource
        Source, entry and macros; a Triton function with its types and constants; or PTX, which is only assembled.
    arch : str
        ``sm_80`` up to the newest architecture of NVRTC, optionally with the suffix ``a`` or ``f``.
    cache : Cache, optional
        Default: the user's cache; for an untrusted module (:mod:`warpsan.build.untrusted`), its workshop's cache.
    options : sequence of str
        Further options of NVRTC, from the list in :mod:`warpsan.build.options`.

    Raises
    ------
    BuildError
        If the source does not compile: one sentence with the first error, its file and line; ``log`` has the full
        output. Also for an invalid macro name, or a disallowed option.
    UserError
        If the architecture is unknown, or a header cannot be resolved.
    MachineError
        If the compiler or the CUDA headers are missing; the message names the pip package.
    """
    start = time.perf_counter()
    check_arch(arch)
    workshop = workshop_of(module)
    job = _compilation(module, arch, options, workshop)
    name = f"{_readable(module.name)}-{arch}-{job.key[:16]}"

    store = workshop.cache if workshop else cache or Cache()
    stored = store.get_or_make(name, job.key, lambda: _made(job))
    try:
        ptx, cubin, text = (stored.files[each] for each in FILES)
        facts = _Facts(**json.loads(text))
    except (KeyError, TypeError, ValueError):
        raise MachineError(f"{store.root / name} holds no build: remove it") from None
    values: dict[str, Any] = {
        "key": job.key,
        "name": name,
        "module": module.name,
        "entry": facts.entry,
        "arch": arch,
        "ptx": ptx,
        "cubin": cubin,
        "log": facts.log,
        "command": job.command,
        "compiler": job.compiler,
        "sources": job.sources,
        "compile_seconds": facts.compile_seconds,
        "seconds": time.perf_counter() - start,
        "cache_hit": stored.hit,
        "cache_problem": stored.problem,
        "triton": facts.triton,
    }
    return ForeignBuild(**values, workshop=workshop) if workshop else Build(**values)


def _made(job: _Compilation) -> dict[str, bytes]:
    begin = time.perf_counter()
    ptx, cubin, facts = job.make()
    facts["compile_seconds"] = time.perf_counter() - begin
    return dict(zip(FILES, (ptx, cubin, json.dumps(facts).encode()), strict=True))


def _compilation(module: Source, arch: str, options: Sequence[str], workshop: Workshop | None) -> _Compilation:
    if isinstance(module, Module):
        return _nvrtc_job(module, arch, options, workshop.compile_program if workshop else compile_program)
    if isinstance(module, TritonModule):
        return _triton_job(module, arch)
    return _ptx_job(module, arch, workshop.assemble if workshop else assemble)


def _nvrtc_job(module: Module, arch: str, options: Sequence[str], compiler: Callable[..., Compiled]) -> _Compilation:
    code = device_code(module, _command(module, arch, options))
    headers = code.headers
    command = _command(code.module, arch, options)

    def make() -> tuple[bytes, bytes, dict[str, Any]]:
        try:
            compiled = compiler(code.module.source, file_name(module), module.entry, headers, command)
        except BuildError as error:
            name = full_name(module) if "no __global__ function" in str(error) else ""
            say = f"; its name is {name}" if name else code.set_aside.hint(str(error))
            raise BuildError(f"{error}{say}", error.log) from None
        _reject_unseen_files(module, headers, compiled.ptx)
        return compiled.ptx, compiled.cubin, {"entry": compiled.entry, "log": compiled.log}

    return _Compilation(
        key=build_key(code.module, headers, command, compiler_version()),
        command=command,
        compiler=compiler_version(),
        sources={module.name: _digest(module.source), **{each.name: each.sha256 for each in code.originals}},
        make=make,
    )


def _triton_job(module: TritonModule, arch: str) -> _Compilation:
    program = TritonProgram(module, arch)

    def make() -> tuple[bytes, bytes, dict[str, Any]]:
        compiled = program.compile()
        launch = {name: getattr(compiled, name) for name in ("threads", "dynamic_smem", "scratch_params")}
        return compiled.ptx, compiled.cubin, {"entry": compiled.entry, "log": compiled.log, "triton": launch}

    return _Compilation(
        key=key_of(f"sdpalab triton {CACHE_FORMAT}", program.compiler, arch, module.name, *program.key_parts()),
        command=program.command,
        compiler=program.compiler,
        sources={module.name: _digest(module.source)},
        make=make,
    )


def _ptx_job(module: PtxSource, arch: str, assembler: Callable[[bytes, str], tuple[bytes, str]]) -> _Compilation:
    if module.arch != arch:
        raise UserError(f"{module.name}: its PTX was compiled for {module.arch}, not {arch}")
    target = re.search(rb"^\.target\s+sm_(\d+)", module.ptx, re.MULTILINE)
    if target is None or target[1].decode() != "".join(filter(str.isdigit, arch)):
        raise UserError(f"{module.name}: its PTX names {target[0].decode() if target else 'no target'}, not {arch}")
    digest = sha256(module.ptx).hexdigest()

    def make() -> tuple[bytes, bytes, dict[str, Any]]:
        cubin, log = assembler(module.ptx, module.name)
        return module.ptx, cubin, {"entry": module.entry, "log": log, "triton": dict(module.triton)}

    described = (module.name, module.source, module.entry, json.dumps(dict(module.triton), sort_keys=True))
    return _Compilation(
        key=key_of(f"sdpalab ptx {CACHE_FORMAT}", assemblers_version(arch), arch, digest, *described),
        command=module.command,
        compiler=module.compiler,
        sources={module.name: _digest(module.source)},
        make=make,
    )


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def build_key(module: Module, headers: Sequence[Header], command: Sequence[str], compiler: str) -> str:
    """Sha256 over all inputs of a build, each preceded by its length.

    Inputs: cache format, compiler, source with its name, entry, options (including architecture and macros), and name
    and digest of every reachable header. Both lists are preceded by their lengths, so an item cannot move between them.
    """
    parts: list[str] = [f"sdpalab build {CACHE_FORMAT}", compiler, module.name, module.source, module.entry]
    parts += [str(len(command)), *command, str(len(headers))]
    for header in headers:
        parts += [header.name, header.sha256]
    return key_of(*parts)


def _command(module: Module, arch: str, options: Sequence[str]) -> tuple[str, ...]:
    defines = [f"{name}={value}" for name, value in sorted(module.defines.items())]
    for macro in defines:
        check_macro(module.name, macro)
    given = allowed_options((*module.options, *options))
    return (f"--gpu-architecture={arch}", *_BASE_OPTIONS, *(f"-D{macro}" for macro in defines), *given)


def _readable(name: str) -> str:
    return re.sub(r"\W", "_", name.rpartition("/")[2].removesuffix(".cu").removesuffix(".py"))[:100] or "kernel"


def _reject_unseen_files(module: Module, headers: Sequence[Header], ptx: bytes) -> None:
    """Reject code from a file outside the key, reached by an include of an absolute path that the scan did not find."""
    seen = {f"/{file_name(module)}".encode(), *(_line_name(header) for header in headers)}
    for path in re.findall(rb'^\s*\.file\s+\d+\s+"([^"]*)"', ptx, re.MULTILINE):
        if path not in seen:
            raise BuildError(
                f"{module.name}: code comes from {path.decode()}, which is not among the headers of the build: "
                "include it by name"
            )


def _line_name(header: Header) -> bytes:
    return header.text.split(b'"', 2)[1]
