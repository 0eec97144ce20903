"""Write ``packages/sdpalab/docs/agents.md``: a session of an agent with ``sdpalab mcp``, from the real transcript.

    python scripts/agent_page.py

The session is scripted: a broken kernel, three calls that lead to the wrong line, the fix, and the verdict after it.
The client is that of the official SDK. ``packages/sdpalab/tests/service/test_agent.py`` repeats and compares it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [str(ROOT / "packages" / name / "src") for name in ("sdpalab", "warpsan")]
sys.path[:0] = SOURCES

from sdpalab.bugs import replace_once  # noqa: E402

PAGE = ROOT / "packages" / "sdpalab" / "docs" / "agents.md"
MOST = 1200
RIGHT = "        }\n        __syncthreads();\n    }\n"
WRONG = "        }\n    }\n"
KERNEL: dict[str, Any] = {"kernel": "my_kernel.py", "shape": "1,2,100,64"}
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("build", {"kernel": "my_kernel.py"}),
    ("judge", KERNEL),
    ("explain", {"kind": "race"}),
)
"""Calls before the fix; :data:`LAST` follows it."""
LAST = ("judge", KERNEL)


@dataclass(frozen=True)
class Exchange:
    """One call of a tool, and its text."""

    tool: str
    arguments: dict[str, Any]
    text: str


async def session() -> list[Exchange]:
    """The exchanges of the session."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "my_kernel.py").write_bytes((ROOT / "examples" / "my_kernel.py").read_bytes())
        right = (ROOT / "examples" / "my_kernel.cu").read_text()
        (folder / "my_kernel.cu").write_text(replace_once(right, (RIGHT, WRONG)))
        command = ["-m", "sdpalab", "mcp", "--folder", name, "--brief", str(MOST)]
        path = os.pathsep.join([*SOURCES, *filter(None, [os.environ.get("PYTHONPATH")])])
        server = StdioServerParameters(command=sys.executable, args=command, env={**os.environ, "PYTHONPATH": path})
        exchanges = []
        async with Client(server) as client:
            for number, (tool, arguments) in enumerate((*CALLS, LAST)):
                if number == len(CALLS):
                    (folder / "my_kernel.cu").write_text(right)
                answer = await client.call_tool(tool, arguments)
                exchanges.append(Exchange(tool, arguments, answer.content[0].text))
        return exchanges


def page(exchanges: list[Exchange]) -> str:
    """The whole page."""
    parts = [HEAD]
    notes = ("It compiles, and its resources are in order.", READING, "The tool `explain` has the mend:", FIX)
    for number, (exchange, note) in enumerate(zip(exchanges, notes, strict=True), 1):
        call = f"{exchange.tool} {json.dumps(exchange.arguments)}"
        parts += [f"## Call {number}: {exchange.tool}", note, f"```text\n> {call}\n{exchange.text}\n```"]
    return "\n\n".join(parts) + "\n"


HEAD = """# Agents

`sdpalab mcp` serves five tools to agents such as Claude Code or Codex, over the Model Context Protocol on stdin and
stdout: `build`, `judge`, `sanitize`, `explain`, `profile`. It needs the extra `mcp`.

    pip install 'sdpalab[mcp]'
    claude mcp add sdpalab -- sdpalab mcp --folder kernels

A tool reads the kernels below `--folder`, and writes nothing there. Its text has at most `--brief N` characters
(2,000), begins with the verdict, quotes the source lines of a failure, and contains no hidden seed. Cases that passed
are counted, not listed. A call takes at most `--timeout S` (300). [The sandbox](isolation.md) confines the kernel;
without namespaces a call is refused, unless `--allow-unconfined`.

Below is a session with a kernel that lacks a barrier, as `scripts/agent_page.py` recorded it: three calls to the wrong
line, the fix, and the verdict."""

READING = (
    "The race names both lines: the copy into the tile overwrites what other warps still read. The barrier at the end "
    "of the loop is missing."
)
FIX = "With `__syncthreads();` at the end of the loop over the tiles the kernel passes:"


if __name__ == "__main__":
    PAGE.write_text(page(asyncio.run(session())))
