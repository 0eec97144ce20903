"""From operations and functions to machine code, by LLVM, for the processor that runs it.

No option lets LLVM change what floating-point instructions compute: there are no fast-math flags, and nothing is
contracted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from warpsan.engine.operation import NativeOperation
from warpsan.engine.translate import Translator

__all__ = ["compile_functions", "compile_operation", "target_machine", "target_name"]

_OPTIMISE = 1
"""LLVM's level, of passes and of code. Level 2 takes a quarter longer to compile, and its code is no faster."""


@functools.lru_cache(maxsize=4)
def _initialised() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def target_name() -> tuple[str, str]:
    """The processor and its features, as LLVM writes them."""
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def target_machine(cpu: str, features: str) -> Any:
    """LLVM's target machine for a processor.

    Addresses have 64 bits. MCJIT puts each section of an object where there is room; in a process with large arrays
    that may be more than 2 GiB from the last, where shorter addresses do not reach, and LLVM would end the process.
    """
    _initialised()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=_OPTIMISE, reloc="static", codemodel="large")


def compile_operation(operation: NativeOperation, cpu: str, features: str) -> bytes:
    """The object that has an operation's function, by its name; translated functions that it calls are elsewhere."""
    module = ir.Module("operation")
    module.has_halves = "+f16c" in features.split(",")
    operation.add_to(Translator(module, elsewhere=True))
    return _object_of(module, cpu, features, loops_change=False)


def compile_functions(functions: Collection[Callable[..., Any]], cpu: str, features: str) -> bytes:
    """The object that has these functions of 64-bit integers, by their symbols, with all that they call."""
    module = ir.Module("functions")
    Translator(module, functions).finish()
    return _object_of(module, cpu, features, loops_change=True)


def _object_of(module: Any, cpu: str, features: str, *, loops_change: bool) -> bytes:
    """The object of a module. Loops of operations work on vectors already: there is nothing to gain by unrolling them,
    and they take longer to compile."""
    machine = target_machine(cpu, features)
    module.triple = llvm.get_default_triple()
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=_OPTIMISE)
    options.loop_unrolling = options.loop_vectorization = loops_change
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    return bytes(machine.emit_object(parsed))
