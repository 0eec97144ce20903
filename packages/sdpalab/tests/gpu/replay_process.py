"""The process that repeats launches on a GPU: what a launch breaks there is this process, not the tests'.

The driver's JIT assembles the PTX: it gets the text that the simulator ran.
"""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from golden import Job
from sdpalab.errors import MachineError
from sdpalab.kernels.plan import Launch
from sdpalab.run.gpu_arguments import encode, entry_of, tensor_map_fields
from sdpalab.run.gpu_driver import GpuDevice, gpu_device
from sdpalab.run.gpu_launch import Prepared, prepare_step
from sdpalab.run.gpu_memory import DeviceMemory, Image
from warpsan import Pointer, TensorMap
from warpsan.host.arena import Arena
from warpsan.host.arguments import parameter_block
from warpsan.ptx.parser import parse

__all__ = ["GpuProcess", "repeat"]

_START_SECONDS = 120.0


class GpuProcess:
    """Repeats launches on GPU 0, in a process that is started anew after a fault or a hang.

    Raises
    ------
    MachineError
        If there is no GPU, or the process does not start.
    """

    def __init__(self) -> None:
        self._process: Any = None
        self._wire: Any = None
        self.about: dict[str, Any] = self._start()
        """The GPU, its compute capability, the CUDA version of its driver, and who assembles the PTX."""

    def run(self, job: Job, seconds: float = 20.0) -> tuple[list[np.ndarray] | None, str | None]:
        """The arrays after the launch; or None, and why."""
        if self._process is None:
            self._start()
        try:
            self._wire.send(job)
            answer = self._wire.recv() if self._wire.poll(seconds) else (None, f"no end within {seconds:g} s", True)
        except (EOFError, OSError):
            answer = (None, "the process died", True)
        arrays, error, broken = answer
        if broken:
            self.close()
        return arrays, error

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._wire.close()
            self._process = None

    def _start(self) -> dict[str, Any]:
        context = multiprocessing.get_context("spawn")
        self._wire, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()
        try:
            about = self._wire.recv() if self._wire.poll(_START_SECONDS) else {"problem": "it took too long"}
        except (EOFError, OSError):
            about = {"problem": "it died"}
        if "problem" in about:
            self.close()
            raise MachineError(f"the process that uses the GPU did not start: {about['problem']}")
        return dict(about)


def _serve(wire: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the tests; they end this process
    try:
        device = gpu_device()
    except MachineError as error:
        wire.send({"problem": str(error)})
        return
    version = device.check(device.driver.cuDriverGetVersion(), "tell its driver's version")
    capability = ".".join(map(str, device.capability))
    wire.send(
        {
            "gpu": device.name,
            "capability": capability,
            "driver_cuda": version,
            "assembler": "the driver's JIT, from PTX",
        }
    )
    while True:
        try:
            job = wire.recv()
        except EOFError:
            return
        try:
            arrays, damage = repeat(device, job)
            wire.send((arrays, "; ".join(damage) or None, False))
        except Exception as error:  # the next launch must not suffer from what this one was
            wire.send((None, f"{type(error).__name__}: {error}", bool(device.lost)))


def repeat(device: GpuDevice, job: Job) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """The arrays after the launch, and what was written outside them."""
    args, arrays = job.arguments()
    names = [str(index) for index in range(len(arrays))]
    image = Image(dict(zip(names, arrays, strict=True)))
    entry, target = entry_of(job.ptx, job.entry), parse(job.ptx).target
    with device.current(), DeviceMemory(device, image) as memory:
        values: list[Any] = []
        named: list[Any] = []
        for described, value in zip(job.args, args, strict=True):
            named.append(0)  # what is no buffer is in the parameter block, and nowhere else
            if "array" not in described:
                values.append(value)
                continue
            name = str(described["array"])
            address = memory.address + image.offsets[name]
            if isinstance(value, TensorMap):
                values.append(encode(device, tensor_map_fields(value, address + value.offset)))
            elif isinstance(value, Pointer):
                values.append(address + value.offset)
            else:
                values.append(address)
                named[-1] = name
        step = Launch(job.grid, job.block, tuple(named), job.dynamic_smem, job.cluster)
        block = parameter_block(entry, values, Arena())
        prepared = Prepared(device, [prepare_step(device, job.ptx.encode(), entry, target, step, block, "the launch")])
        prepared.launch()
        device.synchronize("run the launch")
        after = memory.read()
    return [image.array(name, after) for name in names], image.damage(after)
