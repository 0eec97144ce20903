"""Triton backend for the simulator: functions under ``@triton.jit`` run on the memory of torch tensors.

A Triton backend (``triton.backends``) has a compiler and a driver for one kind of GPU. :func:`install` replaces
NVIDIA's backend in the process of a Python program (:mod:`warpsan.program.python_host`). The compiler stops after PTX,
which the simulator executes. Autotuning selects the first configuration, because no times exist.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
import triton
from triton.backends import Backend, backends
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.driver import driver as runtime

from warpsan import Device, DeviceArray, LaunchError, SimError, TensorMap
from warpsan.program.kernel_launches import KernelLaunches
from warpsan.program.options import RunOptions
from warpsan.program.properties import device_properties
from warpsan.report.groups import ENDINGS, SanitizedHazard, ending

__all__ = ["install"]

_SWIZZLES = ("none", "32B", "64B", "128B")
"""Swizzles by CUtensorMapSwizzle (CUDA Driver API, "Tensor Map Object Management")."""
_FLOATS = {torch.float16: np.float16, torch.bfloat16: ml_dtypes.bfloat16, torch.float32: np.float32}
"""Element types of tensor maps that support a NaN fill."""
_SPARE = 1 << 20
"""Extra bytes of device memory for alignment and for the variables of a module."""


@dataclass(frozen=True)
class _LoadedKernel:
    """A kernel loaded by the driver; Triton's handle of a function."""

    name: str
    ptx: str
    dynamic_smem: int

    @property
    def parameters(self) -> int:
        entry = re.search(rf"\.entry\s+{re.escape(self.name)}\s*\(([^)]*)\)", self.ptx)
        return entry[1].count(".param") if entry else 0

    @property
    def threads(self) -> int:
        """Threads per block; more than 32 per requested warp with warp specialization."""
        return int(re.findall(r"^\s*\.reqntid\s+(\d+)", self.ptx, re.MULTILINE)[0])


class _PtxBackend(CUDABackend):  # type: ignore[misc]
    """Triton's compiler for NVIDIA GPUs, without the assembler."""

    def __init__(self, target: GPUTarget) -> None:
        super().__init__(target)
        self.binary_ext = "ptx"

    def add_stages(self, stages: dict[str, Any], *args: Any) -> None:
        super().add_stages(stages, *args)
        del stages["cubin"]

    def hash(self) -> str:
        """Separate key in Triton's cache for kernels compiled for the simulator."""
        return f"warpsan-{self.target.arch}"


class _Utils:
    """Functions of a Triton driver that describe the GPU and load kernels."""

    def __init__(self, options: RunOptions) -> None:
        assert options.gpu is not None
        facts = device_properties(options.gpu, options.arch, options.memory)
        self._facts = {
            "max_shared_mem": facts["sharedMemPerBlockOptin"],
            "max_num_regs": facts["regsPerBlock"],
            "multiprocessor_count": facts["multiProcessorCount"],
            "warpSize": facts["warpSize"],
            "sm_clock_rate": facts["clockRate"],
            "mem_clock_rate": facts["clockRate"],
            "mem_bus_width": 1024,
        }

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Properties of the simulated GPU."""
        return self._facts

    def load_binary(
        self, name: str, kernel: bytes, shared: int, device: int
    ) -> tuple[_LoadedKernel, _LoadedKernel, int, int, int]:
        """Module, function, registers, spills (0 without an assembler) and maximum threads per block."""
        loaded = _LoadedKernel(name, kernel.decode(), shared)
        return loaded, loaded, 0, 0, 1024

    def unload_module(self, module: _LoadedKernel) -> None:
        """No operation: nothing to free."""


class _Driver(DriverBase):  # type: ignore[misc]
    """Triton driver for the simulator: one device, one stream, tensors in the memory of this process."""

    def __init__(self, run: KernelLaunches) -> None:
        self.utils = _Utils(run.options)
        self._arch = int("".join(filter(str.isdigit, run.options.arch)))
        self.launcher_cls: Callable[[Any, Any], _Launcher] = lambda source, metadata: _Launcher(run, source, metadata)

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._arch, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_benchmarker(self) -> Callable[..., Sequence[float]]:
        """Benchmarker with equal times for all configurations and no runs: the first one is selected."""
        return lambda call, quantiles=(0.5,), **options: [1.0] * len(quantiles)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        """No operation: there is one device."""

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return divmod(self._arch, 10)


class _Tensors:
    """Storages of a launch's tensors on a device, each as a whole."""

    def __init__(self, values: Sequence[Any], scratch: int, fill: str) -> None:
        tensors = [tensor for value in values if (tensor := _tensor_of(value)) is not None]
        sizes = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        self.device = Device(sum(size + 256 for size in sizes.values()) + scratch + _SPARE, fill=fill)
        self._copies: dict[int, tuple[Any, DeviceArray]] = {}
        self._element_bytes: dict[int, int] = {}

    def of(self, tensor: torch.Tensor, name: str) -> DeviceArray | None:
        """Bytes of a tensor from its first element on; a null pointer for an empty tensor."""
        storage = tensor.untyped_storage()
        if not storage.nbytes():
            return None
        if storage.data_ptr() not in self._copies:
            host = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            self._element_bytes[storage.data_ptr()] = tensor.element_size()
            self._copies[storage.data_ptr()] = host, self.device.array(host, name=name)
        _, copy = self._copies[storage.data_ptr()]
        return copy[tensor.storage_offset() * tensor.element_size() :].view(DeviceArray)

    def bring_back(self) -> dict[int, Any]:
        """Copy the results of the kernel to the tensors; return a mask of the changed bytes by address, which has whole
        elements."""
        changed = {}
        for address, (host, copy) in self._copies.items():
            size = self._element_bytes[address]
            whole = len(host) // size * size
            mask = np.asarray(host != copy)
            mask[:whole] = np.repeat(mask[:whole].reshape(-1, size).any(axis=1), size)
            changed[address] = mask
            host[...] = copy
        return changed


