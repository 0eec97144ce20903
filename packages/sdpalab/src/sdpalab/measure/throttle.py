"""The GPU's clocks during a measurement, from NVML: recorded after every round; unknown without NVML."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

__all__ = [
    "REASONS",
    "SLOWDOWNS",
    "ClockState",
    "NoWatch",
    "NvmlWatch",
    "Watch",
    "reasons_in",
    "slowed_share",
    "watch_for",
]

REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (NVML API reference, nvmlClocksEventReasons)."""

SLOWDOWNS = frozenset(REASONS[bit] for bit in (0x8, 0x20, 0x40, 0x80))
"""Reasons that make a time invalid. A power cap is not among them: a 72 W card always runs at it."""


@dataclass(frozen=True)
class ClockState:
    """One reading: SM clock in MHz, temperature in degrees Celsius, power in watts, and the reasons that limit the
    clock."""

    sm_mhz: int
    temperature_c: int
    power_w: float
    reasons: tuple[str, ...]

    @property
    def slowed(self) -> bool:
        """True if the GPU was throttled."""
        return not SLOWDOWNS.isdisjoint(self.reasons)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


class Watch(Protocol):
    """Reads the clocks. ``about`` is the method or the reason for its absence; ``most_mhz`` the highest SM clock or
    None."""

    about: str
    most_mhz: float | None

    def look(self) -> ClockState | None:
        """The present state; None if unknown."""
        ...


class NoWatch:
    """A watch without data on the clocks; ``about`` has the reason."""

    most_mhz: float | None = None

    def __init__(self, about: str) -> None:
        self.about = about

    def look(self) -> ClockState | None:
        """Unknown."""
        return None


class NvmlWatch:
    """Reads the device with this UUID through ``pynvml``. Not run on a GPU yet.

    Parameters
    ----------
    pynvml : module
    uuid : str
        UUID in NVML's form, with prefix ``GPU-``: CUDA and NVML may number devices differently.
    """

    def __init__(self, pynvml: Any, uuid: str) -> None:
        self._nvml = pynvml
        pynvml.nvmlInit()
        self._device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self.about = f"NVML, driver {_text(pynvml.nvmlSystemGetDriverVersion())}"
        self.most_mhz: float | None = float(pynvml.nvmlDeviceGetMaxClockInfo(self._device, pynvml.NVML_CLOCK_SM))

    def look(self) -> ClockState | None:
        """The present state; None if the driver does not report it."""
        nvml, device = self._nvml, self._device
        try:
            return ClockState(
                sm_mhz=int(nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM)),
                temperature_c=int(nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)),
                power_w=nvml.nvmlDeviceGetPowerUsage(device) / 1e3,
                # The name before NVML 12.2, still supported, and the only one in older packages.
                reasons=reasons_in(int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device))),
            )
        except nvml.NVMLError:
            return None


def reasons_in(bits: int) -> tuple[str, ...]:
    """Names of the set bits, the lowest first; unnamed bits as numbers."""
    named = [name for bit, name in REASONS.items() if bits & bit]
    unknown = bits & ~sum(REASONS)
    return (*named, *([f"{unknown:#x}"] if unknown else []))


def watch_for(uuid: str) -> Watch:
    """A watch on the device with this UUID; without NVML a :class:`NoWatch` with the reason."""
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return NoWatch("unknown: the package nvidia-ml-py is not installed")
    try:
        return NvmlWatch(pynvml, uuid)
    except pynvml.NVMLError as error:
        return NoWatch(f"unknown: NVML says {error}")


def slowed_share(states: Iterable[ClockState | None]) -> float | None:
    """Share of the samples with a throttled GPU; None if unknown."""
    known = [state.slowed for state in states if state is not None]
    return sum(known) / len(known) if known else None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
