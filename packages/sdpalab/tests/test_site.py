"""The documentation's site: it builds without a warning, no page is wider than a phone, and its commands exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from chromium import measured_files
from sdpalab import CudaKernel, Problem
from sdpalab.cli import app, main
from sdpalab.compile import build
from sdpalab.kernels.userfile import load_user_kernel

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "packages" / "sdpalab" / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
WIDTHS = (390, 800, 1400)

SCRIPT = """
const scrolls = each => each && (view.getComputedStyle(each).overflowX == "auto" || scrolls(each.parentElement));
const beyond = each => each.getBoundingClientRect().right > view.innerWidth + 1 && !scrolls(each);
const blocks = [...page.querySelectorAll("article p, article pre, article table, article img")];
const loaded = view.performance.getEntriesByType("resource").map(each => each.name);
return {
  page: page.documentElement.scrollWidth, view: view.innerWidth, title: page.querySelector("h1").textContent,
  sideways: blocks.filter(beyond).map(each => each.textContent.slice(0, 60)),
  foreign: loaded.filter(name => !name.startsWith("file:")),
};
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built with every warning as an error."""
    pytest.importorskip("sphinx", reason="the site needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", str(DOCS), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_has_every_page(site: Path) -> None:
    assert {str(page.relative_to(DOCS).with_suffix(".html")) for page in PAGES} <= {
        str(page.relative_to(site)) for page in site.rglob("*.html")
    }
    reference = (site / "api" / "kernels.html").read_text()
    assert "Least compute capability times ten" in reference, "the reference comes from the docstrings"


@pytest.mark.slow
def test_no_page_scrolls_sideways_and_nothing_is_loaded_from_elsewhere(site: Path, tmp_path: Path) -> None:
    pages = [site / page.relative_to(DOCS).with_suffix(".html") for page in PAGES]
    layouts: dict[tuple[Path, int], Any] = measured_files(pages, WIDTHS, SCRIPT, tmp_path)
    for (page, width), layout in layouts.items():
        where = f"{page.name} at {width}: {layout}"
        assert layout["view"] == width, where
        assert layout["page"] <= width, where
        assert layout["sideways"] == [], where
        assert layout["foreign"] == [], where


COMMANDS = re.compile(r"^(?:    |\$ |- run: |      - run: )?((?:\w+=\S+ )*sdpalab [a-z].*)$", re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """The command lines of a page's code, without what stands before ``sdpalab`` and a comment."""
    return [shlex.split(line.partition(" # ")[0])[1:] for line in COMMANDS.findall(text)]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    group = typer.main.get_command(app)
    for words in commands(page.read_text()):
        command: Any = group
        while hasattr(command, "commands"):
            assert words[0] in command.commands, f"{page.name}: {' '.join(words)}"
            command, words = command.commands[words[0]], words[1:]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        known |= {"--help"}
        unknown = [
            word for word in words if word.startswith("-") and word != "-" and word.partition("=")[0] not in known
        ]
        assert not unknown, f"{page.name}: sdpalab {command.name} {' '.join(words)}: {unknown}"


def test_the_cuda_kernel_of_the_page_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "cuda", "my_attention"]) == 0
    first = (DOCS / "your-kernel.md").read_text().split("```python\n")[1].partition("```")[0]
    (tmp_path / "my_attention.py").write_text(first)
    kernel = load_user_kernel("my_attention.py")
    assert isinstance(kernel, CudaKernel)
    assert kernel.why_not(Problem(1, 1, 64, 128)) is not None
    (launch,) = kernel.launch_plan(Problem(1, 2, 100, 64)).launches
    assert (launch.grid, launch.block) == ((2, 2, 1), (64, 1, 1))
    assert launch.module is not None
    assert build(launch.module, "sm_89").ptx
