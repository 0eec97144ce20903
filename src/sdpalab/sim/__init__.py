"""A simulator of PTX on the CPU: executes the PTX that a GPU's driver would load, and reports its hazards.

    >>> report = sdpalab.sim.launch(ptx, "saxpy", grid=4, block=256, args=[x, y, 2.0, 1024])
    >>> report.hazards
    []

It is a library of its own: it imports nothing of the lab and is independent of attention.
"""

import sdpalab.sim.sources as _first  # noqa: F401  (before all others, so that it sees every later edit)
from sdpalab.sim.arguments import Pointer, Struct
from sdpalab.sim.device import Device
from sdpalab.sim.device_array import DeviceArray
from sdpalab.sim.errors import (
    Deadlock,
    DeviceAssertion,
    IllegalAccess,
    KernelTrap,
    LaunchError,
    NotAlgebraic,
    PtxSyntaxError,
    SimError,
    StepLimit,
    UnsupportedInstruction,
)
from sdpalab.sim.hazards import ConflictingAccess, Hazard, Note
from sdpalab.sim.launch import Report, launch, prepare
from sdpalab.sim.numerics import DEFAULT_NUMERICS, NUMERICS
from sdpalab.sim.options import CHECKS, thorough_checks
from sdpalab.sim.streams import Event, Stream
from sdpalab.sim.tensor_map import TensorMap
from sdpalab.sim.unwritten import Unwritten

__all__ = [
    "CHECKS",
    "DEFAULT_NUMERICS",
    "NUMERICS",
    "ConflictingAccess",
    "Deadlock",
    "Device",
    "DeviceArray",
    "DeviceAssertion",
    "Event",
    "Hazard",
    "IllegalAccess",
    "KernelTrap",
    "LaunchError",
    "NotAlgebraic",
    "Note",
    "Pointer",
    "PtxSyntaxError",
    "Report",
    "SimError",
    "StepLimit",
    "Stream",
    "Struct",
    "TensorMap",
    "UnsupportedInstruction",
    "Unwritten",
    "launch",
    "prepare",
    "thorough_checks",
]
