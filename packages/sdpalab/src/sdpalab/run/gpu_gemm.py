"""Matrix products of a plan on a GPU: the arguments of cuBLAS, its handle and its workspace.

``nvmath.bindings.cublas`` (extra ``cublas``) is called directly: it accepts raw pointers and streams, and finds the
cuBLAS of pip, torch or the CUDA toolkit.

cuBLAS is column-major, and a row-major matrix is the transpose of the column-major one in the same memory. For C = A
op(B) it therefore computes C^T = op(B)^T A^T, whose three matrices are in memory already.

Source: cuBLAS documentation, "cublasGemmStridedBatchedEx", "cublasSetStream", "cublasSetWorkspace", "cublasMath_t",
"Results Reproducibility" and "CUDA Graphs Support".
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from sdpalab.errors import MachineError, UserError
from sdpalab.kernels.plan import Buffer, Gemm
from sdpalab.run.gpu_driver import GpuDevice
from sdpalab.run.gpu_launch import Call
from sdpalab.run.gpu_memory import Scratch

__all__ = ["DATA_TYPES", "Blas", "PreparedGemm", "blas_of", "gemm_problem", "prepare_gemm", "workspace_size"]

DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
"""``cudaDataType`` (library_types.h) by a buffer's dtype: CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF."""

_OUTPUTS = {"float16": ("float16", "float32"), "bfloat16": ("bfloat16", "float32"), "float32": ("float32",)}
"""Type of C by the type of A and B, among those of cublasGemmStridedBatchedEx with CUBLAS_COMPUTE_32F."""

_ONE, _ZERO = ctypes.c_float(1.0), ctypes.c_float(0.0)
"""alpha and beta in host memory. With beta = 0 the old content of C is not read."""


def gemm_problem() -> str:
    """Reason why cuBLAS cannot be used, in one sentence; empty if its bindings are installed."""
    try:
        _binding()
    except MachineError as error:
        return str(error)
    return ""


def _binding() -> ModuleType:
    try:
        from nvmath.bindings import cublas
    except ImportError as error:
        raise MachineError(
            f"a matrix product needs cuBLAS through nvmath-python: pip install 'sdpalab[cublas]' ({error})"
        ) from None
    module: ModuleType = cublas
    return module


def workspace_size(capability: tuple[int, int]) -> int:
    """Bytes that cuBLAS recommends for its workspace: 32 MiB from Hopper on, otherwise 4 MiB."""
    return (32 if capability >= (9, 0) else 4) << 20


class Blas:
    """cuBLAS on one GPU. Thread-safe by a lock, because a handle has one stream and one workspace at a time.

    Sums are in float32, also where a product is split along k: reductions in the type of C are disabled.

    Parameters
    ----------
    device : GpuDevice
        Its context must be current here and in every call.
    binding : module
        ``nvmath.bindings.cublas``.

    Raises
    ------
    MachineError
        If cuBLAS is missing, or does not start.
    """

    def __init__(self, device: GpuDevice, binding: Any) -> None:
        self.device, self.binding = device, binding
        self._lock = threading.Lock()
        try:
            self._handle = binding.create()
            binding.set_math_mode(self._handle, int(binding.Math.DISALLOW_REDUCED_PRECISION_REDUCTION))
        except (RuntimeError, binding.cuBLASError) as error:  # RuntimeError: the binding could not open the library
            message = str(error).partition("\n")[0]
            raise MachineError(
                f"GPU {device.ordinal} cannot start cuBLAS ({message}): if there is none, pip install nvidia-cublas"
            ) from None

    def multiply(self, arguments: tuple[int, ...], stream: int, workspace: Scratch, label: str) -> None:
        """Launch a product on ``stream``; ``arguments`` are those of cublasGemmStridedBatchedEx after the handle.

        Raises
        ------
        KernelFault
            If a kernel has made the context unusable, and this call is the first to report it.
        MachineError
            For any other error, with ``label`` and cuBLAS's name of the error.
        """
        binding = self.binding
        try:
            with self._lock:
                binding.set_stream(self._handle, stream)
                # Needed after every set_stream, which selects the handle's own workspace. All streams share that one,
                # so results may differ from run to run, and each captured graph allocates it.
                binding.set_workspace(self._handle, workspace.address, workspace.size)
                binding.gemm_strided_batched_ex(self._handle, *arguments)
        except binding.cuBLASError as error:
            self.device.synchronize(f"launch {label}")
            raise MachineError(f"GPU {self.device.ordinal} cannot launch {label}: {error}") from None


