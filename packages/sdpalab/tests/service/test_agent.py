"""``sdpalab mcp``: a session of an agent, from a broken kernel to a verdict, and the bounds of the tools."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from mcp import Client
from mcp.server.mcpserver.exceptions import ToolError

from sdpalab.service.agent import Tools, agent_server, brief


@pytest.mark.slow
def test_an_agent_finds_the_line_in_three_calls(load_script: Callable[[str], ModuleType]) -> None:
    """Hidden seeds are drawn anew: a text that is equal to that of the page has none."""
    script = load_script("agent_page")
    exchanges = asyncio.run(script.session())
    assert all(len(each.text) <= script.MOST for each in exchanges)
    judged, after = exchanges[1].text, exchanges[-1].text
    assert judged.startswith("HAZARD: my_kernel")
    assert "42 | k_smem[i / HEAD_DIM][i % HEAD_DIM] = __half2float(" in judged
    assert "usually a missing barrier between them" in judged
    assert after.startswith("PASSED: my_kernel")
    assert script.page(exchanges) == script.PAGE.read_text()


def test_the_tools_and_their_bounds(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out.py").write_text("")
    (tmp_path / "in" / "link.py").symlink_to(tmp_path / "out.py")
    (tmp_path / "in" / "broken.py").write_text("def attention(:\n")
    (tmp_path / "in" / "slow.py").write_text("import time\n\ntime.sleep(1000)\n")

    async def session() -> None:
        async with Client(agent_server(Tools(tmp_path / "in", 300, seconds=60.0))) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert names == ["build", "judge", "sanitize", "explain", "profile"]

            async def refused(tool: str, **arguments: str) -> str:
                answer = await client.call_tool(tool, arguments)
                assert answer.is_error
                text: str = answer.content[0].text  # type: ignore[union-attr]
                return text

            for kernel in ("../out.py", str(tmp_path / "out.py"), "link.py"):
                assert "is not below the folder of this server" in await refused("judge", kernel=kernel)
            assert "there is no file 'none.py'" in await refused("build", kernel="none.py")
            assert "is neither FILE.py nor" in await refused("sanitize", kernel="--help")
            assert "shape is B,H,S,D or a name" in await refused("judge", kernel="flash", shape="--help")
            assert "broken.py does not import: SyntaxError" in await refused("judge", kernel="broken.py")
            explained = await client.call_tool("explain", {"kind": "race"})
            assert len(explained.content[0].text) <= 300  # type: ignore[union-attr]

    asyncio.run(session())
    tools = Tools(tmp_path / "in", seconds=5.0)
    begin = time.monotonic()
    with pytest.raises(ToolError, match="sdpalab judge took more than 5 s"):
        asyncio.run(tools.run("judge", "slow.py"))
    assert time.monotonic() - begin < 60
    while left := [each for each in Path("/proc").glob("[0-9]*/cwd") if _is(each, tmp_path / "in")]:
        assert time.monotonic() - begin < 60, left
        time.sleep(0.1)


def _is(link: Path, folder: Path) -> bool:
    try:
        return os.readlink(link) == str(folder)
    except OSError:
        return False


def test_a_text_is_bounded_begins_with_the_verdict_and_lists_failures() -> None:
    text = (
        "k on simulator\n\n case    status      max\n ─────\n 1x1 seed 0   PASSED   1e-3\n"
        " 1x1 edge     INCORRECT   1.5\n"
        "confinement: namespaces\nlikely: a mask\nINCORRECT: k, 1 of 2 cases passed in 3.2 s\n"
    )
    lines = brief(text, 1000).splitlines()
    assert lines == [
        "INCORRECT: k, 1 of 2 cases passed",
        "k on simulator",
        " case    status      max",
        " 1x1 edge     INCORRECT   1.5",
        "likely: a mask",
    ]
    for most in (200, 60):
        long = brief("a line\n" * 100 + "PASSED: k\n", most)
        assert len(long) <= most
        assert long.startswith("PASSED: k\na line")
        assert long.endswith(" characters more")
