"""From a module (CUDA C++ or Triton, with its knobs fixed) to PTX and cubin, through the cache."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from sdpalab.compile.cache import Cache, key_of
from sdpalab.compile.headers import Header
from sdpalab.compile.host_code import device_code, file_name, full_name
from sdpalab.compile.nvrtc import BuildError, check_arch, compile_program, compiler_version
from sdpalab.compile.triton_compiler import TritonProgram, assemble, assemblers_version
from sdpalab.errors import UserError
from sdpalab.kernels.kernel import DEFAULT_ARCH
from sdpalab.kernels.plan import Launch, Module, PtxSource, Source, TritonModule

__all__ = ["DEFAULT_ARCH", "Build", "build", "build_key"]

CACHE_FORMAT = 1
"""Part of every key; raised when the files of an entry, or what they mean, change."""

_BASE_OPTIONS = (
    "--std=c++17",
    "-lineinfo",
    "--no-source-include",  # otherwise the working directory is searched for headers
    "--frandom-seed=sdpalab",  # otherwise names of internal symbols hold the process id
    "--ptxas-options=-v",
)
_LINE_NUMBERS = (b".loc", b".file")
"""How the lines of PTX begin that only name lines of the source."""
_FORBIDDEN = re.compile(
    r"--?(I|include-path|isystem|include|pre-?include|arch|gpu-architecture|pch.*|.*-pch)(=.*)?|-I.+"
)


@dataclass(frozen=True)
class Build:
    """One module compiled for one architecture.

    Attributes
    ----------
    key : str
        Sha256 of all that the result depends on.
    name : str
        Readable and unique: source, architecture and the head of the key, such as ``flash-sm_89-0123456789abcdef``.
    module : str
        File name of the source.
    entry : str
        Lowered (mangled) name of the ``__global__`` function.
    arch : str
        Such as ``sm_89``.
    ptx, cubin : bytes
        What the compiler made in one run; no path of this machine is in them.
    log : str
        The compiler's output, with ptxas's count of registers and spills.
    command : tuple of str
        The compiler's options.
    compiler : str
        Release and build of the compiler.
    sources : mapping of str to str
        Sha256 of the source and of every header that it could include, by name.
    compile_seconds : float
        Time the compiler took when the result was made.
    seconds : float
        Time this call took.
    cache_hit : bool
        True if the result was read from the cache.
    cache_problem : str
        Why the cache could not be used; empty if it could.
    triton : mapping of str to int
        What only Triton defines of a launch: ``threads`` of a block, its ``dynamic_smem`` in bytes, and how many
        ``scratch_params`` it has appended to the parameters. Empty for CUDA C++.
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
        """Digest of the PTX without its line numbers: what decides whether a rebuild is the same code.

        A comment in the source moves the lines (``.loc``, ``.file``) and changes nothing that runs. Everything else
        counts: the compiler's build, which the PTX names and the cubin depends on, and even the names of registers.
        NVRTC compiles some sources (``scalar``) to one of a few texts, and a verdict on one says nothing of the others.
        Source: PTX ISA, "Debugging Directives".
        """
        lines = (line.strip() for line in self.ptx.splitlines())
        return sha256(b"\n".join(line for line in lines if not line.startswith(_LINE_NUMBERS))).hexdigest()

    @property
    def cubin_sha256(self) -> str:
        """Digest of the cubin."""
        return sha256(self.cubin).hexdigest()

    def completed(self, launch: Launch) -> Launch:
        """``launch`` completed by the compiler's values: Triton's block, shared memory, and null scratch pointers."""
        if not self.triton:
            return launch
        return replace(
            launch,
            block=(self.triton["threads"], 1, 1),
            args=(*launch.args, *(0,) * self.triton["scratch_params"]),
            dynamic_smem=self.triton["dynamic_smem"],
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: all but the PTX and cubin themselves, of which the digests are given."""
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
class _Compilation:
    """One compilation: what its result depends on, how it is recorded, and how it is done."""

    key: str
    command: tuple[str, ...]
    compiler: str
    sources: Mapping[str, str]
    make: Callable[[], tuple[bytes, bytes, dict[str, Any]]]
    """PTX, cubin, and the facts that are kept beside them."""


def build(
    module: Source, arch: str = DEFAULT_ARCH, *, cache: Cache | None = None, options: Sequence[str] = ()
) -> Build:
    """Compile ``module`` for ``arch``, or read the result from the cache.

    Parameters
    ----------
    module : Module, TritonModule or PtxSource
        Source, entry and macros; a Triton function with its types and constants; or PTX, which is only assembled.
    arch : str
        ``sm_80`` to the newest that NVRTC supports, also with the suffix ``a`` or ``f``.
    cache : Cache, optional
        Default: the user's.
    options : sequence of str
        Further options of NVRTC; none that adds a search path or sets the architecture.

    Raises
    ------
    BuildError
        If the source does not compile: one sentence with the first error, its file and line; ``log`` has the rest.
    UserError
        For an unknown architecture, a macro name or option that cannot be, or headers that cannot be resolved.
    MachineError
        If there is no compiler or there are no CUDA headers; names the pip package.
    """
    start = time.perf_counter()
    check_arch(arch)
    if isinstance(module, Module):
        job = _nvrtc_job(module, arch, options)
    else:
        job = _triton_job(module, arch) if isinstance(module, TritonModule) else _ptx_job(module, arch)
    name = f"{_readable(module.name)}-{arch}-{job.key[:16]}"

    def make() -> dict[str, bytes]:
        begin = time.perf_counter()
        ptx, cubin, facts = job.make()
        facts["compile_seconds"] = time.perf_counter() - begin
        return {"kernel.ptx": ptx, "kernel.cubin": cubin, "build.json": json.dumps(facts).encode()}

    stored = (cache or Cache()).get_or_make(name, job.key, make)
    facts = json.loads(stored.files["build.json"])
    return Build(
        key=job.key,
        name=name,
        module=module.name,
        entry=facts["entry"],
        arch=arch,
        ptx=stored.files["kernel.ptx"],
        cubin=stored.files["kernel.cubin"],
        log=facts["log"],
        command=job.command,
        compiler=job.compiler,
        sources=job.sources,
        compile_seconds=facts["compile_seconds"],
        seconds=time.perf_counter() - start,
        cache_hit=stored.hit,
        cache_problem=stored.problem,
        triton=facts.get("triton", {}),
    )


def _nvrtc_job(module: Module, arch: str, options: Sequence[str]) -> _Compilation:
    code = device_code(module)
    headers = code.headers
    command = _command(code.module, arch, options)

    def make() -> tuple[bytes, bytes, dict[str, Any]]:
        try:
            compiled = compile_program(code.module.source, file_name(module), module.entry, headers, command)
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


def _ptx_job(module: PtxSource, arch: str) -> _Compilation:
    if module.arch != arch:
        raise UserError(f"{module.name}: its PTX was compiled for {module.arch}, not {arch}")
    digest = sha256(module.ptx).hexdigest()

    def make() -> tuple[bytes, bytes, dict[str, Any]]:
        cubin, log = assemble(module.ptx, module.name)
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
    """Sha256 over all that a build depends on, each part preceded by its length.

    The parts: cache format, compiler, source with its name, entry, options (architecture and macros among them), and
    every reachable header's name and digest. Counts precede the two lists, so that a part cannot move between them.
    """
    parts: list[str] = [f"sdpalab build {CACHE_FORMAT}", compiler, module.name, module.source, module.entry]
    parts += [str(len(command)), *command, str(len(headers))]
    for header in headers:
        parts += [header.name, header.sha256]
    return key_of(*parts)


def _command(module: Module, arch: str, options: Sequence[str]) -> tuple[str, ...]:
    options = (*module.options, *options)
    for option in options:
        if _FORBIDDEN.fullmatch(option):
            raise UserError(
                f"option {option!r} is not allowed: headers come from include_dirs, the architecture from arch"
            )
    for name in module.defines:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UserError(f"{module.name}: {name!r} is not a valid name of a macro")
    defines = [f"-D{name}={value}" for name, value in sorted(module.defines.items())]
    return (f"--gpu-architecture={arch}", *_BASE_OPTIONS, *defines, *options)


def _readable(name: str) -> str:
    return re.sub(r"\W", "_", name.rpartition("/")[2].removesuffix(".cu").removesuffix(".py")) or "kernel"


def _reject_unseen_files(module: Module, headers: Sequence[Header], ptx: bytes) -> None:
    """Refuse code from a file that is not in the key: an include hidden from the scan that named an absolute path."""
    seen = {f"/{file_name(module)}".encode(), *(_line_name(header) for header in headers)}
    for path in re.findall(rb'^\s*\.file\s+\d+\s+"([^"]*)"', ptx, re.MULTILINE):
        if path not in seen:
            raise BuildError(
                f"{module.name}: code comes from {path.decode()}, which is not among the headers of the build: "
                "include it by name"
            )


def _line_name(header: Header) -> bytes:
    return header.text.split(b'"', 2)[1]
