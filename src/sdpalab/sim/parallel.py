"""Chunks of CTAs over the CPUs, with the report that one process would give.

Worker processes are forks. Each has a copy of global memory as it was when the chunks were handed out, takes the next
chunk whenever it has run one, and keeps a footprint of what it reads and writes. If no chunk showed anything that a
check reports, nothing went wrong, and the footprints prove that no worker depended on the others, their memories
and counts are put together. Otherwise they are thrown away: this process, in which nothing has changed, then runs the
chunks one after the other, and what it finds or raises is what the launch does. So a kernel with a race costs more time
than with one worker, and gets the same report. Kernels whose blocks talk to each other are not handed out at all.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from sdpalab.sim.checks.orders import is_communication
from sdpalab.sim.setup import Chunks
from sdpalab.sim.errors import SimError
from sdpalab.sim.footprint import PLANES, Footprint, GivenUp, put_together
from sdpalab.sim.hazard_log import HazardLog
from sdpalab.sim.ir import Instruction
from sdpalab.sim.linking import callee
from sdpalab.sim.selection import Array
from sdpalab.sim.tally import Tally

__all__ = ["communicates", "run_chunks"]

_MOST_WORKERS = 16
_WORTH = 0.3
"""Seconds of work for which workers pay by themselves: starting them and putting together takes a tenth of that."""
_RATE, _TURNS = 1.5e8, 8
"""Lane instructions a second, and turns of a loop, about."""
_POLL = 0.002
_DONE, _DIED, _GAVE_UP = 0, 1, 3
_MOST_TURNS = 256
_PR_SET_PDEATHSIG = 1


def run_chunks(chunks: Chunks, workers: int | None, affordable: int) -> None:
    """Run all chunks of a launch.

    Parameters
    ----------
    chunks : Chunks
    workers : int, optional
        Processes that may share them. Default: one for each CPU, if what is left to do is worth it: by a guess before
        the first chunk, then by how long the chunks so far took.
    affordable : int
        Processes for which there is memory.

    Raises
    ------
    SimError
        Whatever running a chunk raises; or that a worker died.
    """
    total, done, begun = len(chunks.setup.chunks), 0, time.perf_counter()
    most = min(_cpus() if workers is None else workers, affordable, _MOST_WORKERS)
    if most > 1 and (not _can_fork() or chunks.weak or any(map(communicates, chunks.setup.entry.instructions))):
        most = 1
    while done < total:
        left = total - done
        if min(most, left) > 1 and not chunks.log.hazards():
            seconds = (time.perf_counter() - begun) / done if done else _guess(chunks)
            if workers is not None or seconds * left > _WORTH:
                if _shared_out(chunks, done, min(most, left)):
                    return
                most = 1
        chunks.run(done)
        done += 1


def _cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def _can_fork() -> bool:
    """Only a process without other threads can be forked safely, and only if no other code waits for its children."""
    alone = threading.active_count() == 1 and threading.current_thread() is threading.main_thread()
    return sys.platform == "linux" and alone and signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL


def communicates(instruction: Instruction) -> bool:
    """Whether blocks may pass something on to each other with this instruction, or wait for each other, or print."""
    if instruction.opcode == "call":
        return callee(instruction) in ("vprintf", "malloc", "free")
    return is_communication(instruction)


def _guess(chunks: Chunks) -> float:
    """Seconds that a chunk may take, by its code: all of it once, or a few times if it loops."""
    setup = chunks.setup
    blocks = enumerate(setup.program.blocks)
    loops = any(successor <= number for number, block in blocks for successor in block.successors)
    lanes = len(setup.chunks[0]) * setup.geometry.threads
    return lanes * len(setup.entry.instructions) * (_TURNS if loops else 1) / _RATE


def _shared_out(chunks: Chunks, first: int, workers: int) -> bool:
    """Have workers run the chunks from ``first`` on; if that is False, nothing has changed."""
    setup, space = chunks.setup, chunks.space
    try:
        footprints = _zeros((workers, PLANES, len(space.data)), np.uint8)
        geometry = setup.geometry
        sizes = setup.entry, setup.program, len(space.data), geometry.ctas, geometry.warps
        counted = [Tally(*sizes, traffic=setup.counters, zeros=_zeros) for _ in footprints]
        done = _run_apart(chunks, range(first, len(setup.chunks)), footprints, counted)
        together = put_together(footprints) if done else None
    except (OSError, MemoryError):  # no room for so many processes: there may be for one
        return False
    if together is None:
        return False
    after, written = together
    np.copyto(space.data, after, where=written)
    for tally in counted:
        chunks.tally.add(tally)
    return True


def _run_apart(chunks: Chunks, left: range, footprints: Array, counted: Sequence[Tally]) -> bool:
    """Run chunks in a process for each footprint and tally, none of which is left afterwards; False if one gave up."""
    turns = [part.tolist() for part in np.array_split(left, min(len(left), _MOST_TURNS))]
    tokens, end = os.pipe()
    os.write(end, bytes(range(len(turns))))
    os.close(end)
    pids: list[int] = []
    try:
        for planes, tally in zip(footprints, counted, strict=True):
            _fork(partial(_work, chunks, turns, tokens, planes, tally), pids)
        return _all_done(pids)
    finally:
        os.close(tokens)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def _zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array of zeros in memory that forked processes share."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, max(size, 1)), dtype, int(np.prod(shape))).reshape(shape)


def _work(chunks: Chunks, turns: Sequence[Sequence[int]], tokens: int, planes: Array, tally: Tally) -> None:
    """What a worker does: run the chunks of every turn whose token, a byte in a pipe, it gets hold of."""
    footprint = Footprint(planes)
    mine = Chunks(chunks.setup, chunks.space, tally, _NoHazards(), chunks.history, footprint)
    while token := os.read(tokens, 1):
        for number in turns[token[0]]:
            mine.run(number)
    footprint.close(chunks.space)


class _NoHazards(HazardLog):
    """The log of a worker, which records no details."""

    def add(self, *what: Any, **more: Any) -> None:
        """A hazard."""
        raise GivenUp


# ---- processes -------------------------------------------------------------------------------------------------------


def _fork(work: Callable[[], None], pids: list[int]) -> None:
    """Start a process that does ``work``, and add it to ``pids``."""
    parent = os.getpid()
    # An interrupt is for this process only, and not before its child is recorded.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():  # of threads that libraries have: the child does not use what they hold
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _child(work, parent)
        pids.append(pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _child(work: Callable[[], None], parent: int) -> NoReturn:
    """Do ``work`` and leave, without exit handlers and without flushing buffers."""
    code = _DIED
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a killed parent leaves no children
        if os.getppid() == parent:
            gc.freeze()  # the parent's garbage is the parent's
            work()
            code = _DONE
    except Exception:  # of any kind: this process cannot tell it as the parent can
        code = _GAVE_UP
    finally:
        os._exit(code)


def _all_done(pids: list[int]) -> bool:
    """Wait for these processes, and remove from ``pids`` those that have ended; False as soon as one gave up."""
    while pids:
        for pid in tuple(pids):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            pids.remove(pid)
            code = os.waitstatus_to_exitcode(status)
            if code == _GAVE_UP:
                return False
            if code != _DONE:
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
                raise SimError(
                    f"a worker process of the simulator {how}, which may mean that there is too little memory: "
                    "launch with workers=1"
                )
        time.sleep(_POLL)
    return True
