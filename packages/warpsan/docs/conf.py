"""Settings of warpsan's site: ``sphinx-build -W packages/warpsan/docs out/site-warpsan``.

Pages are Markdown (MyST); the Python interface comes from the docstrings. The site loads nothing from the network.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import warpsan  # noqa: E402

for name in ("", ".ptx", ".host", ".report", ".profile", ".numerics", ".build", ".sanitize"):
    package = importlib.import_module(f"warpsan{name}")
    for public in package.__all__:  # names are imported on first use, and autodoc reads only those that are there
        getattr(package, public)

project = "warpsan"
author = "the SDPA Lab authors"
version = release = warpsan.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
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

html_theme = "furo"
html_title = f"warpsan {version}"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
