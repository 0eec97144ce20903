"""Prepared launches: functions, parameters and geometry are checked against the GPU once; a launch makes only driver
calls.

A launch through ``cuda.bindings`` takes 3.1 us from Python (published). ``cuda.core`` additionally packs the arguments
and rebuilds the configuration for every launch, and has no advantage for a prepared launch.

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
    """Target architecture for a compute capability: ``sm_90a`` for (9, 0), with that chip's specific features;
    ``sm_89`` for (8, 9)."""
    major, minor = capability
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Whether a cubin for ``arch`` runs on a GPU (CUDA C++ Programming Guide, "Binary Compatibility", "Feature Sets").

    A cubin runs on later minor versions of its major version, also with suffix ``f`` (family); with ``a`` on its own
    chip only.
    """
    digits = arch.removeprefix("sm_").rstrip("af")
    major, minor = int(digits[:-1]), int(digits[-1])
    if arch.endswith("a"):
        return (major, minor) == capability
    return major == capability[0] and minor <= capability[1]


Call: TypeAlias = Callable[[], tuple[Any, ...]]
"""Function that launches work, and returns the driver's result."""


class AnyPrepared(Protocol):
    """A prepared step: a :class:`PreparedStep`, or a product."""

    @property
    def label(self) -> str:
        """Name of the launch in errors."""
        ...

    def call(self, device: GpuDevice, stream: int) -> Call:
        """Function that launches the step on a stream, given by its handle."""
        ...

    def place(self, device: GpuDevice, addresses: Mapping[str, int]) -> None:
        """Move the buffers, including those of functions that :meth:`call` has returned, to these addresses."""
        ...


@dataclass(frozen=True)
class PreparedStep:
    """One prepared launch: the function, its parameters, and grid, block, cluster, shared memory.

    ``label`` is the name of the launch in errors; ``pointers`` and ``maps`` are the offsets of buffer addresses and
    tensor maps in the parameters, by buffer name; ``programmatic`` is as in :class:`~sdpalab.kernels.plan.Launch`.
    """

    function: GpuFunction
    geometry: Geometry
    parameters: Parameters
    label: str
    pointers: tuple[tuple[str, ctypes.c_uint64], ...] = ()
    maps: tuple[tuple[str, ctypes.c_uint64], ...] = ()
    programmatic: bool = False

    def config(self, device: GpuDevice, stream: int) -> Any:
        """The ``CUlaunchConfig`` on a stream, given by its handle."""
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
        """Function that launches the step on a stream, given by its handle."""
        config = self.config(device, stream)
        return partial(device.driver.cuLaunchKernelEx, config, self.function.handle, self.parameters.address, 0)

    def place(self, device: GpuDevice, addresses: Mapping[str, int]) -> None:
        """Write the addresses into the parameters of later launches; a launch copies its parameters."""
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
        Entry of the PTX.
    target : str
        Target architecture, such as ``sm_90a``.
    step : Launch
    block : bytes
        The parameter block.
    where : str
        Name of the step in messages.

    Raises
    ------
    UserError
        If the launch is impossible.
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
    """Prepared steps, which can be launched repeatedly on their buffers.

    A launch only makes launch calls of the driver, and of cuBLAS for products, so it can be captured into a CUDA graph;
    several threads may launch concurrently. The caller keeps device pointers alive; tensors are kept alive here.
    """

    def __init__(self, device: GpuDevice, steps: Sequence[AnyPrepared], keep: object = None) -> None:
        self.device, self.steps = device, tuple(steps)
        self._keep = keep
        self._context = device.driver.cuCtxGetCurrent
        self._success = device.driver.CUresult.CUDA_SUCCESS
        self._calls: dict[int, list[Call]] = {}

    def launch(self, stream: int = 0) -> None:
        """Launch all steps in order on ``stream``, a CUstream's handle such as torch's; does not wait for their end.

        Raises
        ------
        KernelFault, MachineError
            With the step and CUDA's name of the error, which may come from an earlier launch.
        """
        # One configuration per stream, never modified: threads could otherwise change a shared configuration.
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

        Addresses are neither checked nor kept alive; semaphores must be zero. Running launches are unaffected, but no
        other thread may launch or place concurrently: each thread must prepare its own object.

        Raises
        ------
        MachineError
            If the driver rejects the new address of a tensor map.
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
    """The step's cluster; by default the cluster that the kernel was compiled for."""
    compiled = entry.directives.get("reqnctapercluster")
    if compiled is None or step.cluster != (1, 1, 1):
        return step.cluster
    x, y, z = (*compiled, 1, 1)[:3]
    return x, y, z
