"""CUDA kernels on the CPU: warpsan executes the PTX that a driver would load, and reports the hazards.

>>> report = warpsan.launch(ptx, "saxpy", grid=4, block=256, args=[x, y, 2.0, 1024])
>>> report.hazards
[]
"""

from typing import TYPE_CHECKING

import warpsan.engine.sources as _first  # noqa: F401  (first of all imports: records the time when the import began)
from warpsan.version import __version__ as __version__

if TYPE_CHECKING:
    from warpsan.errors import Deadlock as Deadlock
    from warpsan.errors import DeviceAssertion as DeviceAssertion
    from warpsan.errors import IllegalAccess as IllegalAccess
    from warpsan.errors import KernelTrap as KernelTrap
    from warpsan.errors import LaunchError as LaunchError
    from warpsan.errors import MachineError as MachineError
    from warpsan.errors import NotAlgebraic as NotAlgebraic
    from warpsan.errors import PtxSyntaxError as PtxSyntaxError
    from warpsan.errors import SimError as SimError
    from warpsan.errors import StepLimit as StepLimit
    from warpsan.errors import UnsupportedInstruction as UnsupportedInstruction
    from warpsan.errors import UserError as UserError
    from warpsan.host.arguments import Pointer as Pointer
    from warpsan.host.arguments import Struct as Struct
    from warpsan.host.device import Device as Device
    from warpsan.host.device_array import DeviceArray as DeviceArray
    from warpsan.host.launch import Report as Report
    from warpsan.host.launch import launch as launch
    from warpsan.host.launch import prepare as prepare
    from warpsan.host.options import CHECKS as CHECKS
    from warpsan.host.options import thorough_checks as thorough_checks
    from warpsan.host.streams import Event as Event
    from warpsan.host.streams import Stream as Stream
    from warpsan.host.tensor_map import TensorMap as TensorMap
    from warpsan.host.unwritten import Unwritten as Unwritten
    from warpsan.numerics.choices import DEFAULT_NUMERICS as DEFAULT_NUMERICS
    from warpsan.numerics.choices import NUMERICS as NUMERICS
    from warpsan.report.hazards import ConflictingAccess as ConflictingAccess
    from warpsan.report.hazards import Hazard as Hazard
    from warpsan.report.hazards import Note as Note
else:
    from warpsan.exports import exports

    __getattr__, __all__ = exports(
        {
            "warpsan.errors": [
                "Deadlock",
                "DeviceAssertion",
                "IllegalAccess",
                "KernelTrap",
                "LaunchError",
                "MachineError",
                "NotAlgebraic",
                "PtxSyntaxError",
                "SimError",
                "StepLimit",
                "UnsupportedInstruction",
                "UserError",
            ],
            "warpsan.host.arguments": ["Pointer", "Struct"],
            "warpsan.host.device": ["Device"],
            "warpsan.host.device_array": ["DeviceArray"],
            "warpsan.host.launch": ["Report", "launch", "prepare"],
            "warpsan.host.options": ["CHECKS", "thorough_checks"],
            "warpsan.host.streams": ["Event", "Stream"],
            "warpsan.host.tensor_map": ["TensorMap"],
            "warpsan.host.unwritten": ["Unwritten"],
            "warpsan.numerics.choices": ["DEFAULT_NUMERICS", "NUMERICS"],
            "warpsan.report.hazards": ["ConflictingAccess", "Hazard", "Note"],
        }
    )
