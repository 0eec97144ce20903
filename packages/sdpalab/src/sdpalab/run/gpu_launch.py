"""Launches ready to be made: functions, parameters and geometry checked against the GPU, and the launch calls alone.

A launch through ``cuda.bindings`` takes 3.1 us from Python (published). ``cuda.core`` packs the arguments and makes the
configuration anew for every launch, on top of that, and has nothing that a prepared launch needs.

Source: CUDA Driver API, "Execution Control" (cuLaunchKernelEx); CUDA C++ Programming Guide, "Binary Compatibility".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from sdpalab.errors import UserError
from sdpalab.kernels.plan import Launch, TiledMap
from sdpalab.run.gpu_arguments import Parameters, replace_address
from sdpalab.run.gpu_driver import GpuDevice, GpuFunction
from warpsan import LaunchError
from warpsan.host import Dim3, Geometry, check_cluster, check_geometry
from warpsan.ptx import Entry

__all__ = ["AnyPrepared", "Call", "Prepared", "PreparedStep", "arch_of", "prepare_step", "runs_on"]

_PORTABLE_CLUSTER = 8
"""Blocks of a cluster that every GPU with clusters allows without an opt-in."""


def arch_of(capability: tuple[int, int]) -> str:
    """The architecture to build for: (9, 0) is ``sm_90a``, with the features of that chip alone, (8, 9) ``sm_89``."""
    major, minor = capability
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Whether a cubin for ``arch`` runs on a GPU (CUDA C++ Programming Guide, "Binary Compatibility", "Feature Sets").

    It runs on a later minor version of its major one; with ``f`` too (the family), with ``a`` on its own chip only.
    """
    digits = arch.removeprefix("sm_").rstrip("af")
    major, minor = int(digits[:-1]), int(digits[-1])
    if arch.endswith("a"):
        return (major, minor) == capability
    return major == capability[0] and minor <= capability[1]


Call: TypeAlias = Callable[[], tuple[Any, ...]]
"""Launches something, and returns the driver's result."""


class AnyPrepared(Protocol):
    """A step that is ready to launch: a :class:`PreparedStep`, or a product."""

    @property
    def label(self) -> str:
        """Says in errors what was launched."""
        ...

    def call(self, device: GpuDevice, stream: int) -> Call:
        """What launches it on a stream, by its handle."""
        ...

    def place(self, device: GpuDevice, addresses: Mapping[str, int]) -> None:
        """Change the buffers, of calls that :meth:`call` has returned too, to those at these addresses."""
        ...


@dataclass(frozen=True)
class PreparedStep:
    """One launch, ready to run: the function, its parameters, and grid, block, cluster, shared memory.

    ``label`` says in errors what was launched; ``pointers`` and ``maps`` are where the addresses of buffers lie in the
    parameters, and tensor maps of them, by the buffers' names; ``programmatic`` is as in
    :class:`~sdpalab.kernels.plan.Launch`.
    """

    function: GpuFunction
    geometry: Geometry
    parameters: Parameters
    label: str
    pointers: tuple[tuple[str, ctypes.c_uint64], ...] = ()
    maps: tuple[tuple[str, ctypes.c_uint64], ...] = ()
    programmatic: bool = False

    def config(self, device: GpuDevice, stream: int) -> Any:
        """The ``CUlaunchConfig`` on a stream, by its handle."""
        driver, geometry = device.driver, self.geometry
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = geometry.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = geometry.block
        config.sharedMemBytes = geometry.dynamic_smem
        config.hStream = driver.CUstream(stream)
        attributes = []
        if geometry.explicit_cluster:
            cluster = driver.CUlaunchAttribute()
            cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            dimension = cluster.value.clusterDim
            dimension.x, dimension.y, dimension.z = geometry.cluster
            attributes.append(cluster)
        if self.programmatic:
            overlap = driver.CUlaunchAttribute()
            overlap.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            overlap.value.programmaticStreamSerializationAllowed = 1
            attributes.append(overlap)
        if attributes:
            config.attrs = attributes
            config.numAttrs = len(attributes)
        return config

    def call(self, device: GpuDevice, stream: int) -> Call:
        """What launches it on a stream, by its handle."""
        config = self.config(device, stream)
        return partial(device.driver.cuLaunchKernelEx, config, self.function.handle, self.parameters.address, 0)

    def place(self, device: GpuDevice, addresses: Mapping[str, int]) -> None:
        """Write the addresses where the next launch reads them: a launch copies its parameters."""
        for name, pointer in self.pointers:
            pointer.value = addresses[name]
        for name, tensor_map in self.maps:
            replace_address(device, ctypes.addressof(tensor_map), addresses[name])


