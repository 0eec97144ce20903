"""The process that compiles, disassembles and simulates a stranger's source, started under guard:
``compiling.main(read_fd, write_fd)``.

The other side is :class:`sdpalab.judge.sandbox.workshop.ConfinedWorkshop`. No Python of a kernel runs here, and
nothing is kept from one order to the next.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from sdpalab.compile.builder import compiled
from sdpalab.compile.nvrtc import BuildError
from sdpalab.compile.tools import run_tool
from sdpalab.errors import MachineError, UserError
from sdpalab.judge.sandbox.simulation import run_case, run_sent
from sdpalab.judge.sandbox.wire import Channel, serve
from sdpalab.kernels.plan import Module, PtxSource

__all__ = ["SENT_MODULE", "main"]

Array = npt.NDArray[Any]
Answer = tuple[dict[str, Any], dict[str, Array]]

SENT_MODULE: TypeAdapter[Module | PtxSource] = TypeAdapter(Module | PtxSource)
"""The JSON form in which a module is sent."""


def main(read_fd: int, write_fd: int) -> None:
    """Serve one process until it closes the wire."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(Channel(read_fd, write_fd), _answer)


def _answer(order: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
    """Execute an order: ``make`` the files of a build, run a ``tool`` on a cubin, or ``simulate`` a plan
    or the launches of a ``case``."""
    try:
        if order["do"] == "tool":
            text = run_tool(order["tool"], tuple(order["options"]), arrays["cubin"].tobytes())
            return {}, {"text": np.frombuffer(text.encode(errors="replace"), np.uint8)}
        if order["do"] == "simulate":
            return run_sent(order, arrays)
        if order["do"] == "case":
            return run_case(order)
        module = SENT_MODULE.validate_json(arrays["module"].tobytes())
        files = compiled(module, order["arch"], order["options"])
        return {}, {name: np.frombuffer(content, np.uint8) for name, content in files.items()}
    except BuildError as error:
        return {"failure": "build", "message": str(error), "log": error.log}, {}
    except UserError as error:
        return {"failure": "input", "message": str(error)}, {}
    except (MachineError, OSError) as error:
        return {"failure": "machine", "message": str(error)}, {}
