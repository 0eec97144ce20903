"""Modules and launches: registration by compiled host code, and kernels on the simulator (crt/host_runtime.h; CUDA
Runtime API, "Execution Control"; CUDA Driver API, "Tensor Map Object Management").
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from warpsan import KernelTrap, LaunchError, SimError
from warpsan.program.errors import CallError
from warpsan.program.fat_binary import read_fat_binary
from warpsan.program.handlers import handles, word
from warpsan.program.state import LoadedModule, ProgramState, RegisteredFunction, RegisteredVariable
from warpsan.program.wire import Request
from warpsan.ptx.names import short_name
from warpsan.ptx.parser import parse
from warpsan.report.groups import ENDINGS, ending

__all__ = ["launch"]

_LINKED = 2
"""Version of a wrapper with device code linked by nvlink (FATBINC_LINK_VERSION)."""
_COOPERATIVE, _CLUSTER, _PROGRAMMATIC, _ATTRIBUTE_BYTES, _ATTRIBUTE_VALUE = 2, 4, 6, 72, 8
_UNHANDLED = {12: "cudaLaunchAttributeLaunchCompletionEvent", 7: "cudaLaunchAttributeProgrammaticEvent"}


@handles("__cudaRegisterFatBinary")
def register_fat_binary(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Register a fat binary; its PTX is read on first use."""
    handle, (version,) = request.arguments.word(), request.arguments.ints(1)
    binary = read_fat_binary(request.arguments.counted())
    state.modules[handle] = LoadedModule(f"module {len(state.modules) + 1}", binary, version == _LINKED)
    return ()


@handles("__cudaRegisterFunction")
def register_function(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Register a kernel of a fat binary by the address of its host function."""
    state.stubs.add(request.text(3))
    state.functions[request.number(1)] = RegisteredFunction(state.modules[request.number(0)], request.text(3))
    return ()


@handles("__cudaRegisterVar")
def register_variable(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Register a variable of a fat binary by the address of its shadow."""
    state.variables[request.number(1)] = RegisteredVariable(state.modules[request.number(0)], request.text(3))
    return ()


@handles("__cudaRegisterManagedVar")
def register_managed(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Register a ``__managed__`` variable in shared memory, and store its address for host code."""
    module, name, size = state.modules[request.number(0)], request.text(3), request.number(5)
    module.managed[name] = state.allocate(size, "managed", request, name=f"variable {short_name(name)}").address
    state.variables[request.number(2)] = RegisteredVariable(module, name)
    return [word(module.managed[name])]


@handles("__cudaInitModule")
def init_module(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Initialize ``__managed__`` variables before their first use on the host."""
    state.load(state.modules[request.number(0)])
    return ()


@handles("__cudaGetKernel", "cudaGetKernel", "cudaGetFuncBySymbol")
def get_kernel(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the address of the host function as the kernel's handle."""
    state.function(request.number(0))
    return [word(request.number(0))]


@handles("parameter sizes")
def parameter_sizes(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the number of parameters of a kernel, and their sizes in bytes."""
    function = state.function(request.arguments.word())
    code = parse(state.load(function.module).text).entries.get(function.entry)
    if code is None:
        raise CallError("cudaErrorInvalidDeviceFunction", f"the PTX has no kernel {short_name(function.entry)}")
    sizes = [param.size for param in code.params]
    return [struct.pack(f"<{len(sizes) + 1}I", len(sizes), *sizes)]


@handles("cudaLaunchKernel", "cudaLaunchCooperativeKernel", "cudaLaunchKernelExC")
def launch(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Run a kernel, and record its hazards."""
    given = request.arguments
    address, grid, block, dynamic, handle = given.word(), given.ints(3), given.ints(3), given.word(), given.word()
    attributes, raw = given.counted(), given.rest()
    function = state.function(address)
    cooperative, cluster, programmatic = _attributes(state, attributes)
    cooperative |= request.name == "cudaLaunchCooperativeKernel"
    module, name, place = state.load(function.module), short_name(function.entry), state.line(request)
    where = f"{name}{f' at {place}' if place else ''}"
    if dynamic > function.dynamic_smem:
        raise CallError(
            "cudaErrorInvalidValue",
            f"{name}: {dynamic} bytes of dynamic shared memory, and {function.dynamic_smem} are allowed: "
            "cudaFuncSetAttribute(cudaFuncAttributeMaxDynamicSharedMemorySize) allows more",
        )
    args, at = [], 0
    for param in parse(module.text).entries[function.entry].params:
        args.append(raw[at : at + param.size])
        at += param.size
    state.launches += 1
    stream = state.stream(handle, request)
    options: dict[str, Any] = {"grid": list(grid), "block": list(block)}
    options |= {"dynamic_smem": dynamic} if dynamic else {}
    options |= {"cluster": list(cluster)} if cluster != (1, 1, 1) else {}
    options |= {"cooperative": True} if cooperative else {}
    options |= {"programmatic": True} if programmatic else {}
    recorded = state.recorder is not None and state.recorder.before(function, args, options, stream)
    run, ptx = state.begin_operation(name, place), f"{function.module.name}.ptx"
    try:
        report = module[function.entry].launch(
            *(grid, block, args),
            stream=stream,
            dynamic_smem=dynamic,
            cluster=cluster,
            cooperative=cooperative,
            programmatic=programmatic,
            **state.options.of_launch,
        )
    except LaunchError as error:
        raise CallError("cudaErrorInvalidConfiguration", f"{name}: {error}") from None
    except tuple(ENDINGS) as error:
        state.note(error.hazards, ptx, run)
        state.note_one(ending(error, ptx, run))
        state.sticky = _status(error)
        return ()  # the next call returns the kernel's error
    except SimError as error:
        state.fatal = f"{where}: {error}"
        raise CallError("cudaErrorNotSupported", f"{name}: {error}") from None
    state.steps += report.steps
    state.printed += report.printed
    state.note(report.hazards, ptx, run)
    if recorded and state.recorder is not None:
        state.recorder.after(stream)
    return ()


def _status(error: SimError) -> int:
    """CUDA error for an exception that ended a kernel."""
    if isinstance(error, KernelTrap):
        return 710 if "assert" in str(error).lower() else 719
    return 702


def _attributes(state: ProgramState, data: bytes) -> tuple[bool, tuple[int, ...], bool]:
    """Cooperative flag, cluster and programmatic overlap of a launch, from its ``cudaLaunchAttribute`` records."""
    cooperative, cluster, programmatic = False, (1, 1, 1), False
    for at in range(0, len(data), _ATTRIBUTE_BYTES):
        kind = int.from_bytes(data[at : at + 4], "little")
        value = data[at + _ATTRIBUTE_VALUE : at + _ATTRIBUTE_BYTES]
        if kind == _COOPERATIVE:
            cooperative = int.from_bytes(value[:4], "little") != 0
        elif kind == _CLUSTER:
            cluster = struct.unpack_from("<3I", value)
        elif kind == _PROGRAMMATIC:
            programmatic = int.from_bytes(value[:4], "little") != 0
        elif kind in _UNHANDLED:
            raise CallError("cudaErrorNotSupported", f"{_UNHANDLED[kind]} is not modelled")
    return cooperative, cluster, programmatic