def prepare_step(
    device: GpuDevice, image: bytes, entry: Entry, target: str, step: Launch, block: bytes, where: str
) -> PreparedStep:
    """Load a step's module and check its launch against the limits of the GPU and the function.

    Parameters
    ----------
    device : GpuDevice
    image : bytes
        A cubin, or PTX text for the driver to assemble.
    entry : Entry
        Of the PTX.
    target : str
        Such as ``sm_90a``.
    step : Launch
    block : bytes
        The parameter block.
    where : str
        Names the step in messages.

    Raises
    ------
    UserError
        If no such launch is possible.
    MachineError
        If the driver does not load the module.
    """
    cluster = _cluster(entry, step)
    geometry = Geometry(step.grid, step.block, cluster, step.dynamic_smem, cluster != (1, 1, 1))
    label = (
        f"{where} ({entry.name}, grid {step.grid}, block {step.block}, cluster {cluster}, "
        f"{step.dynamic_smem} bytes of dynamic shared memory)"
    )
    try:
        check_geometry(geometry)
        check_cluster(geometry, target)
    except LaunchError as error:
        raise UserError(f"{label}: {error}") from None
    function = device.function(image, entry.name)
    if geometry.threads > function.max_threads:
        raise UserError(
            f"{label}: with the registers that it takes, a block has at most {function.max_threads} threads"
        )
    shared = function.static_smem + step.dynamic_smem
    if shared > device.shared_limit:
        raise UserError(
            f"{label}: needs {shared} bytes of shared memory, and a block on {device.name} has {device.shared_limit}"
        )
    device.allow_shared(function, step.dynamic_smem)
    if geometry.cluster_size > _PORTABLE_CLUSTER:
        device.allow_large_clusters(function)
    parameters = Parameters(entry, block)
    named = list(zip(step.args, entry.params, strict=True))
    pointers = [(arg, parameters.word(param.offset)) for arg, param in named if isinstance(arg, str)]
    maps = [(arg.buffer, parameters.word(param.offset)) for arg, param in named if isinstance(arg, TiledMap)]
    return PreparedStep(function, geometry, parameters, label, tuple(pointers), tuple(maps), step.programmatic)


class Prepared:
    """Steps ready to be launched, again and again, on the buffers that they were prepared with.

    A launch does nothing but the launch calls of the driver, and of cuBLAS where a step is a product, so it can be
    captured into a CUDA graph; a thread may launch while others do. The caller keeps device pointers alive; tensors are
    kept alive here.
    """

    def __init__(self, device: GpuDevice, steps: Sequence[AnyPrepared], keep: object = None) -> None:
        self.device, self.steps = device, tuple(steps)
        self._keep = keep
        self._context = device.driver.cuCtxGetCurrent
        self._success = device.driver.CUresult.CUDA_SUCCESS
        self._calls: dict[int, list[Call]] = {}

    def launch(self, stream: int = 0) -> None:
        """Launch all steps in order on ``stream``, a CUstream's handle such as torch's; does not wait for them.

        Raises
        ------
        KernelFault, MachineError
            With the step and CUDA's name for the error; one of an earlier launch may show here.
        """
        # Made once for each stream and never changed: a configuration that threads shared would be changed under them.
        calls = self._calls.get(stream) or self._on_stream(stream)
        answer = self._context()
        if answer[0] is not self._success:
            self.device.check(answer, "tell its current context")
        if int(answer[1]) != self.device.context:
            with self.device.current():
                self._launch_all(calls)
        else:
            self._launch_all(calls)

    def place(self, addresses: Mapping[str, int]) -> None:
        """Run all later launches on the buffers at these addresses, one for each buffer of the plan.

        They are neither checked nor kept alive; semaphores must hold zeros. Launches under way are not changed,
        but no other thread may launch or place at the same time: each has to prepare its own.

        Raises
        ------
        MachineError
            If the driver refuses to move a tensor map.
        """
        for step in self.steps:
            step.place(self.device, addresses)

    def _launch_all(self, calls: list[Call]) -> None:
        for number, call in enumerate(calls):
            answer = call()
            if answer[0] is not self._success:
                self.device.check(answer, f"launch {self.steps[number].label}")

    def _on_stream(self, stream: int) -> list[Call]:
        calls = [step.call(self.device, stream) for step in self.steps]
        self._calls[stream] = calls
        return calls


def _cluster(entry: Entry, step: Launch) -> Dim3:
    """The step's cluster; without one, the cluster that the kernel was compiled for."""
    compiled = entry.directives.get("reqnctapercluster")
    if compiled is None or step.cluster != (1, 1, 1):
        return step.cluster
    x, y, z = (*compiled, 1, 1)[:3]
    return x, y, z
