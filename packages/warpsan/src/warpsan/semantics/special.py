"""Roots, reciprocals, exponentials and related instructions (PTX ISA, "Floating Point Instructions": rcp, sqrt, rsqrt,
ex2, lg2, sin, ...).

Approximations in f32 are those of the hardware (:mod:`.mufu`), except for tanh. In f16, bf16 and f64 they are the
function in f32, or the exact result, rounded: a GPU may differ from it within the bound in PTX.
"""

from __future__ import annotations

from collections.abc import Callable

from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import Lanes, where
from warpsan.engine.numeric import narrowed, round_to, widened
from warpsan.numerics.float_formats import FORMATS
from warpsan.ptx.grammar import Computation
from warpsan.ptx.ir import Instruction
from warpsan.semantics.floating import Compute, base_of, clamped, is_half
from warpsan.semantics.mufu import APPROXIMATIONS

__all__: list[str] = []


def _approximated(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """An approximation in f32, or in halves, which are widened and rounded."""
    name, type_, ftz = form.name, form.type, "ftz" in form.flags
    function, base, half = APPROXIMATIONS[name], base_of(type_), is_half(type_)

    def compute(x: Lanes) -> Lanes:
        if half:
            return narrowed(function(widened(x, base), False), base)
        return function(x, ftz)

    title = f"{name}.approx{'.ftz' * ftz}.{type_.name}"
    asm.elementwise(instruction, title, clamped(compute, type_, ftz=ftz), *[type_.name] * 2)


@native("ex2", "lg2", "sin", "cos", "tanh")
def _transcendental(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    _approximated(asm, instruction, form)


def _algebraic(name: str) -> tuple[Compute, Compute]:
    """rcp, sqrt or rsqrt in the argument's type; and in f64, before rounding."""
    functions: dict[str, tuple[Compute, Compute]] = {
        "rcp": (lambda x: x.like(1) / x, lambda x: x.like(1) / x),
        "sqrt": (lambda x: x.call("sqrt"), lambda x: x.call("sqrt")),
        "rsqrt": (lambda x: (x.to("f64").like(1) / x.to("f64").call("sqrt")).to(x.type), lambda x: x),
    }
    return functions[name]


def _of_upper_words(compute: Compute) -> Compute:
    """``.approx.ftz.f64``: only the upper 32 bits of the argument and of the result are used (PTX ISA, "rcp")."""
    upper = 0xFFFFFFFF << 32

    def run(x: Lanes) -> Lanes:
        result = compute(where(x.nan, x, (x.as_type("u64") & upper).as_type("f64")))
        return ((result.as_type("u64") + (1 << 31)) & upper).as_type("f64")

    return run


@native("rcp", "sqrt", "rsqrt")
def _root(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    name, rounding, type_, ftz = form.name, form.modes[0], form.type, "ftz" in form.flags
    upper = rounding == "approx" and ftz and type_.name == "f64"
    if rounding == "approx" and type_.name == "f32":
        _approximated(asm, instruction, form)
        return
    exact, wide = _algebraic(name)
    compute: Callable[..., Lanes] = _of_upper_words(exact) if upper else exact
    if rounding not in ("approx", "rn"):
        compute = lambda x: round_to(wide(x.to("f64")), FORMATS["f32"], rounding).to("f32")  # noqa: E731
    title = f"{name}.{rounding}{'.ftz' * ftz}.{type_.name}"
    asm.elementwise(instruction, title, clamped(compute, type_, ftz=ftz), *[type_.name] * 2)
