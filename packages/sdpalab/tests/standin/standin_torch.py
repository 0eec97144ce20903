"""The lab on the stand-in: torch's CPU tensors count as those of GPU 0, and a benchmark's clock is a simulated one.

torch is a CPU build here, so what :mod:`sdpalab.run.torch_gpu` queries is answered in its place.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["apply", "install"]

_CHANGED = "changed_for_the_stand_in"


def install() -> None:
    """From now on, the modules that are replaced in part are replaced as they are imported."""
    sys.meta_path.insert(0, _Finder())


def apply() -> None:
    """Replace them now: pytest imports a package that has a plugin by a finder of its own."""
    for name, change in CHANGES.items():
        module = importlib.import_module(name)
        if not hasattr(module, _CHANGED):
            change(module)
            setattr(module, _CHANGED, True)


class _Finder(MetaPathFinder):
    """Finds modules as Python does, and changes some after they have run."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        change = CHANGES.get(name)
        spec = PathFinder.find_spec(name, path) if change else None
        if spec is not None and spec.loader is not None:
            assert change is not None
            _change_after(spec.loader, change)
        return spec


def _change_after(loader: Loader, change: Callable[[ModuleType], None]) -> None:
    execute = loader.exec_module

    def changed(module: ModuleType) -> None:
        execute(module)
        change(module)
        setattr(module, _CHANGED, True)

    loader.exec_module = changed  # type: ignore[method-assign]


def _driver() -> Any:
    """The stand-in driver of this process, opened if it is not yet."""
    from sdpalab.run.gpu_driver import gpu_device

    gpu_device()
    return sys.modules["standin_driver"].DRIVER


def _torch_gpu(module: ModuleType) -> None:
    """Replies of torch on a GPU."""
    import torch

    def properties(ordinal: int) -> Any:
        gpu = _driver().gpu
        digits = gpu.uuid.hex()
        uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        return module.GpuProperties(ordinal, gpu.name, gpu.capability, gpu.sm_count, gpu.l2_bytes, f"GPU-{uuid}")

    def address(tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        _driver().memory.lend(storage.data_ptr(), storage.nbytes())
        return tensor.data_ptr()

    def synchronize(ordinal: int | None = None) -> None:
        from sdpalab.run.gpu_driver import gpu_device

        device = gpu_device()
        with device.current():
            device.synchronize("finish what came before")

    vars(module).update(
        available=lambda: True,
        current_ordinal=lambda: 0,
        device=lambda ordinal: torch.device("cpu"),
        properties=properties,
        ordinal_of=lambda tensor: 0 if tensor.device.type == "cpu" else None,
        address=address,
        stream=lambda ordinal=None: 0,
        capturing=lambda: False,
        synchronize=synchronize,
    )


def _judge_options(module: ModuleType) -> None:
    """The simulator is no GPU: a case has a minute, or ``STANDIN_CASE_SECONDS`` of the environment."""
    module.GPU_CASE_SECONDS = float(os.environ.get("STANDIN_CASE_SECONDS", "60"))  # type: ignore[attr-defined]


def _benchmark(module: ModuleType) -> None:
    """Every clock is a :class:`StandInClock`, unless ``STANDIN_CLOCK=real`` is in the environment."""
    if os.environ.get("STANDIN_CLOCK") != "real":
        module._clock = lambda kind, l2, device, copies: StandInClock(kind, l2)  # type: ignore[attr-defined]


class StandInClock:
    """Runs a call once for a sample, whose time is drawn: log-normal, 1 percent around the call's own time.

    ``STANDIN_TIMES`` in the environment, a JSON list, has these times in microseconds, in the order in which calls are
    made ready; a call that it has none for takes 20, 21, 22, ... microseconds.
    """

    calls = 100

    def __init__(self, kind: Any, l2: Any) -> None:
        self.kind, self.l2 = kind, l2
        self._times = json.loads(os.environ.get("STANDIN_TIMES", "[]"))
        self._random = np.random.default_rng(0)
        self._count = 0

    def ready(self, call: Callable[[], Any]) -> Any:
        from sdpalab.measure.clocks import Stopwatch

        number, self._count = self._count, self._count + 1
        us = self._times[number] if number < len(self._times) else 20.0 + number

        def sample() -> float:
            call()
            return float(us * np.exp(0.01 * self._random.standard_normal()))

        return Stopwatch(sample, self.calls)


CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "sdpalab.run.torch_gpu": _torch_gpu,
    "sdpalab.measure.benchmark": _benchmark,
    "sdpalab.judge.options": _judge_options,
}
