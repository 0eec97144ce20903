"""Gives recorders the accesses that native code makes (:mod:`warpsan.profile.recording`)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from warpsan.engine import layout
from warpsan.engine.arrays import Array, Indices
from warpsan.engine.context import Context
from warpsan.engine.layout import WARP
from warpsan.host.memory import RANK_SHIFT, Space
from warpsan.host.setup import Setup
from warpsan.profile.recording import AccessRecorder, SeenAccess

__all__ = ["Recorders", "recorded_pcs"]

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint32, ctypes.c_void_p)
_UNIT = 16
"""Most bytes of one access of a copy."""


def recorded_pcs(setup: Setup) -> frozenset[int]:
    """The instructions, by their pc, whose accesses a recorder collects."""
    code = setup.entry.instructions if setup.watchers else ()
    return frozenset(each.pc for each in code if any(it.watches(setup.module, each) for it in setup.watchers))


class Recorders:
    """The recorders of a launch.

    Parameters
    ----------
    setup : Setup
    space : Space
        Global memory.
    context : Context
        The context of the thread of native code.
    fail : function
        Called with an exception.

    Attributes
    ----------
    shared, line : int
        Addresses of functions that native code calls: one with a pc, a width and a mask for offsets in the context; one
        with begin, end and lane of a range of global memory (the lane plus 32: of shared memory), or with -1 and a pc
        after the last range.
    marks : ndarray of uint8
        For each instruction, whether its accesses are collected.
    """

    def __init__(self, setup: Setup, space: Space, context: Context, fail: Callable[[BaseException], None]) -> None:
        self.setup, self.space, self.context, self.fail = setup, space, context, fail
        self.marks = np.zeros(len(setup.entry.instructions), np.uint8)
        self.marks[sorted(recorded_pcs(setup))] = 1
        self._by_pc: dict[int, list[AccessRecorder]] = {}
        self._lines: list[tuple[int, int, int]] = []
        self._callbacks = _CALLBACK(self._shared), _CALLBACK(self._line)
        self.shared, self.line = (int(ctypes.cast(each, ctypes.c_void_p).value or 0) for each in self._callbacks)

    def see(self, pc: int, space: str, width: int, lanes: Sequence[int] | Indices, offset: Indices) -> None:
        """Lanes of the current warp access memory at these offsets."""
        setup, instruction = self.setup, self.setup.entry.instructions[pc]
        first = WARP * (self.context.current % setup.geometry.warps)
        seen = SeenAccess(
            *(setup.module, setup.entry.name, instruction, space, self.context.current_cta - 1),
            *(np.array(lanes) + first, offset & (1 << RANK_SHIFT) - 1 if space == "shared" else offset, width),
        )
        if pc not in self._by_pc:
            self._by_pc[pc] = [each for each in setup.watchers if each.watches(setup.module, instruction)]
        for recorder in self._by_pc[pc]:
            recorder.see(seen, setup.geometry.grid, self.space.extents)

    def places(self) -> Array:
        """The offsets in the context."""
        address = self.context.places.address
        return np.ctypeslib.as_array((ctypes.c_int64 * WARP).from_address(address))

    def _shared(self, pc: int, width: int, mask: int, context: int) -> int:
        try:
            lanes = [lane for lane in range(WARP) if mask >> lane & 1]
            self.see(pc, "shared", width, lanes, self.places()[lanes])
        except BaseException as error:
            self.fail(error)
        return layout.DONE

    def _line(self, begin: int, end: int, lane: int, context: int) -> int:
        try:
            if begin >= 0:
                self._lines.append((begin, end, lane))
            elif self._lines:
                stretches, self._lines = np.array(self._lines), []
                width = int(np.gcd.reduce(stretches[:, :2].reshape(-1), initial=_UNIT))
                units = [np.arange(first, last, width) for first, last, _ in stretches.tolist()]
                lanes = np.repeat(stretches[:, 2] % WARP, [len(each) for each in units])
                space = "shared" if stretches[0, 2] >= WARP else "global"
                self.see(end, space, width, lanes, np.concatenate(units))
        except BaseException as error:
            self.fail(error)
        return layout.DONE
