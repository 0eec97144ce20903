"""Footprints: what may be put together, byte by byte, and what may not."""

import numpy as np
import pytest

from sdpalab.sim.footprint import PLANES, Footprint, put_together
from sdpalab.sim.ir import Instruction
from sdpalab.sim.memory import Space
from sdpalab.sim.observer import Access

SIZE = 64
INSTRUCTION = Instruction(0, "st", ("global",), (), None, 1, None)


class Process:
    """A copy of global memory, and the footprint of what is done to it."""

    def __init__(self):
        self.planes = np.zeros((PLANES, SIZE), np.uint8)
        self.footprint = Footprint(self.planes)
        self.space = Space("global", SIZE, SIZE, data=np.arange(SIZE, dtype=np.uint8))

    def access(self, at, width):
        index = np.atleast_1d(np.asarray(at, dtype=np.int64))
        return Access(self.space, index, index, width, np.arange(len(index)), INSTRUCTION)

    def read(self, at, width=4):
        self.footprint.load(self.access(at, width))

    def write(self, at, value, width=4):
        access = self.access(at, width)
        words = np.full((len(access.index), width), value, np.uint8).view(f"V{width}")[:, 0]
        words = words.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[width])
        self.footprint.store(access, words)
        self.space.store(access.index, width, words)


def together(*deeds):
    """What comes out of a process for each function that does something to one; None if they depend on each other."""
    planes = []
    for deed in deeds:
        process = Process()
        deed(process)
        process.footprint.close(process.space)
        planes.append(process.planes)
    return put_together(np.array(planes))


def test_what_each_wrote_and_nothing_else():
    def first(p):
        p.read(32)
        p.write([0, 8], 7)

    def second(p):
        p.read(32)
        p.write([4, 12], 9, 2)

    after, written = together(first, second)
    assert np.flatnonzero(written).tolist() == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13]
    assert after[written].tolist() == [7] * 4 + [9] * 2 + [7] * 4 + [9] * 2


@pytest.mark.parametrize(
    ("one", "other", "independent"),
    [
        (lambda p: p.read(8), lambda p: p.read(8), True),
        (lambda p: p.read(8), lambda p: p.write(8, 1), False),
        (lambda p: p.read(4), lambda p: p.write(8, 1), True),
        (lambda p: p.read(8, 3), lambda p: p.write(10, 1, 1), False),
        (lambda p: p.read(8, 3), lambda p: p.write(11, 1, 1), True),
        (lambda p: p.read(8, 6), lambda p: p.write(13, 1, 1), False),
        (lambda p: p.write(8, 1), lambda p: p.write(8, 1), True),
        (lambda p: p.write(8, 1), lambda p: p.write(8, 2), False),
        (lambda p: p.write(8, 1), lambda p: p.write(10, 2, 2), False),
        (lambda p: p.write(8, 1), lambda p: p.write(10, 1, 2), True),
        (lambda p: p.write(8, 1), lambda p: (p.write(8, 1), p.write(8, 1)), True),
        (lambda p: p.write(8, 1), lambda p: (p.write(8, 2), p.write(8, 1)), False),
        (lambda p: p.write(8, 1), lambda p: (p.write(8, 1), p.write(8, 2), p.write(8, 1)), False),
        (lambda p: p.write(12, 1), lambda p: (p.write(8, 2), p.write(8, 1, 8)), False),  # by access, not by byte
        (lambda p: p.write(4, 1), lambda p: (p.write(8, 2), p.write(8, 1)), True),
        (lambda p: p.read(8), lambda p: p.footprint.atomic(p.access(8, 4)), False),
        (lambda p: p.write(8, 8), lambda p: p.footprint.atomic(p.access(8, 4)), False),
        (lambda p: p.read(8), lambda p: p.footprint.issue(p.access(8, 16), writes=True), False),
        (lambda p: p.write(8, 1), lambda p: p.footprint.issue(p.access(0, 16), writes=False), False),
    ],
)
def test_two_processes_depend_on_each_other_or_not(one, other, independent):
    assert (together(one, other) is not None) == independent
    assert (together(other, one) is not None) == independent


def test_the_third_process_is_compared_with_both_others():
    def quiet(p):
        p.read(0)

    assert together(lambda p: p.write(8, 1), quiet, lambda p: p.read(8)) is None
    assert together(quiet, lambda p: p.read(8), lambda p: p.write(8, 1)) is None
    assert together(quiet, lambda p: p.write(8, 1), lambda p: p.write(8, 2)) is None
    assert together(lambda p: p.write(8, 1), quiet, lambda p: p.write(8, 1)) is not None
    twice = together(lambda p: p.write(8, 1), lambda p: p.write(8, 1), lambda p: (p.write(8, 2), p.write(8, 1)))
    assert twice is None


def test_shared_memory_leaves_no_footprint():
    process = Process()
    process.space.name = "shared"
    process.read(0)
    process.write(8, 1)
    assert not process.planes.any()