class _Launcher:
    """Launcher of one compiled kernel."""

    def __init__(self, run: KernelLaunches, source: Any, metadata: Any) -> None:
        self._run, self._metadata = run, metadata
        self._signature = dict(source.signature)
        self._folder = Path(source.fn.fn.__code__.co_filename).parent

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,
        function: _LoadedKernel,
        packed_metadata: Any,
        launch_metadata: Any,
        enter_hook: Any,
        exit_hook: Any,
        *values: Any,
    ) -> None:
        run, metadata, blocks = self._run, self._metadata, grid_x * grid_y * grid_z
        if not blocks:
            return
        scratch_of = (getattr(metadata, f"{kind}_scratch_size", 0) for kind in ("global", "profile"))
        sizes = [size * blocks * metadata.num_ctas for size in scratch_of]
        tensors = _Tensors(list(_flat(values)), sum(sizes), run.options.fill)
        args = list(self._arguments(values, tensors))
        scratch = [tensors.device.empty(size, np.uint8, name="scratch memory") if size else None for size in sizes]
        args += scratch[: function.parameters - len(args)]
        run.launches += 1
        label, ptx = f"operation {run.launches} ({function.name} at {_call_site()})", f"{function.name}.ptx"
        run.texts[ptx] = function.ptx
        run.folders[self._folder] = None
        try:
            report = tensors.device.module(function.ptx)[function.name].launch(
                (grid_x * metadata.num_ctas, grid_y, grid_z),
                (function.threads, 1, 1),
                args,
                dynamic_smem=function.dynamic_smem,
                cluster=(metadata.num_ctas, 1, 1),
                cooperative=metadata.launch_cooperative_grid,
                **run.options.of_launch,
            )
        except LaunchError:
            raise
        except tuple(ENDINGS) as error:
            run.hazards += [SanitizedHazard.of(hazard, ptx, label) for hazard in error.hazards]
            run.hazards.append(ending(error, ptx, label))
            raise
        except SimError as error:
            run.fatal = run.fatal or f"{label}: {error}"
            raise
        changed = tensors.bring_back()
        if run.observe is not None:
            run.observe(function.name, function.ptx, changed, report)
        sys.stdout.write("".join(report.printed))
        run.hazards += [SanitizedHazard.of(hazard, ptx, label) for hazard in report.hazards]

    def _arguments(self, values: Sequence[Any], tensors: _Tensors) -> Iterator[Any]:
        """Arguments of the kernel in the PTX, in order."""
        maps = iter(getattr(self._metadata, "tensordesc_meta", None) or ())
        for (name, kind), value in zip(self._signature.items(), values, strict=True):
            if isinstance(kind, str) and kind.startswith("tensordesc"):
                yield from _descriptor(value, next(maps, None), tensors, name)
            else:
                yield from _plain(kind, value, tensors, name)


def _plain(kind: Any, value: Any, tensors: _Tensors, name: str) -> Iterator[Any]:
    """An argument, or the items of a tuple; nothing for a compiler constant."""
    if isinstance(kind, tuple):
        for each, part in zip(kind, value, strict=True):
            yield from _plain(each, part, tensors, name)
    elif kind != "constexpr":
        tensor = _tensor_of(value)
        yield value if tensor is None else tensors.of(tensor, name)


def _descriptor(value: Any, facts: Any, tensors: _Tensors, name: str) -> Iterator[Any]:
    """A ``TensorDescriptor``: its tensor map, or its pointer with shape and strides; then shape and strides."""
    base = tensors.of(value.base, name)
    if facts is None:
        yield from (base, *value.shape, *value.strides, value.padding == "nan")
        if hasattr(value, "round_f32_to_tf32"):
            yield value.round_f32_to_tf32
    else:
        if getattr(facts, "fp4_padded", False) or base is None:
            raise LaunchError(f"{name}: a descriptor of packed 4-bit elements, or of no elements, is not modelled")
        size = facts["elem_size"]
        yield TensorMap(
            base[: len(base) // size * size].view(_FLOATS.get(value.base.dtype, f"u{size}")),
            facts["block_size"],
            _SWIZZLES[facts["swizzle"]],
            shape=value.shape,
            strides=[stride * size for stride in value.strides],
            oob_fill="nan" if value.padding == "nan" else "zero",
        )
    yield from (*value.shape, *value.strides)


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


def _tensor_of(value: Any) -> torch.Tensor | None:
    """The tensor of an argument or wrapper (``TensorWrapper``, ``TensorDescriptor``)."""
    base = getattr(value, "base", value)
    return base if isinstance(base, torch.Tensor) else None


def _call_site() -> str:
    """``file:line`` of the launch in the program: the innermost call outside Triton and this file."""
    frame = sys._getframe(1)
    own = (str(Path(triton.__file__).parent), __file__)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def install(run: KernelLaunches) -> None:
    """Replace the GPU by the simulator for all Triton kernels in this process.

    Parameters
    ----------
    run : KernelLaunches
        Collects the launches; its options select the GPU and its architecture.
    """
    driver = _Driver(run)
    backends["nvidia"] = Backend(compiler=_PtxBackend, driver=_Driver)
    runtime.set_active(driver)
