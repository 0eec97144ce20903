"""``sdpalab new``: a template kernel with its launch and its test, which pass; or the adapter of an existing kernel."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from sdpalab.commands.adapter_text import Answers, adapter_text
from sdpalab.errors import UserError
from sdpalab.kernels.layouts import LAYOUTS
from sdpalab.scoring import TASKS
from warpsan.terminal.console import conclude
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption

__all__ = ["KINDS", "new"]

_TEMPLATES = Path(__file__).with_name("templates")
KINDS = ("cuda", "triton", "torch")
_LAYOUTS = ("dense", "varlen", "paged")


def new(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="cuda, triton, or torch for a function on tensors; none with --from.")
    ] = "",
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the kernel and its files, such as my_attention."),
    ] = "",
    task: Annotated[
        str, typer.Option("--task", metavar="T", help="forward, or backward for cuda and triton.")
    ] = "forward",
    layout: Annotated[
        str,
        typer.Option(
            "--layout",
            metavar="L",
            help="dense; varlen for cuda; or paged for cuda or triton. With --from the order of the arrays: "
            f"{', '.join(LAYOUTS)} or nd.",
        ),
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="Folder of the files. Default: this one; with --from that of the file."
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE.cu", help="Write the adapter of this file, from its kernel's signature and launch."
        ),
    ] = None,
    entry: Annotated[str, typer.Option(metavar="E", help="With --from: the kernel, such as attend<64>.")] = "",
    arg: Annotated[
        list[str] | None, typer.Option(metavar="P=EXPR", help="With --from: a parameter, in Python on problem.")
    ] = None,
    buffer: Annotated[
        list[str] | None,
        typer.Option(metavar="P=FILL", help="With --from: a parameter that is a float32 workspace [B, H, S]."),
    ] = None,
    mask: Annotated[
        str, typer.Option(metavar="M", help="With --from: causal or none, for a kernel without such a parameter.")
    ] = "",
    grid: Annotated[
        str, typer.Option(metavar="EXPR", help="With --from: the grid, such as (problem.seq_q, 1, 1).")
    ] = "",
    block: Annotated[str, typer.Option(metavar="EXPR", help="With --from: the block.")] = "",
    smem: Annotated[str, typer.Option(metavar="EXPR", help="With --from: bytes of dynamic shared memory.")] = "",
    head_dim: Annotated[int, typer.Option(metavar="N", help="With --from: the only head dimension.")] = 0,
    multiple: Annotated[int, typer.Option(metavar="N", help="With --from: rows and keys are multiples of N.")] = 0,
    *,
    json: JsonOption = None,
) -> int:
    """Write a small attention kernel that passes, its launch, and its test, as a starting point; or, with --from, the
    adapter of a kernel that exists.

    The adapter takes the kernel as it is. What the source does not say is asked for in one message.
    """
    if source is not None:
        if layout not in ("", "nd", *LAYOUTS):
            raise UserError(f"--layout is one of {', '.join(LAYOUTS)} or nd, not {layout!r}")
        name = name or kind or re.sub(r"\W+", "_", source.stem).lower()
        if mask not in ("", "causal", "none"):
            raise UserError(f"--mask is causal or none, not {mask!r}")
        answers = Answers(
            entry, layout, mask, grid, block, smem, _pairs("--arg", arg), _pairs("--buffer", buffer), head_dim, multiple
        )
        return _adapted(source, name, answers, folder or source.parent, json)
    console, folder = console_and_subject(json, name), folder or Path()
    task_flags = "" if task == "forward" else f" --task {task}"
    layout = layout or "dense"
    texts = _texts(kind, name, task, layout)
    paths = _written(texts, folder)
    for path in paths:
        conclude(console, f"wrote  {path}")
    launch, test = (str(folder / file) for file in (f"{name}.py", f"test_{name}.py"))
    further = task_flags + {"varlen": " --layout varlen", "paged": " --layout paged:16"}.get(layout, "")
    console.print(f"judge  sdpalab judge {launch} --shape 1,2,128,64{further}", soft_wrap=True)
    console.print(f"test   pytest {test}", soft_wrap=True)
    write_document(json, {"files": paths, "next": f"sdpalab judge {launch}{further}"}, status="PASSED")
    return 0


def _adapted(source: Path, name: str, answers: Answers, folder: Path, json: str | None) -> int:
    """Write the adapter of a CUDA file."""
    console = console_and_subject(json, name)
    _check_name(name)
    file = os.path.relpath(source.absolute(), folder.absolute())
    text = adapter_text(source, name, answers, file)
    (path,) = _written({f"{name}.py": text}, folder)
    conclude(console, f"wrote  {path}")
    judge = next(line.strip() for line in text.splitlines() if line.strip().startswith("sdpalab judge"))
    command = judge.replace(f"{name}.py", path)
    console.print(f"judge  {command}", soft_wrap=True)
    write_document(json, {"files": [path], "next": command}, status="PASSED")
    return 0


def _pairs(option: str, values: Sequence[str] | None) -> dict[str, str]:
    """``NAME=VALUE`` of a repeated option."""
    pairs = {}
    for value in values or ():
        key, equals, rest = value.partition("=")
        if not equals or not key.isidentifier():
            raise UserError(f"{option} is NAME=VALUE, with the name of a parameter, not {value!r}")
        pairs[key] = rest
    return pairs


def _written(texts: Mapping[str, str], folder: Path) -> list[str]:
    """Write new files; their paths."""
    taken = [str(folder / file) for file in texts if (folder / file).exists()]
    if taken:
        raise UserError(f"new overwrites nothing, and {' and '.join(taken)} exists: choose another NAME or --dir")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--dir {folder}: cannot write: {error.strerror}") from None
    return [str(folder / file) for file in texts]


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
    _check_name(name)
    if importlib.util.find_spec(name) is not None and not Path(f"{name}.py").exists():
        raise UserError(f"there is a Python module {name}, which a file {name}.py would hide: choose another NAME")
    templates = sorted(templates_of.iterdir(), key=lambda path: (path.stem.startswith("test_"), path.name))
    values = {"name": name, "NAME": name.upper()}
    return {
        path.name.removesuffix(".tmpl").replace("kernel", name): Template(path.read_text("utf-8")).substitute(values)
        for path in templates
    }


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UserError(f"NAME is of lower-case letters, digits and _, such as my_attention, not {name!r}")
