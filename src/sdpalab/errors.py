"""The two kinds of failure that a user gets: bad input, or a failure of the machine."""

from __future__ import annotations

__all__ = ["MachineError", "UserError"]


class UserError(ValueError):
    """Bad input or usage. The message is one sentence: what is wrong, where, and what would be right.

    The command line prints the message and exits with 2.
    """


class MachineError(RuntimeError):
    """The machine failed, not the kernel: no space, no compiler, a worker that died before it got work.

    The command line prints the message and exits with 3. A verdict records it as ``INFRA_ERROR``, never as a pass
    or a fail.
    """
