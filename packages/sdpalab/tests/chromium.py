"""Pages in headless Chromium: one run lays pages out at several widths, and a script measures them.

Each width is an ``iframe`` of a page that this module writes. The pages themselves are measured as they are.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["measured", "measured_files"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_HOST = """<!doctype html><meta charset="utf-8"><body>{frames}<pre id="result"></pre><script>
const measure = (page, view) => {{ {script} }};
const frames = [...document.querySelectorAll("iframe")], results = {{}};
frames.forEach(frame => frame.addEventListener("load", () => {{
  let value;
  try {{ value = measure(frame.contentDocument, frame.contentWindow); }}
  catch (error) {{ value = {{error: String(error)}}; }}
  results[frame.id] = value;
  if (Object.keys(results).length == frames.length)
    document.getElementById("result").textContent = JSON.stringify(results);
}}));
frames.forEach(frame => {{
  if (frame.dataset.file) frame.src = frame.dataset.file;
  else frame.srcdoc = document.getElementById("page").content.textContent;
}});
</script></body>"""


def measured(page: str, widths: Sequence[int], script: str, folder: Path, height: int = 844) -> dict[int, Any]:
    """Values that ``script`` returns for a page at each width.

    Parameters
    ----------
    page : str
        HTML.
    widths : sequence of int
        Viewport widths, CSS pixels.
    script : str
        Body of a function of ``page`` (the document) and ``view`` (its window); it returns JSON values.
    folder : Path
        For the host page and the browser's profile.
    """
    frames = {str(width): (width, "") for width in widths}
    results = _measured(frames, script, folder, height, f'<template id="page">{html.escape(page)}</template>')
    return {width: results[str(width)] for width in widths}


def measured_files(
    pages: Sequence[Path], widths: Sequence[int], script: str, folder: Path, height: int = 844
) -> dict[tuple[Path, int], Any]:
    """:func:`measured` for HTML files, with the styles and images that they load; by page and width."""
    places = [(page, width) for page in pages for width in widths]
    frames = {str(number): (width, page.as_uri()) for number, (page, width) in enumerate(places)}
    results = _measured(frames, script, folder, height)
    return {place: results[str(number)] for number, place in enumerate(places)}


def _measured(
    frames: Mapping[str, tuple[int, str]], script: str, folder: Path, height: int, template: str = ""
) -> dict[str, Any]:
    """Result of the script for each frame: a width, and the address of a file or nothing for the template."""
    browser = next(filter(None, map(shutil.which, _NAMES)), None)
    if browser is None:
        pytest.skip("no Chromium on this machine: pages are not laid out")
    tags = "".join(
        f'<iframe id="{name}" width="{width}" height="{height}" data-file="{html.escape(file)}" style="border:0">'
        "</iframe>"
        for name, (width, file) in frames.items()
    )
    host = folder / "host.html"
    host.write_text(template + _HOST.format(frames=tags, script=script), encoding="utf-8")
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--dump-dom"]
    # Files are of one origin with the host page, or it could not measure them.
    command += ["--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}"]
    command += ["--virtual-time-budget=10000", host.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    result = re.search(r'<pre id="result">(.+?)</pre>', done.stdout, re.DOTALL)
    assert result, f"{browser} measured nothing (exit {done.returncode}): {done.stderr[-500:]}"
    values: dict[str, Any] = json.loads(html.unescape(result[1]))
    return values
