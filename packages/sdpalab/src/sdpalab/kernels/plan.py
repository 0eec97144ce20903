"""The launch plan: the buffers and steps of one call of a kernel, for every executor.

A plan names its buffers and lists its steps. The same plan, on the same PTX, is run by a GPU's driver or by the
simulator; it does not depend on the executor.
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
"""The shared device headers (``.cuh``), which every kernel, a user's too, may include as ``FOLDER/NAME``."""
HEADER_FOLDERS = (INCLUDE_DIR, *sorted(path for path in INCLUDE_DIR.iterdir() if path.is_dir()))
"""Where to look for a header that PTX names without its folder. No two headers have the same name."""

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Buffer:
    """A named array in device memory.

    Attributes
    ----------
    dtype : str
        A NumPy or ml_dtypes name.
    role : str
        ``in``; ``out``; ``workspace``, whose content means nothing before and after the plan; or ``semaphore``, which
        is zeros before the first step, and which the plan must leave as zeros for its next run.
    fill : float, optional
        What every element of an ``out`` or ``workspace`` buffer is before the first step of each run, such as 0, 1 or
        ``-math.inf``. A GPU is given the fill as a step of the plan, which is timed. Default: nobody has written it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    fill: float | None = None


@dataclass(frozen=True)
class TiledMap:
    """A tensor map (``CUtensorMap``, tiled mode) of a buffer: what TMA copies between it and shared memory at a time.

    It fills a parameter ``const __grid_constant__ CUtensorMap``. Elements are of the buffer's dtype, boxes take every
    element, and what a load finds outside the tensor is zeros; a store leaves that out. Each executor encodes the map
    itself, and refuses what ``cuTensorMapEncodeTiled`` refuses.

    Attributes
    ----------
    buffer : str
        Name of the buffer.
    box : tuple of int
        Elements of a box along each axis, in NumPy's order (the innermost last); 1 to 256.
    swizzle : str
        ``none``, ``32B``, ``64B`` or ``128B``: how far a box's innermost axis may reach, and in what pattern its
        16-byte chunks are permuted in shared memory (PTX ISA, "Tensors: Swizzling Modes").
    shape : tuple of int, optional
        The tensor's axes, 1 to 5, in NumPy's order; the buffer's own by default.
    strides : tuple of int, optional
        Bytes from one element to the next along each axis, the last the element's size and the others multiples of 16;
        those of a contiguous tensor by default.
    """

    buffer: str
    box: tuple[int, ...]
    swizzle: str = "none"
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    ``args`` fill the entry's parameters in order: a str is the address of that buffer; an int or float is passed by
    value in the type that the entry declares; a :class:`TiledMap` is a tensor map. A ``module`` of None means the
    kernel's own module with its own entry, which :meth:`sdpalab.kernels.kernel.Kernel.launch_plan` fills in. Values
    that only the compiler has (Triton's shared memory and scratch parameters) are not in it:
    :meth:`sdpalab.compile.Build.completed` adds that. ``entry`` names another ``__global__`` function of the kernel's
    own source, for plans of several launches. With ``programmatic`` (programmatic stream serialization, sm_90 and up)
    the kernel may begin while the one before it in the stream runs: it has a ``griddepcontrol.wait`` before all that it
    reads or writes in the plan's buffers.
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
    """One row-major matrix in memory: ``pitch`` elements from a row to the next."""

    rows: int
    columns: int
    pitch: int

    def __str__(self) -> str:
        padded = f" in rows of {self.pitch}" if self.pitch != self.columns else ""
        return f"{self.rows} x {self.columns}{padded}"


@dataclass(frozen=True)
class Gemm:
    """A batched matrix product, C[i] = A[i] B[i] or A[i] B[i]^T, by a library: cuBLAS on a GPU, NumPy on the host.

    Products are accumulated in float32 and rounded to the dtype of C. Matrices are row-major and lie one behind the
    other, so that the buffers may have any shape with as many elements.

    Attributes
    ----------
    a, b, c : str
        Names of buffers: A [batch, m, k], B [batch, k, n] or, if ``transpose_b``, [batch, n, k], and C [batch, m, n].
    batch, m, n, k : int
    transpose_b : bool
    lda, ldc : int
        Elements from one row of A and of C to the next, where rows are padded; 0 where they are not. The padding of A
        is not read, that of C is not written.
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
        """How the matrices of ``a``, ``b`` and ``c`` lie in their buffers."""
        b_rows, b_columns = (self.n, self.k) if self.transpose_b else (self.k, self.n)
        return {
            "a": MatrixShape(self.m, self.k, self.lda or self.k),
            "b": MatrixShape(b_rows, b_columns, b_columns),
            "c": MatrixShape(self.m, self.n, self.ldc or self.n),
        }

    def reject_reason(self, elements: Mapping[str, int]) -> str | None:
        """None if the buffers, of so many ``elements`` by name, hold the matrices, otherwise why they do not."""
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
"""What a plan is made of."""


@dataclass(frozen=True)
class LaunchPlan:
    """Buffers and the steps that run on them, in order. Buffers ``q``, ``k``, ``v`` and ``o`` are always there."""

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
        """The steps that launch something which the lab builds."""
        return tuple(step for step in self.steps if isinstance(step, Launch))

    def without(self, name: str) -> LaunchPlan:
        """The plan without that buffer: its launches get a null pointer in its place."""
        steps = tuple(
            replace(step, args=tuple(0 if arg == name else arg for arg in step.args))
            if isinstance(step, Launch)
            else step
            for step in self.steps
        )
        return LaunchPlan(tuple(buffer for buffer in self.buffers if buffer.name != name), steps)


def problem_buffers(problem: Problem, *, lse: bool = False) -> tuple[Buffer, ...]:
    """Q, K, V as inputs and O as output, contiguous [B, H, S, D]; with ``lse`` the output of that name, too.

    Further inputs are those of :attr:`sdpalab.problem.Problem.array_shapes`, under their names.

    ``lse`` is float32 [B, H, Sq]: the natural logarithm of the sum, over the keys that a row sees, of
    exp(scale * q k).
    """
    known = (
        Buffer("q", problem.q_shape, problem.dtype, "in"),
        Buffer("k", problem.kv_shape, problem.dtype, "in"),
        Buffer("v", problem.kv_shape, problem.dtype, "in"),
        *(Buffer(name, shape, dtype, "in") for name, (shape, dtype) in problem.array_shapes.items()),
        Buffer("o", problem.q_shape, problem.dtype, "out"),
    )
    return (*known, Buffer("lse", problem.q_shape[:3], "float32", "out")) if lse else known
