"""The two kinds of failure that a user gets: bad input, or a failure of the machine.

A verdict records a :class:`MachineError` as ``INFRA_ERROR``, never as a pass or a fail.
"""

from warpsan.errors import MachineError, UserError

__all__ = ["MachineError", "UserError"]
