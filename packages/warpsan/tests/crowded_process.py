"""Test process: loads machine code while free pages of memory are gigabytes apart."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import llvmlite.binding as llvm
from llvmlite import ir

from warpsan.engine.compiler import target_machine, target_name
from warpsan.engine.library import Library

PAGE = 4096
_PRIVATE_ANONYMOUS_UNRESERVED = 0x4022

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def reserved(size: int) -> int:
    """Address of reserved memory without access rights or pages."""
    return int(libc.mmap(None, size, 0, _PRIVATE_ANONYMOUS_UNRESERVED, -1, 0))


def plus_constant() -> bytes:
    """Object file of a function that adds a number stored among the object's constants."""
    module = ir.Module("plus_constant")
    function = ir.Function(module, ir.FunctionType(ir.DoubleType(), [ir.DoubleType()]), "plus_constant")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(builder.fadd(function.args[0], ir.Constant(ir.DoubleType(), 3.25)))
    return bytes(target_machine(*target_name()).emit_object(llvm.parse_assembly(str(module))))


def main() -> None:
    """Print 4.25, or die."""
    code = plus_constant()
    library = Library(*target_name(), root=Path(sys.argv[1]))
    for _ in range(5000):  # all one-page holes
        reserved(PAGE)
    for _ in range(40):  # larger holes; not a multiple of 2 MiB, which would be aligned
        reserved((3 << 30) + PAGE)
    hole = reserved(PAGE)
    reserved((5 << 30) + PAGE)
    libc.munmap(hole, PAGE)
    library.load({"plus_constant": code}, ["plus_constant"])
    function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(library.address("plus_constant"))
    print(function(1.0))


if __name__ == "__main__":
    main()
