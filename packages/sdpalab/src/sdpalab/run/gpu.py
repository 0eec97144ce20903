"""Runs a launch plan on a GPU: the same plan as on the simulator, with the cubin of the same PTX.

>>> prepared = GpuExecutor().prepare(plan, {"q": q, "k": k, "v": v, "o": o})  # torch tensors
>>> prepared.launch(torch_gpu.stream())
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from sdpalab.compile import Build, Cache, build, completed
from sdpalab.errors import UserError
from sdpalab.inputs import dtype_of
from sdpalab.kernels.plan import Buffer, Gemm, Launch, LaunchPlan, TiledMap
from sdpalab.run import torch_gpu
from sdpalab.run.buffers import same_bytes, starting_array, tensor_map, unreleased
from sdpalab.run.gpu_arguments import encode, entry_of, parameter_bytes, tensor_map_fields
from sdpalab.run.gpu_driver import gpu_device
from sdpalab.run.gpu_fill import prepare_fill
from sdpalab.run.gpu_gemm import blas_of, prepare_gemm, workspace_size
from sdpalab.run.gpu_launch import AnyPrepared, Prepared, arch_of, prepare_step, runs_on
from sdpalab.run.gpu_memory import DeviceMemory, Image, Scratch, zero
from sdpalab.run.plan_executor import Array, RunResult
from warpsan import LaunchError

__all__ = ["GpuExecutor", "device_address"]


class GpuExecutor:
    """Executes launch plans on a GPU.

    Parameters
    ----------
    ordinal : int
        Number of the GPU in the driver's order.
    arch : str, optional
        Target architecture, whose cubins the GPU must run. Default: the GPU's own (:func:`arch_of`).
    cache : Cache, optional
        Build cache. Default: the user's.

    Raises
    ------
    MachineError
        If there is no GPU, no driver or no cuda.bindings.
    UserError
        If that GPU does not exist, or does not run cubins for ``arch``.
    """

    def __init__(self, ordinal: int = 0, arch: str | None = None, cache: Cache | None = None) -> None:
        self.gpu = gpu_device(ordinal)
        self.arch = arch or arch_of(self.gpu.capability)
        self.cache = cache or Cache()
        if not runs_on(self.arch, self.gpu.capability):
            raise UserError(
                f"{self.gpu.name} does not run code for {self.arch}: build for {arch_of(self.gpu.capability)}"
            )

    @property
    def sms(self) -> int:
        """Streaming multiprocessors of the GPU, for launch plans."""
        return self.gpu.sms

    @property
    def device(self) -> str:
        """The name of this executor in records: the GPU's name."""
        return self.gpu.name

    def run(
        self,
        plan: LaunchPlan,
        inputs: Mapping[str, Array],
        *,
        poison: int = 0xFF,
        builds: Sequence[Build] | None = None,
    ) -> RunResult:
        """Build and run all steps in order, on copies of the inputs in guarded device memory.

        Parameters
        ----------
        plan, inputs, poison, builds
            As for :meth:`sdpalab.run.SimulatedExecutor.run`.

        Returns
        -------
        RunResult
            Its hazards are writes outside the buffers, and semaphores that are not zero after the run.

        Raises
        ------
        UserError
            For wrong inputs or an impossible launch, before any launch.
        MachineError
            If there is no compiler, no memory, no cuBLAS for a product, or the driver fails.
        KernelFault
            If the GPU reports a fault of the kernel; the process cannot use the GPU afterwards.
        """
        image = Image({buffer.name: starting_array(buffer, inputs, poison) for buffer in plan.buffers})
        built = self._builds(plan, builds)
        with self.gpu.current(), DeviceMemory(self.gpu, image) as memory:
            addresses = {name: memory.address + offset for name, offset in image.offsets.items()}
            prepared = Prepared(self.gpu, self._steps(plan, addresses, built))
            prepared.launch()
            self.gpu.synchronize(f"run {'; '.join(step.label for step in prepared.steps)}")
            after = memory.read()
        arrays = {buffer.name: image.array(buffer.name, after) for buffer in plan.buffers}
        return RunResult(
            outputs={buffer.name: arrays[buffer.name] for buffer in plan.buffers if buffer.role == "out"},
            device=self.device,
            ptx_sha256=tuple(each.ptx_sha256 for each in built),
            hazards=(*image.damage(after), *unreleased(plan.buffers, arrays)),
            changed_inputs=tuple(
                buffer.name
                for buffer in plan.buffers
                if buffer.role == "in" and not same_bytes(arrays[buffer.name], inputs[buffer.name])
            ),
        )

    def prepare(
        self, plan: LaunchPlan, buffers: Mapping[str, Any], *, builds: Sequence[Build] | None = None
    ) -> Prepared:
        """Prepare the plan for launches on buffers that are already on the GPU, without copies.

        Semaphores are set to zero once, here; every run must leave them zero, which is not checked.

        Parameters
        ----------
        plan : LaunchPlan
        buffers : mapping of str to torch.Tensor or int
            One entry for each buffer of the plan, including workspace: a contiguous tensor of the buffer's shape and
            dtype on this GPU, or a device pointer, which is not checked.
        builds : sequence of Build, optional
            One for each launch. Default: each launch's module is built here.

        Raises
        ------
        UserError
            For a missing or unsuitable buffer, or an impossible launch.
        MachineError
            If there is no compiler, no cuBLAS for a product, or the driver fails.
        """
        missing = [buffer.name for buffer in plan.buffers if buffer.name not in buffers]
        if missing:
            raise UserError(f"no tensor for buffer {missing[0]}; there are: {', '.join(buffers) or 'none'}")
        addresses = {
            buffer.name: device_address(buffer, buffers[buffer.name], self.gpu.ordinal) for buffer in plan.buffers
        }
        built = self._builds(plan, builds)
        with self.gpu.current():
            semaphores = [buffer for buffer in plan.buffers if buffer.role == "semaphore"]
            zero(
                self.gpu,
                {f"semaphore {each.name}": (addresses[each.name], _bytes(each)) for each in semaphores},
            )
            return Prepared(self.gpu, self._steps(plan, addresses, built), keep=dict(buffers))

    def _builds(self, plan: LaunchPlan, given: Sequence[Build] | None) -> tuple[Build, ...]:
        if given is None:
            numbered = enumerate(plan.steps, 1)
            return tuple(self._build(step, number) for number, step in numbered if isinstance(step, Launch))
        if len(given) != len(plan.launches):
            raise UserError(f"the plan has {len(plan.launches)} launches, and {len(given)} builds are given for them")
        for each in given:
            if not runs_on(each.arch, self.gpu.capability):
                raise UserError(f"{each.name} is built for {each.arch}, which {self.gpu.name} does not run")
        return tuple(given)

    def _build(self, step: Launch, number: int) -> Build:
        if step.module is None:
            raise UserError(f"step {number} of the plan has no module: make the plan with launch_plan of a kernel")
        return build(step.module, self.arch, cache=self.cache)

    def _steps(self, plan: LaunchPlan, addresses: Mapping[str, int], builds: Sequence[Build]) -> list[AnyPrepared]:
        def encoded(where: str, tiled: TiledMap) -> bytes:
            buffer = plan.buffer(tiled.buffer)
            # This memory is never accessed: the map's checks need an array.
            array = np.empty(buffer.shape, dtype_of(buffer.dtype))
            try:
                fields = tensor_map_fields(tensor_map(tiled, array, where), addresses[tiled.buffer])
            except LaunchError as error:
                raise UserError(str(error)) from None
            return encode(self.gpu, fields)

        steps: list[AnyPrepared] = [
            prepare_fill(buffer, addresses[buffer.name]) for buffer in plan.buffers if buffer.fill is not None
        ]
        remaining, buffers = iter(builds), {buffer.name: buffer for buffer in plan.buffers}
        scratch: Scratch | None = None
        for number, step in enumerate(plan.steps, 1):
            if isinstance(step, Gemm):
                blas = blas_of(self.gpu)
                # Shared by all products of a plan, which run one after the other.
                scratch = scratch or Scratch(self.gpu, workspace_size(self.gpu.capability))
                steps.append(prepare_gemm(blas, step, buffers, addresses, scratch, f"step {number} of the plan"))
                continue
            built = next(remaining)
            knobs = " ".join(option.removeprefix("-D") for option in built.command if option.startswith("-D"))
            where = f"step {number} of the plan, {built.name}" + (f" with {knobs}" if knobs else "")
            entry = entry_of(built.ptx, built.entry)
            full = completed(step, built)
            block = parameter_bytes(entry, full, addresses, partial(encoded, where), where)
            steps.append(prepare_step(self.gpu, built.cubin, entry, built.arch, full, block, where))
        return steps


