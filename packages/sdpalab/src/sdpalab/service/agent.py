"""Tools for agents over the Model Context Protocol: each runs a command of the lab, and returns its text, bounded.

A tool reads kernels below one folder, and writes nothing there. Its text begins with the verdict; cases that passed are
counted, not listed. Commands print public seeds only. Source: modelcontextprotocol.io, specification 2025-06-18.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from sdpalab.installation import IMPORT_FOLDERS
from sdpalab.kernels.registry import SHIPPED
from sdpalab.kernels.userfile import file_of, is_user_file
from sdpalab.version import __version__

__all__ = ["Tools", "agent_server", "brief"]

_ROW = re.compile(r"^ \S.*? (PASSED|[A-Z_]{6,}) +\S")
"""A row of the table of cases, with its status."""
_RULE = re.compile(r"^ *─+$")
_SKIPPED = (
    *("confinement:", "original contract", "relation ", "torch backends", "  torch ", "no room for:", "why these"),
    *(" time  ", "  it agrees best"),
)
"""First words of lines that say nothing of a failure."""
_SECONDS = re.compile(r" in \d+\.\d+ s$")
_COLUMNS = "120"

Kernel = Annotated[
    str, Field(description="Path of FILE.py or FILE.py:NAME below the server's folder, or a shipped kernel's name.")
]
Shape = Annotated[str, Field(description="B,H,S,D or the name of a problem.")]
Causal = Annotated[bool, Field(description="Whether query i sees keys 0 to i only.")]
DType = Literal["float16", "bfloat16", "float32"]


def brief(text: str, most: int, *, concluded: bool = True) -> str:
    """The text of a command in at most ``most`` characters, without rows of cases that passed and without seconds.

    ``concluded``: the last line is the verdict, and comes first. A longer text ends with the number of missing
    characters.
    """
    lines = [_SECONDS.sub("", line.rstrip()) for line in text.splitlines()]
    lines = [line for line in lines if line and not _RULE.match(line) and not line.startswith(_SKIPPED)]
    rows = [match for line in lines if (match := _ROW.match(line))]
    passed = sum(match[1] == "PASSED" for match in rows)
    lines = [line for line in lines if not ((match := _ROW.match(line)) and match[1] == "PASSED")]
    if passed == len(rows):
        lines = [line for line in lines if not line.startswith(" case ")]
    shown = "\n".join([*lines[-1:], *lines[:-1]] if concluded else lines)
    if len(shown) <= most:
        return shown
    ending = f"\n... {len(shown) - most} characters more"
    return shown[: max(0, most - len(ending) - 5)] + ending


@dataclass(frozen=True)
class Tools:
    """The commands behind the tools.

    Attributes
    ----------
    folder : Path
        Kernels are files below it.
    most : int
        Most characters of a tool's text.
    seconds : float
        Most wall-clock seconds of one command.
    confined : bool
        Whether the processes of a kernel must be confined.
    """

    folder: Path
    most: int = 2000
    seconds: float = 300.0
    confined: bool = True

    def kernel(self, kernel: str) -> str:
        """The kernel as an argument of a command; raises ToolError for another file."""
        if kernel in SHIPPED:
            return kernel
        if not is_user_file(kernel) or kernel.startswith("-"):
            raise ToolError(f"{kernel[:200]!r} is neither FILE.py nor FILE.py:NAME nor one of {', '.join(SHIPPED)}")
        file = (self.folder / file_of(kernel)).resolve()
        if not file.is_relative_to(self.folder.resolve()):
            raise ToolError(f"{kernel[:200]!r} is not below the folder of this server, {self.folder}")
        if not file.is_file():
            raise ToolError(f"there is no file {kernel[:200]!r} in {self.folder}")
        return kernel

    async def run(self, *arguments: str, untrusted: bool = True) -> str:
        """Output of ``sdpalab ARGUMENTS``, bounded; ``untrusted``: it runs a kernel."""
        confined = ["--require-confinement"] if untrusted and self.confined else []
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sdpalab", *arguments, *confined),
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": _import_path(), "COLUMNS": _COLUMNS, "NO_COLOR": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            printed, failed = await asyncio.wait_for(process.communicate(), self.seconds)
        except asyncio.TimeoutError:
            raise ToolError(f"sdpalab {arguments[0]} took more than {self.seconds:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if process.returncode in (0, 1):
            return brief(printed.decode(errors="replace"), self.most, concluded=untrusted)
        lines = failed.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        raise ToolError(lines[-1][: self.most])


def agent_server(tools: Tools) -> MCPServer[None]:
    """The server with all tools."""
    server: MCPServer[None] = MCPServer(
        "sdpalab",
        version=__version__,
        log_level="WARNING",
        instructions="Checks attention kernels without a GPU. Judge after each edit; a failure names its line.",
    )
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)

    @server.tool(annotations=reads)
    async def build(kernel: Kernel) -> str:
        """Compile a kernel: errors with their line, registers, spills, shared memory, and the static gate."""
        return await tools.run("build", tools.kernel(kernel))

    @server.tool(annotations=reads)
    async def judge(kernel: Kernel, shape: Shape = "small", causal: Causal = False, dtype: DType = "float16") -> str:
        """Run a kernel on the simulator, compare it with float64, and name the hazard or the likely bug, with its line.

        It stops at the first case that fails.
        """
        problem = _problem(shape, causal, dtype)
        return await tools.run("judge", tools.kernel(kernel), *problem, "--first-failure", "--seed", "0")

    @server.tool(annotations=reads)
    async def sanitize(kernel: Kernel, shape: Shape = "small", causal: Causal = False, dtype: DType = "float16") -> str:
        """Find races and memory errors of a kernel in every order of its warps, with both source lines of each."""
        return await tools.run("sanitize", tools.kernel(kernel), *_problem(shape, causal, dtype))

    @server.tool(annotations=reads)
    async def explain(kind: Annotated[str, Field(pattern="^[a-z-]{2,40}$", description="Such as race.")]) -> str:
        """Explain a kind of hazard: its meaning, an example, and the mend."""
        return await tools.run("explain", kind, untrusted=False)

    @server.tool(annotations=reads)
    async def profile(kernel: Kernel, shape: Shape = "small", causal: Causal = False, dtype: DType = "float16") -> str:
        """Modelled time of a kernel, its bound, and the cost of its source lines, from counts of the simulator."""
        return await tools.run("profile", tools.kernel(kernel), *_problem(shape, causal, dtype), "--device", "sim")

    return server


def _problem(shape: str, causal: bool, dtype: str) -> Sequence[str]:
    if not re.fullmatch(r"[a-z0-9][a-z0-9,-]{0,60}", shape):
        raise ToolError(f"shape is B,H,S,D or a name, not {shape[:100]!r}")
    return "--shape", shape, "--dtype", dtype, *(["--causal"] if causal else [])


def _import_path() -> str:
    return os.pathsep.join([*IMPORT_FOLDERS, *filter(None, [os.environ.get("PYTHONPATH")])])
