"""Cold inputs: bytes to overwrite, and number of copies to rotate, such that L2 does not hold the next call's inputs.

No single method suits every clock. Between single calls, a buffer of several times L2 is overwritten (as in nvbench).
Within a graph that would be timed, too; instead, each call uses another copy of the inputs. The number of copies is
such that a copy has left L2 before its next use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["L2Flush", "copies_beyond_l2", "flush_bytes"]

_TIMES_L2 = 2
"""Bytes between two uses of the same line, in sizes of L2. L2 replacement is not strictly oldest first, and on large
chips each half keeps lines of the other."""


def flush_bytes(l2_bytes: int) -> int:
    """Size of the buffer to overwrite, from the size of L2.

    Raises
    ------
    ValueError
        If the device does not report its L2 size.
    """
    if l2_bytes < 1:
        raise ValueError(f"the device says that its L2 has {l2_bytes} bytes, so no flush can be sized")
    return _TIMES_L2 * l2_bytes


def copies_beyond_l2(input_bytes: int, l2_bytes: int) -> int:
    """Number of input copies such that between two uses of one the others fill L2 :data:`_TIMES_L2` times.

    Parameters
    ----------
    input_bytes : int
        Bytes of Q, K, V and the further inputs together.
    l2_bytes : int
        Size of L2 reported by the device.
    """
    return 1 + -(-flush_bytes(l2_bytes) // input_bytes)


class L2Flush:
    """Overwrites a buffer larger than L2, on torch's current stream, without waiting.

    Parameters
    ----------
    device : torch.device
        CUDA device; its properties contain the size of L2.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        size = flush_bytes(int(torch.cuda.get_device_properties(device).L2_cache_size))
        self._buffer = torch.empty(size, dtype=torch.uint8, device=device)

    def __call__(self, passes: int) -> None:
        """Overwrite the buffer ``passes`` times: one empties L2, more keep the GPU busy while the host continues."""
        for number in range(passes):
            self._buffer.fill_(number & 0xFF)
