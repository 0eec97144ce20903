"""A simulator of PTX on the CPU: runs the very text that a GPU's driver would load, and says what is wrong with it.

    >>> report = sdpalab.sim.launch(ptx, "saxpy", grid=4, block=256, args=[x, y, 2.0, 1024])
    >>> report.hazards
    []

It is a library of its own: it imports nothing of the lab and knows nothing of attention.
"""

from sdpalab.sim.arguments import Pointer
from sdpalab.sim.errors import (
    Deadlock,
    DeviceAssertion,
    IllegalAccess,
    KernelTrap,
    LaunchError,
    PtxSyntaxError,
    SimError,
    StepLimit,
    UnsupportedInstruction,
)
from sdpalab.sim.hazards import Hazard
from sdpalab.sim.launch import CHECKS, Report, launch
from sdpalab.sim.party import Party
from sdpalab.sim.tensor_map import TensorMap

__all__ = [
    "CHECKS",
    "Deadlock",
    "DeviceAssertion",
    "Hazard",
    "IllegalAccess",
    "KernelTrap",
    "LaunchError",
    "Party",
    "Pointer",
    "PtxSyntaxError",
    "Report",
    "SimError",
    "StepLimit",
    "TensorMap",
    "UnsupportedInstruction",
    "launch",
]
