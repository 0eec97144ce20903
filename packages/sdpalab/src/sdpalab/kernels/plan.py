"""The launch plan: the buffers and steps of one call of a kernel, for every executor.

A plan names its buffers and lists its steps. A GPU's driver and the simulator run the same plan on the same PTX.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from sdpalab.problem import Problem
from warpsan.build import Module, PtxSource, Source, TritonModule

__all__ = [
    "HEADER_FOLDERS",
    "INCLUDE_DIR",
    "Buffer",
    "Dim3",
    "Gemm",
    "Launch",
    "LaunchPlan",
    "MatrixShape",
    "Module",
    "PtxSource",
    "Source",
    "Step",
    "TiledMap",
    "TritonModule",
    "problem_buffers",
]

INCLUDE_DIR = Path(__file__).parent / "include"
"""Shared device headers (``.cuh``); every kernel, including a user's, may include them as ``FOLDER/NAME``."""
HEADER_FOLDERS = (INCLUDE_DIR, *sorted(path for path in INCLUDE_DIR.iterdir() if path.is_dir()))
"""Search path for headers that PTX names without a folder. Header names are unique."""

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Buffer:
    """A named array in device memory.

    Attributes
    ----------
    dtype : str
        NumPy or ml_dtypes name.
    role : str
        ``in``; ``out``; ``workspace``, with meaningless content before and after the plan; or ``semaphore``, which
        holds zeros before the first step and must hold zeros after the last one.
    fill : float, optional
        Value of every element of an ``out`` or ``workspace`` buffer before the first step of each run, such as 0, 1 or
        ``-math.inf``. On a GPU the fill is a step of the plan, and is timed. Default: uninitialised.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    fill: float | None = None


@dataclass(frozen=True)
class TiledMap:
    """A tensor map (``CUtensorMap``, tiled mode) of a buffer: the box that TMA copies to or from shared memory.

    It is the argument of a parameter ``const __grid_constant__ CUtensorMap``. Elements have the buffer's dtype, and
    boxes have element strides of 1. Loads fill elements outside the tensor with zeros; stores skip them. Each executor
    encodes the map itself, and rejects the same maps as ``cuTensorMapEncodeTiled``.

    Attributes
    ----------
    buffer : str
        Name of the buffer.
    box : tuple of int
        Size of a box in elements along each axis, in NumPy's order (the innermost last); 1 to 256.
    swizzle : str
        ``none``, ``32B``, ``64B`` or ``128B``: the largest extent of a box's innermost axis, and the permutation of its
        16-byte chunks in shared memory (PTX ISA, "Tensors: Swizzling Modes").
    shape : tuple of int, optional
        Axes of the tensor, 1 to 5, in NumPy's order; by default those of the buffer.
    strides : tuple of int, optional
        Bytes between neighbouring elements along each axis: the last is the element's size, the others are multiples of
        16. By default those of a contiguous tensor.
    """

    buffer: str
    box: tuple[int, ...]
    swizzle: str = "none"
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    ``args`` are the arguments of the entry's parameters, in order: a str is the address of that buffer; an int or float
    is passed by value in the type that the entry declares; a :class:`TiledMap` is a tensor map. A ``module`` of None
    means the kernel's own module and entry; :meth:`sdpalab.kernels.kernel.Kernel.launch_plan` fills them in.
    :func:`sdpalab.compile.completed` adds values from the compiler (Triton's shared memory and scratch
    parameters). ``entry`` names another ``__global__`` function of the kernel's own source, for plans of several
    launches. With ``programmatic`` (programmatic stream serialization, sm_90 and up) the kernel may begin during the
    previous one in the stream: it must execute ``griddepcontrol.wait`` before any access to the plan's buffers.
    """

    grid: Dim3
    block: Dim3
    args: tuple[str | int | float | TiledMap, ...]
    dynamic_smem: int = 0
    cluster: Dim3 = (1, 1, 1)
    module: Source | None = None
    entry: str = ""
    programmatic: bool = False


class MatrixShape(NamedTuple):
    """One row-major matrix in memory: ``pitch`` elements from one row to the next."""

    rows: int
    columns: int
    pitch: int

    def __str__(self) -> str:
        padded = f" in rows of {self.pitch}" if self.pitch != self.columns else ""
        return f"{self.rows} x {self.columns}{padded}"


