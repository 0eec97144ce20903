"""The process that compiles, disassembles and simulates an untrusted source, started under guard:
``compiling.main(read_fd, write_fd)``.

The other side is :class:`sdpalab.judge.sandbox.workshop.ConfinedWorkshop`. No Python of a kernel runs here, and no
state is kept between orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.errors import MachineError, UserError
from sdpalab.judge.sandbox.simulation import run_case, run_sent
from sdpalab.judge.sandbox.wire import serve
from warpsan.build import BuildError, Compiled, Header, assemble, compile_program, run_tool

__all__ = ["main"]

Array = npt.NDArray[Any]
Answer = tuple[dict[str, Any], dict[str, Array]]

_FILES = ("ptx", "cubin", "entry", "log")


def main(read_fd: int, write_fd: int) -> None:
    """Serve one process until it closes the wire."""
    serve(read_fd, write_fd, _answer)


def _answer(order: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
    """Execute an order: ``compile``, ``assemble``, a ``tool`` on a cubin, ``simulate`` a plan, or a ``case``."""
    try:
        if order["do"] == "tool":
            text = run_tool(order["tool"], tuple(order["options"]), arrays["cubin"].tobytes())
            return {}, {"text": np.frombuffer(text.encode(errors="replace"), np.uint8)}
        if order["do"] == "simulate":
            return run_sent(order, arrays)
        if order["do"] == "case":
            return run_case(order)
        compiled = _compiled(order, arrays["source"].tobytes(), arrays["texts"].tobytes())
        files = (compiled.ptx, compiled.cubin, compiled.entry.encode(), compiled.log.encode(errors="replace"))
        return {}, dict(zip(_FILES, (np.frombuffer(content, np.uint8) for content in files), strict=True))
    except BuildError as error:
        return {"failure": "build", "message": str(error), "log": error.log}, {}
    except UserError as error:
        return {"failure": "input", "message": str(error)}, {}
    except (MachineError, OSError) as error:
        return {"failure": "machine", "message": str(error)}, {}


def _compiled(order: Mapping[str, Any], source: bytes, texts: bytes) -> Compiled:
    """PTX and cubin of CUDA C++ with its headers, or the cubin of PTX."""
    if order["do"] == "assemble":
        cubin, log = assemble(source, order["name"])
        return Compiled(b"", cubin, "", log)
    headers, begin = [], 0
    for name, length in order["headers"]:
        headers.append(Header(name, texts[begin : begin + length], "", (), (), ()))
        begin += length
    return compile_program(source.decode(), order["name"], order["expression"], headers, order["options"])
