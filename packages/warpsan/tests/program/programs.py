"""Test programs: C compiled by gcc, with a fat binary around PTX compiled by the package."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from warpsan.build.builder import build
from warpsan.build.source import Module
from warpsan.program.standin import lay_out_standin

__all__ = ["KERNELS", "compile_program", "fat_binary", "lz4_literals", "ptx_of"]

HERE = Path(__file__).parent

KERNELS = """
#include <cassert>
#include <cstdio>
extern "C" {
__constant__ float factor = 1;
__global__ void scale(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}
__global__ void reverse(float *x, int n) {
    __shared__ float part[256];
    if (blockIdx.x == 0) part[threadIdx.x] = x[threadIdx.x];
    if (blockIdx.x == 0) x[threadIdx.x] = part[255 - threadIdx.x];
}
__global__ void hello(float *x, int n) {
    if (blockIdx.x == 0 && threadIdx.x == 0) printf("a kernel prints %d\\n", n);
}
__managed__ int turns = 2;
__global__ void turn(float *x, int n) {
    if (blockIdx.x == 0) atomicAdd(&turns, n);
}
__global__ void fail(float *x, int n) {
    assert(threadIdx.x < 1000 && n < 5);
}
}
"""


def ptx_of(source: str = KERNELS, entry: str = "scale", arch: str = "sm_89") -> bytes:
    """PTX with all kernels of a source."""
    return build(Module("kernels.cu", source, entry), arch).ptx.rstrip(b"\0")


def fat_binary(*entries: tuple[int, int, bytes], flags: int = 0x11, size: int = 0) -> bytes:
    """A fat binary of entries: kind (1: PTX, 2: machine code), architecture, and bytes.

    ``size`` is the size of compressed bytes.
    """
    body = b""
    for kind, arch, data in entries:
        padded = data + bytes(-len(data) % 8)
        sizes = 80, len(padded), len(data) if size else 0, 64
        head = struct.pack("<HHIQIIHHIII", kind, 0x101, *sizes, 0, 9, arch, 0, 0)
        options = struct.pack("<4I", 72, 0, 0, 0)  # no options, but their fields exist
        body += head + struct.pack("<3Q", flags, 0, size) + options + padded
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def lz4_literals(data: bytes) -> bytes:
    """An LZ4 block of literals only: a token, the length, the bytes."""
    rest = len(data) - 15
    return b"\xf0" + b"\xff" * (rest // 255) + bytes([rest % 255]) + data


def compile_program(folder: Path, source: Path = HERE / "program.c", name: str = "program") -> Path:
    """A program linked with the shared runtime."""
    libraries = folder / "libraries"
    if not libraries.is_dir():
        libraries.mkdir()
        lay_out_standin("13", libraries)
    command = ["cc", "-g", "-O0", str(source), "-o", str(folder / name), f"-L{libraries}", "-lcudart"]
    subprocess.run(command, check=True)
    return folder / name