@dataclass(frozen=True)
class Gemm:
    """A batched matrix product, C[i] = A[i] B[i] or A[i] B[i]^T, by a library: cuBLAS on a GPU, NumPy on the host.

    Products are accumulated in float32 and rounded to the dtype of C. Matrices are row-major and consecutive; the
    buffers may have any shape with the right number of elements.

    Attributes
    ----------
    a, b, c : str
        Names of buffers: A [batch, m, k], B [batch, k, n] or, if ``transpose_b``, [batch, n, k], and C [batch, m, n].
    batch, m, n, k : int
    transpose_b : bool
    lda, ldc : int
        Elements from one row of A and of C to the next, for padded rows; 0 without padding. The padding of A is not
        read, that of C is not written.
    """

    a: str
    b: str
    c: str
    batch: int
    m: int
    n: int
    k: int
    transpose_b: bool = False
    lda: int = 0
    ldc: int = 0

    @property
    def flops(self) -> int:
        """Multiplications and additions of all products."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def matrices(self) -> dict[str, MatrixShape]:
        """Layout of the matrices ``a``, ``b`` and ``c`` in their buffers."""
        b_rows, b_columns = (self.n, self.k) if self.transpose_b else (self.k, self.n)
        return {
            "a": MatrixShape(self.m, self.k, self.lda or self.k),
            "b": MatrixShape(b_rows, b_columns, b_columns),
            "c": MatrixShape(self.m, self.n, self.ldc or self.n),
        }

    def why_not(self, elements: Mapping[str, int]) -> str | None:
        """None if buffers with these numbers of ``elements``, by name, hold the matrices, otherwise the reason."""
        if self.c in (self.a, self.b):
            return f"a matrix product reads buffer {self.c} and writes it, too"
        for operand, shape in self.matrices.items():
            name = str(getattr(self, operand))
            if name not in elements:
                return f"a matrix product names buffer {name!r}; the plan has: {', '.join(elements)}"
            if min(self.batch, *shape) < 1 or shape.pitch < shape.columns:
                return f"a matrix product takes {self.batch} matrices {shape} from buffer {name}, which cannot be"
            if elements[name] != self.batch * shape.rows * shape.pitch:
                return (
                    f"a matrix product takes {self.batch} matrices {shape} from buffer {name}, which has "
                    f"{elements[name]} elements"
                )
        return None


Step: TypeAlias = Launch | Gemm
"""A step of a plan."""


@dataclass(frozen=True)
class LaunchPlan:
    """Buffers, and the steps that use them, in order. Every plan has the buffers ``q``, ``k``, ``v`` and ``o``."""

    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name; raises KeyError if there is none."""
        for buffer in self.buffers:
            if buffer.name == name:
                return buffer
        raise KeyError(name)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The steps that launch a kernel of the lab's builds."""
        return tuple(step for step in self.steps if isinstance(step, Launch))

    def without(self, name: str) -> LaunchPlan:
        """The plan without that buffer; its launches get a null pointer instead."""
        steps = tuple(
            replace(step, args=tuple(0 if arg == name else arg for arg in step.args))
            if isinstance(step, Launch)
            else step
            for step in self.steps
        )
        return LaunchPlan(tuple(buffer for buffer in self.buffers if buffer.name != name), steps)


def problem_buffers(problem: Problem, *, lse: bool = False) -> tuple[Buffer, ...]:
    """Inputs and outputs of a problem in its layout: :attr:`sdpalab.packing.Packing.inputs`, and O, or dQ, dK
    and dV; with ``lse`` also the output of that name.

    In the dense layout Q, K, V and O are contiguous [B, H, S, D or Dv], and ``lse`` is float32 [B, H, Sq]: the natural
    logarithm of the sum, over the keys that a row sees, of exp(scale * q k).
    """
    from sdpalab.packing import Packing  # imports NumPy

    packing = Packing(problem)
    outputs = {name: form for name, form in packing.outputs.items() if name != "lse" or lse}
    known = {"in": packing.inputs, "out": outputs}
    return tuple(Buffer(name, *form, role) for role, forms in known.items() for name, form in forms.items())
