"""Options that several commands share, defined once, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from glob import escape, glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from sdpalab.errors import UserError
from sdpalab.problem import NAMED_PROBLEMS, Problem, ProblemError, parse_lengths, parse_shape, parse_window
from sdpalab.sim import NUMERICS

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdpalab.jobs import Executor

__all__ = [
    "KERNEL_HELP",
    "PROBLEM_OPTIONS",
    "AddressOption",
    "AlibiOption",
    "ArchOption",
    "AttnMaskOption",
    "CausalOption",
    "DtypeOption",
    "ExecutorOption",
    "IncludeOption",
    "JsonOption",
    "KernelArgument",
    "KvHeadsOption",
    "KvLengthsOption",
    "LevelOption",
    "MaxStepsOption",
    "NumericsOption",
    "ProblemOptions",
    "SeedOption",
    "SeqKvOption",
    "SetOption",
    "SinksOption",
    "SoftcapOption",
    "WindowOption",
    "WorkersOption",
    "at_least",
    "checked_numerics",
    "complete_kernel",
    "executor_of",
    "include_dirs_of",
    "parse_settings",
    "problem_of",
    "problems_of",
    "shapes",
]

PROBLEM_OPTIONS = "--dtype, --causal, --kv-heads and --seq-kv"
KERNEL_HELP = "A shipped kernel's name, or your own as FILE.py or FILE.py:NAME."


def complete_kernel(incomplete: str) -> list[str]:
    """Shipped kernels and Python files that begin so, for the completion of a shell."""
    from sdpalab.kernels.registry import KERNELS

    files = sorted(glob(f"{escape(incomplete)}*.py")) + sorted(glob(f"{escape(incomplete)}*/"))
    return [name for name in KERNELS if name.startswith(incomplete)] + files


KernelArgument = Annotated[str, typer.Argument(metavar="KERNEL", help=KERNEL_HELP, autocompletion=complete_kernel)]
JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON too; - is standard output.")
]
DtypeOption = Annotated[str | None, typer.Option(metavar="T", help="float16, bfloat16 or float32.")]
CausalOption = Annotated[bool, typer.Option("--causal", help="Query i sees keys 0 to i.")]
KvHeadsOption = Annotated[
    int | None,
    typer.Option("--kv-heads", metavar="N", help="Heads of K and V of the shape given. Default: those of Q."),
]
SeqKvOption = Annotated[
    int | None, typer.Option("--seq-kv", metavar="N", help="Length of K and V of the shape given. Default: that of Q.")
]
WindowOption = Annotated[
    str | None,
    typer.Option("--window", metavar="L,R", help="Query i sees keys i-L to i+R of the shape given; -1: no bound."),
]
SoftcapOption = Annotated[
    float | None,
    typer.Option("--softcap", metavar="X", help="Scores s of the shape given become X tanh(s/X)."),
]
KvLengthsOption = Annotated[
    str | None,
    typer.Option("--kv-lengths", metavar="N,N,...", help="Valid keys of each batch entry of the shape given."),
]
AttnMaskOption = Annotated[
    str | None,
    typer.Option("--attn-mask", metavar="M", help="bool or float, and what is not broadcast: bool:B,1, float:1,H."),
]
AlibiOption = Annotated[
    bool, typer.Option("--alibi-slopes", help="A slope a head times |i - j| is subtracted from the scores.")
]
SinksOption = Annotated[bool, typer.Option("--sinks", help="A logit a head joins the sum of the weights.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a knob of the kernel; may be repeated.")
]
ArchOption = Annotated[
    str | None,
    typer.Option(metavar="ARCH", help="sm_80 to sm_121. Default: sm_89, or the first that the kernel runs on."),
]
IncludeOption = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="DIR", help="A folder with headers for your kernel's source; may be repeated."),
]
LevelOption = Annotated[str, typer.Option(metavar="L", help="quick (a minute) or full (many minutes).")]
SeedOption = Annotated[int, typer.Option(metavar="N", help="Public seed of the inputs for --shape.")]
MaxStepsOption = Annotated[
    int | None,
    typer.Option("--max-steps", metavar="N", help="Steps of one run, above which it counts as an endless loop."),
]
NumericsOption = Annotated[
    str,
    typer.Option(metavar="N", help=f"Rule of the simulator's tensor-core sums: {', '.join(NUMERICS)}."),
]
ExecutorOption = Annotated[
    str,
    typer.Option("--executor", metavar="E", help="Where the jobs run: local (processes of this machine) or ray."),
]
AddressOption = Annotated[
    str | None, typer.Option("--address", metavar="A", help="Of the Ray cluster; with --executor ray.")
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, help="Jobs at a time. Default: one a CPU, or one a GPU.")
]


def executor_of(name: str, address: str | None, workers: int | None) -> AbstractContextManager[Executor]:
    """The executor that these options name, closed in the end."""
    from sdpalab.jobs import executor_named

    return closing(executor_named(name, address=address, workers=workers))


def include_dirs_of(folders: Sequence[str] | None, *kernels: str) -> tuple[Path, ...]:
    """The folders of ``--include``, absolute; they are for those of the kernels that are files.

    Raises
    ------
    UserError
        If one is not a folder, or all kernels are shipped ones.
    """
    from sdpalab.kernels.userfile import is_user_file

    if folders and not any(map(is_user_file, kernels)):
        raise UserError(f"--include is for your own FILE.py, and {', '.join(kernels) or 'a shipped kernel'} is not one")
    for folder in folders or ():
        if not Path(folder).is_dir():
            raise UserError(f"--include takes a folder with headers, and {folder} is none")
    return tuple(Path(folder).absolute() for folder in folders or ())


def shapes(what: str, default: str) -> Any:
    """``--shape``, which may be repeated; ``what`` it is for, and the default."""
    help_text = f"{what}, or a name such as mission; may be repeated. Default: {default}."
    return typer.Option("--shape", metavar="B,H,S,D", help=help_text)


def at_least(option: str, value: int | None, least: int) -> int | None:
    """``value``, unless it is below ``least``: then a UserError with the name of the option."""
    if value is not None and value < least:
        raise UserError(f"{option} takes a number from {least} up, not {value}")
    return value


def checked_numerics(name: str) -> str:
    """The value of ``--numerics``.

    Raises
    ------
    UserError
        If there is no such rule.
    """
    if name not in NUMERICS:
        raise UserError(f"--numerics takes {', '.join(NUMERICS)}, not {name!r}")
    return name


def parse_settings(settings: Sequence[str] | None) -> dict[str, str]:
    """``--set KEY=VALUE`` options as a dict.

    Raises
    ------
    UserError
        If one has no ``=`` or no name, or a name is given twice.
    """
    values: dict[str, str] = {}
    for setting in settings or ():
        name, equals, value = setting.partition("=")
        if not equals or not name or not value:
            raise UserError(f"--set takes KEY=VALUE such as BLOCK_M=64, not {setting!r}")
        if name in values:
            raise UserError(f"--set gives {name} twice")
        values[name] = value
    return values


class ProblemOptions(TypedDict, total=False):
    """The options beside ``--shape``, as they are given."""

    dtype: str | None
    causal: bool
    kv_heads: int | None
    seq_kv: int | None
    window: str | None
    softcap: float | None
    kv_lengths: str | None
    attn_mask: str | None
    alibi_slopes: bool
    sinks: bool


_OF_SHAPE = ("kv_heads", "seq_kv", "window", "softcap", "kv_lengths", "attn_mask", "alibi_slopes", "sinks")
"""Options that the default problems do not take."""


def _is_given(value: object) -> bool:
    """Whether an option was given: a number of 0 was."""
    return value is not None and value is not False


def problems_of(
    shapes: Sequence[str] | None, *, default: str | None = "mission", **options: Unpack[ProblemOptions]
) -> list[Problem]:
    """The problems of all ``--shape`` options, with the options beside them; without one that of ``default``.

    Raises
    ------
    ProblemError
        If there is no such problem.
    UserError
        If there is neither a shape nor a default, and an option is given that needs one.
    """
    given = [name for name in _OF_SHAPE if _is_given(options.get(name))]
    if not shapes and default is None and given:
        named = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        verb = "need" if len(given) > 1 else "needs"
        raise UserError(f"{named} {verb} a --shape: the default problems have their own")
    texts = shapes or ([default] if default is not None else [])
    return [problem_of(text, **options) for text in texts]


def problem_of(text: str, **options: Unpack[ProblemOptions]) -> Problem:
    """The problem that ``--shape`` and the options beside it describe.

    Parameters
    ----------
    text : str
        ``B,H,S,D``, or a name of :data:`sdpalab.problem.NAMED_PROBLEMS`.
    **options
        Where given, they replace what the named problem or the default has.

    Raises
    ------
    ProblemError
        If there is no such problem.
    """
    changes: dict[str, Any] = {name: value for name, value in options.items() if _is_given(value)}
    if "window" in changes:
        changes["window_size"] = parse_window(changes.pop("window"))
    if "kv_lengths" in changes:
        changes["kv_lengths"] = parse_lengths(changes["kv_lengths"])
    if text in NAMED_PROBLEMS:
        return NAMED_PROBLEMS[text].with_(**changes)
    if "," not in text and not text.lstrip("-").isdigit():
        raise ProblemError(
            f"--shape {text!r} is neither B,H,S,D such as 1,8,512,64 nor one of {', '.join(NAMED_PROBLEMS)}"
        )
    return Problem(*parse_shape(text), **changes)
