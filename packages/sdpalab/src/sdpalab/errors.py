"""The two kinds of failure that users see: bad input, and a failure of the machine.

A verdict records :class:`MachineError` as ``INFRA_ERROR``, never as a pass or a fail.
"""

from warpsan.errors import MachineError, UserError

__all__ = ["MachineError", "UserError"]
