"""``sdpalab new``: a template kernel with its launch and its test, which pass."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from sdpalab.errors import UserError
from sdpalab.scoring import TASKS
from warpsan.terminal.console import conclude
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption

__all__ = ["KINDS", "new"]

_TEMPLATES = Path(__file__).with_name("templates")
KINDS = ("cuda", "triton", "torch")
_LAYOUTS = ("dense", "varlen", "paged")


def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="cuda, triton, or torch for a function on tensors.")],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the kernel and its files, such as my_attention.")
    ],
    task: Annotated[
        str, typer.Option("--task", metavar="T", help="forward, or backward for cuda and triton.")
    ] = "forward",
    layout: Annotated[
        str, typer.Option("--layout", metavar="L", help="dense; varlen for cuda; or paged for cuda or triton.")
    ] = "dense",
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder of the files.")] = Path("."),
    json: JsonOption = None,
) -> int:
    """Write a small attention kernel that passes, its launch, and its test, as a starting point."""
    console = console_and_subject(json, name)
    texts = _texts(kind, name, task, layout)
    taken = [str(folder / file) for file in texts if (folder / file).exists()]
    if taken:
        raise UserError(f"new overwrites nothing, and {' and '.join(taken)} exists: choose another NAME or --dir")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--dir {folder}: cannot write: {error.strerror}") from None
    paths = [str(folder / file) for file in texts]
    for path in paths:
        conclude(console, f"wrote  {path}")
    launch, test = (str(folder / file) for file in (f"{name}.py", f"test_{name}.py"))
    further = "" if task == "forward" else f" --task {task}"
    further += {"varlen": " --layout varlen", "paged": " --layout paged:16"}.get(layout, "")
    console.print(f"judge  sdpalab judge {launch} --shape 1,2,128,64{further}", soft_wrap=True)
    console.print(f"test   pytest {test}", soft_wrap=True)
    write_document(json, {"files": paths, "next": f"sdpalab judge {launch}{further}"}, status="PASSED")
    return 0


def _texts(kind: str, name: str, task: str, layout: str) -> dict[str, str]:
    """File names and texts, in reading order; raises UserError for an impossible name or an unknown template."""
    if kind not in KINDS:
        raise UserError(f"new takes {', '.join(KINDS[:-1])} or {KINDS[-1]}, not {kind!r}")
    if task not in TASKS:
        raise UserError(f"--task is {' or '.join(TASKS)}, not {task!r}")
    if layout not in _LAYOUTS:
        raise UserError(f"--layout is {', '.join(_LAYOUTS[:-1])} or {_LAYOUTS[-1]}, not {layout!r}")
    special = [word for word in (task, layout) if word not in ("forward", "dense")]
    templates_of = _TEMPLATES / "_".join((kind, *special))
    if not templates_of.is_dir():
        asked = " ".join(f"--{'task' if word in TASKS else 'layout'} {word}" for word in special)
        others = ", ".join(sorted(path.name.replace("_", " ") for path in _TEMPLATES.iterdir()))
        raise UserError(f"there is no template of {kind} for {asked}: there are {others}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UserError(f"NAME is of lower-case letters, digits and _, such as my_attention, not {name!r}")
    if importlib.util.find_spec(name) is not None and not Path(f"{name}.py").exists():
        raise UserError(f"there is a Python module {name}, which a file {name}.py would hide: choose another NAME")
    templates = sorted(templates_of.iterdir(), key=lambda path: (path.stem.startswith("test_"), path.name))
    values = {"name": name, "NAME": name.upper()}
    return {
        path.name.removesuffix(".tmpl").replace("kernel", name): Template(path.read_text("utf-8")).substitute(values)
        for path in templates
    }
