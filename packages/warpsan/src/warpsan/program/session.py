"""Run of a program: the process with the replacement runtime, the server beside it, and the outcome."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from warpsan.build.cache import Cache
from warpsan.errors import MachineError, UserError
from warpsan.program.executable import check_program
from warpsan.program.options import RunOptions
from warpsan.program.outcome import ProgramOutcome
from warpsan.program.python_program import run_python
from warpsan.program.server import Server
from warpsan.program.standin import VERSIONS, lay_out_standin
from warpsan.report.groups import group
from warpsan.report.source_text import Sources

__all__ = ["run_program"]

_NO_ROOM, _ATTEMPTS = 97, 20
"""Exit code of the replacement runtime if the addresses of device memory are occupied (random), and maximum attempts.
"""
_UNWRITTEN = "unwritten memory holds NaN; a program that succeeds only with --fill zeros reads unwritten memory"


def run_program(
    command: Sequence[str], options: RunOptions | None = None, cache: Cache | None = None
) -> ProgramOutcome:
    """Run a program with the simulator in place of a GPU. The program shares this process's output.

    Parameters
    ----------
    command : sequence of str
        The program and its arguments: a CUDA program, or a Python file (``.py``) with Triton kernels.
    options : RunOptions, optional
    cache : Cache, optional
        Cache of the replacement runtime. Default: the user's cache.

    Raises
    ------
    UserError
        If the program does not exist, links the static CUDA runtime, or made no CUDA call.
    MachineError
        If the machine has no C compiler, or fails otherwise.
    """
    options = options or RunOptions()
    if command[0].endswith(".py"):
        return run_python(command, options)
    path, facts = check_program(command[0])
    for _ in range(_ATTEMPTS):
        outcome = _run(path.absolute(), command, facts.runtime, options, cache)
        if outcome is not None:
            return outcome
    raise MachineError("the program occupied the addresses of device memory in every attempt")


def _run(
    path: Path, command: Sequence[str], runtime: str, options: RunOptions, cache: Cache | None
) -> ProgramOutcome | None:
    """One attempt; None if the addresses of device memory were occupied."""
    with tempfile.TemporaryDirectory(prefix="warpsan-run-") as name:
        folder, libraries = Path(name), {}
        for version in [runtime] if runtime else VERSIONS:
            (folder / version).mkdir()
            libraries[version] = lay_out_standin(version, folder / version, cache)
        process: subprocess.Popen[bytes] | None = None

        def end() -> None:
            if process is not None:
                process.kill()

        capture = (options.capture, path.name.partition(".")[0]) if options.capture is not None else None
        server = Server(folder / "socket", options, end, capture)
        try:
            process = subprocess.Popen(command, executable=path, env=_environment(folder, libraries, runtime))
            try:
                code = process.wait(options.seconds)
            except subprocess.TimeoutExpired:
                raise UserError(f"the program did not end within {options.seconds:g} s") from None
        except OSError as error:
            raise UserError(f"{command[0]} cannot be executed: {error.strerror}") from None
        finally:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
            server.close()
        if server.failure is not None:
            raise server.failure
        if code == _NO_ROOM and not any(state.calls for state in server.states):
            return None
        return _outcome(path, command, code, server)


def _environment(folder: Path, libraries: dict[str, Path], runtime: str) -> dict[str, str]:
    """Environment of the program, with the replacement runtime first in the library search, also before RPATH."""
    environment = dict(os.environ, WARPSAN_RUN_SOCKET=str(folder / "socket"))
    paths = [str(library.parent) for library in libraries.values()]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    if runtime:
        preload = [str(libraries[runtime]), *filter(None, [os.environ.get("LD_PRELOAD")])]
        environment["LD_PRELOAD"] = os.pathsep.join(preload)
    return environment


def _outcome(path: Path, command: Sequence[str], code: int, server: Server) -> ProgramOutcome:
    states = [state for state in server.states if state.calls]
    if not states:
        raise UserError(
            f"{command[0]} made no call of the CUDA runtime: it has none, or the static one "
            "(link with nvcc -cudart shared)"
        )
    texts: dict[str, str] = {}
    folders = [Path.cwd(), path.parent]
    for state in states:
        folders += state.source_folders()
        texts |= {f"{each.name}.ptx": each.loaded.text for each in state.modules.values() if each.loaded is not None}
    hazards = [hazard for state in states for hazard in state.hazards.values()]
    gpu, arch = states[0].gpu
    notes = set().union(*(state.notes for state in states))
    if code > 0 and not hazards and states[0].options.fill == "poison":
        notes.add(_UNWRITTEN)
    return ProgramOutcome(
        tuple(command),
        f"{gpu.name} ({arch})",
        code,
        sum(state.launches for state in states),
        sum(state.operations for state in states),
        group(hazards, Sources(texts, folders)),
        tuple(dict.fromkeys(sentence for state in states for sentence in state.problems)),
        tuple(sorted(notes)),
        tuple(str(written) for written in (recorder.write() for recorder in server.recorders) if written is not None),
        sum(recorder.left_out for recorder in server.recorders),
        next((state.fatal for state in states if state.fatal), ""),
    )