def _bytes(buffer: Buffer) -> int:
    return math.prod(buffer.shape) * dtype_of(buffer.dtype).itemsize


def device_address(buffer: Buffer, value: Any, ordinal: int) -> int:
    """Address of a buffer on GPU ``ordinal``: of a tensor that matches the plan, or ``value`` itself.

    Raises
    ------
    UserError
        If a tensor has another dtype or shape, is not contiguous, is not on that GPU, or is not aligned to 16 bytes.
    """
    if isinstance(value, int):
        return value
    name = f"tensor {buffer.name}"
    if not hasattr(value, "data_ptr"):
        raise UserError(f"{name} must be a torch tensor or a device pointer, not a {type(value).__name__}")
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype != buffer.dtype or tuple(value.shape) != tuple(buffer.shape):
        raise UserError(f"{name} must be {buffer.dtype} {tuple(buffer.shape)}, not {dtype} {tuple(value.shape)}")
    if torch_gpu.ordinal_of(value) != ordinal:
        raise UserError(f"{name} must be on cuda:{ordinal}, not on {value.device}")
    if not value.is_contiguous():
        raise UserError(f"{name} must be contiguous, and its strides are {tuple(value.stride())}: pass .contiguous()")
    address = torch_gpu.address(value)
    if address % 16:
        raise UserError(f"{name} must begin at a multiple of 16 bytes, not at {address:#x}")
    return address
