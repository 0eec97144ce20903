"""Compilation of a user's kernel in a confined process: the client side.

A command that builds a user's kernel never passes its source, PTX or cubin to a compiler, assembler or disassembler in
its own process. A confined process without write access runs these tools, and returns the files.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sdpalab.errors import MachineError, UserError
from sdpalab.judge.sandbox.candidate import file_of, foreign_cache, is_file, source_of
from sdpalab.judge.sandbox.confinement import kernel_files
from sdpalab.judge.sandbox.guarded import GuardedProcess, Quota, describe, simulating_process
from sdpalab.judge.sandbox.messages import Message
from sdpalab.judge.sandbox.simulation import SimulatedRun, sent_options, sent_run
from sdpalab.judge.sandbox.wire import WireError
from sdpalab.kernels.plan import Launch, LaunchPlan, Module, PtxSource
from sdpalab.kernels.userfile import is_user_file
from sdpalab.run import RunResult
from warpsan import Report
from warpsan.build import Build, BuildError, Cache, Compiled, Header, Workshop, foreign

__all__ = ["ConfinedWorkshop", "workshop_for"]

_log = logging.getLogger(__name__)

Array = npt.NDArray[Any]

_MODULE = "sdpalab.judge.sandbox.compiling"
_SECONDS = 600.0
"""Seconds for one compilation."""
_RUN_SECONDS = 24 * 3600.0
"""Seconds for one run of a plan, whose steps have their own limits."""
_CPU_SECONDS = 7 * 24 * 3600
_MOST_BYTES = 1 << 34
"""Most bytes of an answer: the outputs of a plan."""


class WorkshopReply(Message):
    """A failure; or an empty reply with files beside it."""

    failure: Literal["", "build", "input", "machine"] = ""
    message: str = ""
    log: str = ""


class ConfinedWorkshop:
    """The workshop of a user's kernel (:class:`warpsan.build.untrusted.Workshop`); its process starts with the first
    order.

    Parameters
    ----------
    spec : str
        ``FILE.py[:NAME]``, ``FILE.cu`` or ``FILE.ptx``.
    include_dirs : sequence of Path
        Folders for ``#include`` beside those of the kernel.
    files : sequence of Path
        Further files that it may read, such as data of a launch file.
    """

    def __init__(self, spec: str, include_dirs: Sequence[Path] = (), files: Sequence[Path] = ()) -> None:
        self._spec, self._reads = spec, (*kernel_files(file_of(spec)), *include_dirs, *files)
        self._include_dirs = tuple(include_dirs)
        self._process: GuardedProcess | None = None
        self._lock = threading.Lock()

    @cached_property
    def cache(self) -> Cache:
        """Build cache of exactly this source."""
        return Cache(foreign_cache(source_of(self._spec, self._include_dirs)))

    def compile_program(
        self, source: str, name: str, expression: str | None, headers: Sequence[Header], options: Sequence[str]
    ) -> Compiled:
        """As :func:`warpsan.build.nvrtc.compile_program`."""
        order: dict[str, Any] = {"do": "compile", "name": name, "expression": expression, "options": list(options)}
        order["headers"] = [[header.name, len(header.text)] for header in headers]
        texts = b"".join(header.text for header in headers)
        return self._compiled(order, {"source": source.encode(), "texts": texts})

    def assemble(self, ptx: bytes, name: str) -> tuple[bytes, str]:
        """As :func:`warpsan.build.triton_compiler.assemble`."""
        compiled = self._compiled({"do": "assemble", "name": name}, {"source": ptx, "texts": b""})
        return compiled.cubin, compiled.log

    def _compiled(self, order: Mapping[str, Any], texts: Mapping[str, bytes]) -> Compiled:
        files = self._ask(order, {name: np.frombuffer(text, np.uint8) for name, text in texts.items()})
        if files.keys() != {"ptx", "cubin", "entry", "log"}:
            raise MachineError(f"{self._spec}: the process that compiles it sent no build")
        entry, log = (files[name].tobytes().decode(errors="replace") for name in ("entry", "log"))
        return Compiled(files["ptx"].tobytes(), files["cubin"].tobytes(), entry, log)

    def run_tool(self, tool: str, options: tuple[str, ...], cubin: bytes) -> str:
        """As :func:`warpsan.build.tools.run_tool`."""
        order = {"do": "tool", "tool": tool, "options": list(options)}
        text = self._ask(order, {"cubin": np.frombuffer(cubin, np.uint8)}).get("text", np.empty(0, np.uint8))
        return text.tobytes().decode(errors="replace")

    def simulate(
        self,
        plan: LaunchPlan,
        builds: Sequence[Build],
        inputs: Mapping[str, Array],
        arch: str,
        poison: int,
        options: Mapping[str, Any],
    ) -> tuple[list[Report], Callable[[], RunResult]]:
        """As :meth:`warpsan.build.untrusted.Workshop.simulate`."""
        order, arrays = sent_run(plan, builds, inputs, options)
        run, outputs = self._run({"do": "simulate", "arch": arch, "poison": poison, **order}, arrays, options)
        return run.reports, lambda: run.result(outputs)

    def simulate_case(
        self, source: Path, description: Path, options: Mapping[str, Any]
    ) -> tuple[list[Report], Callable[[], tuple[list[str], Mapping[str, int]]]]:
        """As :meth:`warpsan.build.untrusted.Workshop.simulate_case`."""
        order = {"do": "case", "source": str(source), "description": str(description), **sent_options(options)}
        run, _ = self._run(order, {}, options)

        def ended() -> tuple[list[str], Mapping[str, int]]:
            run.result({})
            return run.sentences, run.sizes

        return run.reports, ended

    def _run(
        self, order: Mapping[str, Any], arrays: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[SimulatedRun, dict[str, Array]]:
        outputs = self._ask(order, arrays, _RUN_SECONDS)
        try:
            run = SimulatedRun.of(outputs.pop("run").tobytes())
        except (KeyError, ValueError):
            raise MachineError(f"{self._spec}: the process that simulates it sent no result") from None
        for number, recorder in enumerate(options.get("watchers", ())):
            recorder.take(run.records(number) if number < len(run.accesses) else ())
        return run, outputs

    def own(self, plan: LaunchPlan) -> LaunchPlan:
        """``plan`` with modules that are compiled by this workshop."""
        steps = tuple(
            replace(step, module=foreign(step.module, self))
            if isinstance(step, Launch) and isinstance(step.module, (Module, PtxSource))
            else step
            for step in plan.steps
        )
        return replace(plan, steps=steps)

    def close(self) -> None:
        """End the process; a further order starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _ask(self, order: Mapping[str, Any], arrays: Mapping[str, Any], seconds: float = _SECONDS) -> dict[str, Array]:
        """Send an order; return the arrays of the answer, or raise the exception of its failure."""
        with self._lock:
            process = self._process = self._process or self._started()
            try:
                reply, files = process.ask(WorkshopReply, order, arrays, _MOST_BYTES, time.monotonic() + seconds)
            except WireError as error:
                why = f"building it failed: {error}{process.quote()}"
                self.close()
                raise MachineError(f"{self._spec}: {why}") from None
        if reply.failure == "build":
            raise BuildError(reply.message, reply.log)
        if reply.failure:
            raise (UserError if reply.failure == "input" else MachineError)(reply.message)
        return files

    def _started(self) -> GuardedProcess:
        quota = Quota(cpu_seconds=_CPU_SECONDS)
        process = simulating_process(_MODULE, quota, self.cache.root, self._reads).await_ready()
        if process.confinement != "namespaces" and not is_user_file(self._spec):  # or already reported
            _log.warning("%s: %s", self._spec, describe(process.confinement, process.confined_by))
        return process


@contextmanager
def workshop_for(spec: str, include_dirs: Sequence[Path] = (), files: Sequence[Path] = ()) -> Iterator[Workshop | None]:
    """Workshop of a kernel named on the command line; None for a shipped kernel, which is built in this process."""
    if not is_file(spec):
        yield None
        return
    workshop = ConfinedWorkshop(spec, include_dirs, files)
    try:
        yield workshop
    finally:
        workshop.close()