@cache
def blas_of(device: GpuDevice) -> Blas:
    """cuBLAS on that GPU, whose context must be current; raises MachineError as :class:`Blas`, or without
    nvmath-python."""
    return Blas(device, _binding())


@dataclass
class PreparedGemm:
    """One prepared product. ``label`` is its name in errors."""

    blas: Blas
    gemm: Gemm
    dtypes: tuple[str, str, str]
    arguments: tuple[int, ...]
    workspace: Scratch
    label: str

    def call(self, device: GpuDevice, stream: int) -> Call:
        """Function that launches the product on a stream, given by its handle."""
        answer = (device.driver.CUresult.CUDA_SUCCESS,)

        def launch() -> tuple[Any, ...]:
            self.blas.multiply(self.arguments, stream, self.workspace, self.label)
            return answer

        return launch

    def place(self, device: GpuDevice, addresses: Mapping[str, int]) -> None:
        """Move the matrices, including those of functions that :meth:`call` has returned, to these addresses."""
        self.arguments = _arguments(self.gemm, self.dtypes, addresses, self.blas.binding)


def prepare_gemm(
    blas: Blas,
    gemm: Gemm,
    buffers: Mapping[str, Buffer],
    addresses: Mapping[str, int],
    workspace: Scratch,
    where: str,
) -> PreparedGemm:
    """Check a product, and translate it to cuBLAS's arguments.

    Parameters
    ----------
    blas : Blas
    gemm : Gemm
    buffers : mapping of str to Buffer
        Buffers of the plan, by name.
    addresses : mapping of str to int
        Device address of each buffer.
    workspace : Scratch
        Memory for cuBLAS, of :func:`workspace_size` bytes; other users must run on the same stream.
    where : str
        Name of the step in messages.

    Raises
    ------
    UserError
        If the buffers are too small for the matrices, or cuBLAS does not multiply their types.
    """
    reason = gemm.why_not({name: math.prod(buffer.shape) for name, buffer in buffers.items()})
    if reason is not None:
        raise UserError(f"{where}: {reason}")
    a, b, c = (buffers[name].dtype for name in (gemm.a, gemm.b, gemm.c))
    if a != b or c not in _OUTPUTS.get(a, ()):
        raise UserError(
            f"{where}: cuBLAS has no product of {a} and {b} into {c} with sums in float32; it has: "
            + "; ".join(f"{name} into {' or '.join(outputs)}" for name, outputs in _OUTPUTS.items())
        )
    label = f"{where}, the product {gemm.c} = {gemm.a} {gemm.b}{'^T' if gemm.transpose_b else ''}"
    arguments = _arguments(gemm, (a, b, c), addresses, blas.binding)
    return PreparedGemm(blas, gemm, (a, b, c), arguments, workspace, label)


def _arguments(gemm: Gemm, dtypes: tuple[str, str, str], addresses: Mapping[str, int], binding: Any) -> tuple[int, ...]:
    """Arguments of cublasGemmStridedBatchedEx after the handle: its A is our B, and its B our A."""
    a, b, c = (
        (addresses[name], DATA_TYPES[dtype], shape.pitch, shape.rows * shape.pitch)
        for name, dtype, shape in zip((gemm.a, gemm.b, gemm.c), dtypes, gemm.matrices.values(), strict=True)
    )
    operation = binding.Operation
    return (
        *map(int, (operation.T if gemm.transpose_b else operation.N, operation.N)),
        *(gemm.n, gemm.m, gemm.k),
        *(ctypes.addressof(_ONE), *b, *a),
        *(ctypes.addressof(_ZERO), *c),
        *(gemm.batch, int(binding.ComputeType.COMPUTE_32F), int(binding.GemmAlgo.DEFAULT)),
    )
