"""Pages in headless Chromium: one run lays a page out at several widths, and a script measures it.

Each width is an ``iframe`` of a page that this module writes. The page itself has no script, and is measured as it is.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["measured"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_HOST = """<!doctype html><meta charset="utf-8"><body>{frames}<pre id="result"></pre><script>
const measure = (page, view) => {{ {script} }};
const frames = [...document.querySelectorAll("iframe")], results = {{}};
frames.forEach(frame => frame.addEventListener("load", () => {{
  let value;
  try {{ value = measure(frame.contentDocument, frame.contentWindow); }}
  catch (error) {{ value = {{error: String(error)}}; }}
  results[frame.width] = value;
  if (Object.keys(results).length == frames.length)
    document.getElementById("result").textContent = JSON.stringify(results);
}}));
frames.forEach(frame => frame.srcdoc = document.getElementById("page").content.textContent);
</script></body>"""


def measured(page: str, widths: Sequence[int], script: str, folder: Path, height: int = 844) -> dict[int, Any]:
    """What ``script`` returns for a page at each width.

    Parameters
    ----------
    page : str
        HTML.
    widths : sequence of int
        Of the viewport, CSS pixels.
    script : str
        Body of a function of ``page`` (the document) and ``view`` (its window); it returns JSON values.
    folder : Path
        For the host page and the browser's profile.
    """
    browser = next(filter(None, map(shutil.which, _NAMES)), None)
    if browser is None:
        pytest.skip("no Chromium on this machine: pages are not laid out")
    frames = "".join(f'<iframe width="{width}" height="{height}" style="border:0"></iframe>' for width in widths)
    template = f'<template id="page">{html.escape(page)}</template>'
    host = folder / "host.html"
    host.write_text(template + _HOST.format(frames=frames, script=script), encoding="utf-8")
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=10000", host.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    result = re.search(r'<pre id="result">(.+?)</pre>', done.stdout, re.DOTALL)
    assert result, f"{browser} measured nothing (exit {done.returncode}): {done.stderr[-500:]}"
    return {int(width): value for width, value in json.loads(html.unescape(result[1])).items()}
