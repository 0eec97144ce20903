"""Site of sdpalab's pages: ``sphinx-build -W packages/sdpalab/docs out/site/sdpalab`` (extra ``docs``).

The pages are Markdown (MyST), readable on a forge; the reference in ``api/`` comes from the docstrings. Links to pages
of warpsan become links to its site beside this one, ``out/site/warpsan``. The site loads nothing from the network.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import sdpalab  # noqa: E402

project = "SDPA Lab"
author = "the SDPA Lab authors"
version = release = sdpalab.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["schemas", "_static"]
# Pages link to headings, as a forge resolves them.
myst_heading_anchors = 3
# PTX and CUDA C++ fragments are not programs; a fragment that a lexer does not take is shown without colours.
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "none"

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
add_module_names = False
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"


def short_signature(app: Any, what: str, name: str, obj: Any, *_: Any) -> tuple[str, str] | None:
    """A class's parameters; a default that takes more than a word (a lambda, another object) is shown as dots."""
    if what != "class":
        return None
    try:
        parameters = inspect.signature(obj).parameters.values()
    except (TypeError, ValueError):
        return None

    def shown(parameter: inspect.Parameter) -> str:
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        if parameter.default is parameter.empty:
            return star + parameter.name
        simple = isinstance(parameter.default, str | int | float | None) or parameter.default == ()
        return f"{parameter.name}={parameter.default!r}" if simple else f"{parameter.name}=..."

    return f"({', '.join(map(shown, parameters))})", ""


WARPSAN = ROOT.parent / "warpsan"
_LINK = re.compile(r"\[([^\[\]]+)\]\(((?:\.\./)+[\w./-]+\.md)(#[\w-]+)?\)")


def links_to_warpsan(app: Any, docname: str, source: list[str]) -> None:
    """Point links at pages of warpsan to its own site."""
    folder = Path(app.srcdir, docname).parent

    def linked(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / match[2]))
        if not target.is_relative_to(WARPSAN):
            return match[0]
        page = target.relative_to(WARPSAN / "docs").with_suffix(".html") if target.parent != WARPSAN else "index.html"
        up = "../" * (docname.count("/") + 1)
        return f'<a href="{up}warpsan/{page}{match[3] or ""}">{match[1]}</a>'

    source[0] = _LINK.sub(linked, source[0])


def setup(app: Any) -> None:
    """Register the extension of this file."""
    app.connect("autodoc-process-signature", short_signature)
    app.connect("source-read", links_to_warpsan)


html_theme = "furo"
html_title = f"SDPA Lab {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
