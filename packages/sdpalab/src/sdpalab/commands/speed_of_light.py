"""``sdpalab speed-of-light``: the least time of a problem on a GPU, and whether a target is possible.

An impossible target is a result, not a failure: the exit status is 0.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from sdpalab.commands.problem_options import ProblemOptions, problem_of
from sdpalab.errors import UserError
from sdpalab.measure import GPUS, PUBLISHED_MISSION_US, Gpu, binding_floor, feasibility, floors, gpu_named
from sdpalab.problem import HALF_DTYPES, MISSION, Problem
from warpsan.terminal.console import verdict_text
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption
from warpsan.terminal.tables import show_table, table

__all__ = ["speed_of_light"]

_RESOURCES = ("tensor", "exp", "l2", "dram", "launch")
_UNITS_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
_QUANTITY = re.compile(r"\s*<?\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-z]+)\s*")


def speed_of_light(
    shape: Annotated[str, typer.Option(metavar="B,H,S,D", help="The problem, or its name.")] = "mission",
    gpu: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"{', '.join(GPUS)}; may be repeated. Default: all of them, in brief."),
    ] = None,
    *,
    described: ProblemOptions,
    precision: Annotated[
        str, typer.Option(metavar="P", help="Precision of both products: fp16 (or bfloat16), fp8.")
    ] = "fp16",
    target: Annotated[
        str | None, typer.Option(metavar="TIME|RATIO", help="A target time: 5us, or 15x as fast as --peer.")
    ] = None,
    peer: Annotated[str | None, typer.Option(metavar="TIME", help="The base of a ratio, such as 25.9us.")] = None,
    json: JsonOption = None,
) -> int:
    """Print the least time of a problem on a GPU, resource by resource, and whether a target is possible."""
    console = console_and_subject(json, shape)
    problem = problem_of(shape, described)
    if problem.dtype not in HALF_DTYPES:
        raise UserError(f"speed-of-light has rates of products in 16 and 8 bits alone, not in {problem.dtype}")
    target_us = _target_us(target, peer)
    gpus = list(dict.fromkeys(gpu_named(name) for name in gpu or ()))
    shown = gpus or [one for one in GPUS.values() if precision != "fp8" or one.fp8_tflops is not None]
    by_gpu = [_facts(one, problem, precision, target_us) for one in shown]
    console.print(f"{problem.label}, {precision} products: the least time of any kernel")
    if gpus:
        for facts in by_gpu:
            _print_one(console, facts, problem)
    else:
        _print_all(console, by_gpu, target_us)
    write_document(
        json,
        {"problem": problem.to_dict(), "precision": precision, "target_us": target_us, "gpus": by_gpu},
        status="PASSED",
    )
    return 0


def _target_us(target: str | None, peer: str | None) -> float | None:
    """The target in microseconds; raises UserError if it is neither a time nor a ratio with a peer's time."""
    if target is None:
        if peer is not None:
            raise UserError("--peer is the base of a --target such as 15x, and there is no --target")
        return None
    value, unit = _quantity(target)
    if unit == "x":
        if peer is None:
            raise UserError(f"--target {target} is a ratio and needs its base, such as --peer 25.9us")
        return _time_us(peer, "--peer") / value
    if peer is not None:
        raise UserError(f"--peer is for a ratio such as --target 15x, and --target {target} is none")
    return _time_us(target, "--target")


def _time_us(text: str, option: str) -> float:
    value, unit = _quantity(text)
    if unit not in _UNITS_US:
        example = "a time such as 5us or a ratio such as 15x" if option == "--target" else "a time such as 25.9us"
        raise UserError(f"{option} takes {example} (units: {', '.join(_UNITS_US)}), not {text!r}")
    return value * _UNITS_US[unit]


def _quantity(text: str) -> tuple[float, str]:
    """A positive number and its unit; 0 and an empty unit for other texts."""
    match = _QUANTITY.fullmatch(text)
    value = float(match[1]) if match else 0.0
    return (value, match[2]) if match and 0 < value < math.inf else (0.0, "")


def _facts(gpu: Gpu, problem: Problem, precision: str, target_us: float | None) -> dict[str, Any]:
    """The facts about one GPU, as plain JSON values."""
    facts: dict[str, Any] = {
        "gpu": gpu.name,
        "floors": [asdict(floor) for floor in floors(problem, gpu, precision=precision)],
        "binds": {
            name: binding_floor(problem, gpu, precision=precision, cold=cold).resource
            for name, cold in (("cold", True), ("warm", False))
        },
        "unverified": list(gpu.unverified),
        "source": gpu.source,
    }
    if target_us is not None:
        facts["target"] = {
            name: asdict(feasibility(target_us, problem, gpu, precision=precision, cold=cold))
            for name, cold in (("warm", False), ("cold", True))
        }
    return facts


def _print_one(console: Console, facts: dict[str, Any], problem: Problem) -> None:
    """Print every floor with its calculation, the binding one, the target, and published times of peers."""
    shown = table(facts["gpu"], ("floor", "us", "kind", "how"), numeric=("us",), prose=("how",))
    for floor in facts["floors"]:
        kind = floor["kind"] if floor["verified"] else f"{floor['kind']}, unverified"
        shown.add_row(floor["resource"], f"{floor['microseconds']:.2f}", kind, floor["how"])
    console.print()
    show_table(console, shown)
    cold, warm = facts["binds"]["cold"], facts["binds"]["warm"]
    console.print(f"from cold DRAM {cold} binds, from a warm L2 {warm}", soft_wrap=True)
    for answer in facts.get("target", {}).values():
        console.print(verdict_text(answer["possible"], answer["sentence"]), soft_wrap=True)
    if problem == MISSION:
        for name, microseconds in PUBLISHED_MISSION_US.get(facts["gpu"], {}).items():
            console.print(f"published: {name} takes {microseconds:g} us (not measured here)", soft_wrap=True)
    console.print(f"source: {facts['source']}", soft_wrap=True)


def _print_all(console: Console, by_gpu: list[dict[str, Any]], target_us: float | None) -> None:
    """Print one row per GPU."""
    asked = () if target_us is None else (f"{target_us:.3g} us possible",)
    spare = ("launch", "binds warm", "binds cold")
    shown = table(
        "Floors in us", ("GPU", *_RESOURCES, "binds cold", "binds warm", *asked), numeric=_RESOURCES, spare=spare
    )
    for facts in by_gpu:
        by_name = {floor["resource"]: floor for floor in facts["floors"]}
        cells = [_cell(by_name.get(name)) for name in _RESOURCES]
        answers = [_possible(facts["target"])] if asked else []
        shown.add_row(facts["gpu"], *cells, facts["binds"]["cold"], facts["binds"]["warm"], *answers)
    console.print()
    show_table(console, shown)
    console.print(
        "? rests on a figure that no second source confirms; dram is from cold; --gpu NAME shows the arithmetic"
    )


def _cell(floor: dict[str, Any] | None) -> str:
    if floor is None:
        return ""
    return f"{floor['microseconds']:.2f}{'' if floor['verified'] else '?'}"


def _possible(target: dict[str, Any]) -> Text:
    if target["cold"]["possible"]:
        return verdict_text(True, "not ruled out")
    return verdict_text(None, "from a warm L2 only") if target["warm"]["possible"] else verdict_text(False, "no")
