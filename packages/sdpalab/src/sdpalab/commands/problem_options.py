"""Options besides ``--shape`` that describe a problem: one group for all commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from sdpalab.errors import UserError
from sdpalab.problem import NAMED_PROBLEMS, Problem, ProblemError, parse_lengths, parse_shape, parse_window

__all__ = ["KvHeadsOption", "ProblemOptions", "SeqKvOption", "problem_of", "problems_of"]

KvHeadsOption = Annotated[
    int | None,
    typer.Option("--kv-heads", metavar="N", help="Heads of K and V of the shape given. Default: those of Q."),
]
SeqKvOption = Annotated[
    int | None, typer.Option("--seq-kv", metavar="N", help="Length of K and V of the shape given. Default: that of Q.")
]


@dataclass(frozen=True)
class ProblemOptions:
    """Options besides ``--shape``, in the form of the command line (:mod:`sdpalab.commands.option_groups`)."""

    dtype: Annotated[str | None, typer.Option(metavar="T", help="float16, bfloat16 or float32.")] = None
    causal: Annotated[bool, typer.Option("--causal", help="Query i sees keys 0 to i.")] = False
    kv_heads: KvHeadsOption = None
    seq_kv: SeqKvOption = None
    window: Annotated[
        str | None,
        typer.Option("--window", metavar="L,R", help="Query i sees keys i-L to i+R of the shape given; -1: no bound."),
    ] = None
    softcap: Annotated[
        float | None, typer.Option("--softcap", metavar="X", help="Scores s of the shape given become X tanh(s/X).")
    ] = None
    kv_lengths: Annotated[
        str | None,
        typer.Option("--kv-lengths", metavar="N,N,...", help="Valid keys of each batch entry of the shape given."),
    ] = None
    attn_mask: Annotated[
        str | None,
        typer.Option("--attn-mask", metavar="M", help="bool or float, with the first two axes: bool:B,1, float:1,H."),
    ] = None
    alibi_slopes: Annotated[
        bool, typer.Option("--alibi-slopes", help="A slope a head times |i - j| is subtracted from the scores.")
    ] = False
    sinks: Annotated[bool, typer.Option("--sinks", help="A logit a head joins the sum of the weights.")] = False
    q_lengths: Annotated[
        str | None,
        typer.Option("--q-lengths", metavar="N,N,...", help="Valid queries of each batch entry of the shape given."),
    ] = None
    bottom_right: Annotated[
        bool, typer.Option("--bottom-right", help="Masks and ALiBi are aligned to the last key, as in FlashAttention.")
    ] = False
    head_dim_v: Annotated[
        int | None, typer.Option("--head-dim-v", metavar="N", help="Columns of V and O. Default: head_dim.")
    ] = None
    task: Annotated[
        str | None, typer.Option("--task", metavar="T", help="forward, or backward: dQ, dK and dV for a given dO.")
    ] = None
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout",
            metavar="L",
            help="varlen (cu_seqlens), varlen:gaps (also seqused_k), paged:N (pages of N rows), varlen,paged:N or "
            "paged:N:e4m3.",
        ),
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """Options that were given, by name; a number of 0 counts as given."""
        return {name: value for name, value in vars(self).items() if value is not None and value is not False}


_OF_ANY_PROBLEM = ("dtype", "causal", "task", "layout")
"""Options that also apply to the default problems."""


def problems_of(
    shapes: Sequence[str] | None,
    options: ProblemOptions,
    *,
    default: str | None = "mission",
    gradients: bool = True,
    layouts: bool = True,
) -> list[Problem]:
    """The problems of all ``--shape`` options, with the other options; without a shape those of ``default``.

    Raises
    ------
    ProblemError
        If the problem is impossible.
    UserError
        Without a shape and a default, if an option requires a shape; for ``--task backward`` unless ``gradients``, and
        for a ``--layout`` unless ``layouts``.
    """
    if options.task not in (None, "forward") and not gradients:
        raise UserError(f"this command takes forward problems only, not --task {options.task}: judge takes both")
    if options.layout not in (None, "dense") and not layouts:
        raise UserError(f"this command takes dense problems only, not --layout {options.layout}: judge takes all")
    given = [name for name in options.given if name not in _OF_ANY_PROBLEM]
    if not shapes and default is None and given:
        named = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        verb = "need" if len(given) > 1 else "needs"
        raise UserError(f"{named} {verb} a --shape: the default problems have their own")
    texts = shapes or ([default] if default is not None else [])
    return [problem_of(text, options) for text in texts]


def problem_of(text: str, options: ProblemOptions) -> Problem:
    """The problem that ``--shape`` and the other options describe.

    Parameters
    ----------
    text : str
        ``B,H,S,D``, or a name in :data:`sdpalab.problem.NAMED_PROBLEMS`.
    options : ProblemOptions
        Given options replace values of the named problem or the default.

    Raises
    ------
    ProblemError
        If the problem is impossible.
    """
    changes = options.given
    if "window" in changes:
        changes["window_size"] = parse_window(changes.pop("window"))
    for name in ("kv_lengths", "q_lengths"):
        if name in changes:
            changes[name] = parse_lengths(name, changes[name])
    if text in NAMED_PROBLEMS:
        return NAMED_PROBLEMS[text].with_(**changes)
    if "," not in text and not text.lstrip("-").isdigit():
        raise ProblemError(
            f"--shape {text!r} is neither B,H,S,D such as 1,8,512,64 nor one of {', '.join(NAMED_PROBLEMS)}"
        )
    return Problem(*parse_shape(text), **changes)
