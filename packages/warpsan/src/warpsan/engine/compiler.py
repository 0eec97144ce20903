"""Compilation of operations and functions to machine code with LLVM, for the processor of this process.

No option lets LLVM change the results of floating-point instructions: no fast-math flags, and no contraction.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from warpsan.engine.operation import NativeOperation
from warpsan.engine.translate import Translator
from warpsan.host.collector import without_collector

__all__ = ["compile_functions", "compile_operation", "target_machine", "target_name"]

_OPTIMISE = 1
"""LLVM's optimisation level, of passes and of code. Level 2 compiles 25 % slower, for code of the same speed."""


@functools.lru_cache(maxsize=4)
def _initialised() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def target_name() -> tuple[str, str]:
    """The processor and its features, as LLVM writes them."""
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def target_machine(cpu: str, features: str) -> Any:
    """LLVM's target machine for a processor.

    Addresses have 64 bits. MCJIT places each section of an object in any free range; in a process with large arrays two
    sections may be more than 2 GiB apart, out of reach of shorter addresses, and LLVM would abort the process.
    """
    _initialised()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=_OPTIMISE, reloc="static", codemodel="large")


@without_collector()
def compile_operation(operation: NativeOperation, cpu: str, features: str) -> bytes:
    """The object with an operation's function, by its name; the translated functions that it calls are in another
    object."""
    module = ir.Module("operation")
    module.has_halves, module.has_rounding = (f"+{each}" in features.split(",") for each in ("f16c", "avx512f"))
    operation.add_to(Translator(module, elsewhere=True))
    return _object_of(module, cpu, features)


@without_collector()
def compile_functions(functions: Collection[Callable[..., Any]], cpu: str, features: str) -> bytes:
    """The object with these functions of 64-bit integers, by their symbols, and their callees."""
    module = ir.Module("functions")
    Translator(module, functions).finish()
    return _object_of(module, cpu, features)


def _object_of(module: Any, cpu: str, features: str) -> bytes:
    """The object of a module.

    Loops remain as they are: those of operations work on vectors already, and those of translated functions make few
    iterations. Unrolled and vectorised, they take a quarter longer to compile, and run as fast.
    """
    machine = target_machine(cpu, features)
    module.triple = llvm.get_default_triple()
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=_OPTIMISE)
    options.loop_unrolling = options.loop_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    return bytes(machine.emit_object(parsed))
