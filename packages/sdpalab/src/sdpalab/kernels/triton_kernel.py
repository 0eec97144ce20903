"""The interface of a Triton kernel: compiled ahead of time, launched and judged like a CUDA kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any

from sdpalab.errors import UserError
from sdpalab.kernels.kernel import (
    Config,
    Kernel,
    Knob,
    Numerics,
    StaticLimits,
    Supports,
    UnsupportedProblem,
    check_features,
    feature_constants,
    supports_all,
)
from sdpalab.kernels.plan import Dim3, Launch, LaunchPlan, TritonModule, problem_buffers
from sdpalab.problem import ARRAYS, Problem

__all__ = ["HOW_TO_DESCRIBE", "TritonKernel", "bare_triton_reason"]

HOW_TO_DESCRIBE = "sdpalab new triton NAME writes an example"

_OPTIONS = ("num_warps", "num_stages", "maxnreg")
"""Knobs that are Triton's own compile options; all other knobs are ``constexpr`` parameters."""

_WARPS = 4
"""Warps of a block without that knob: Triton's default."""

_TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "uint8": "u8", "int32": "i32"}
"""Triton's names of the element types of buffers."""

Argument = str | int | float


@dataclass(frozen=True)
class TritonKernel(Kernel):
    """A ``@triton.jit`` function with the Python that launches it.

    Parameters
    ----------
    name : str
        Name of the kernel in tables and records.
    fn : triton.JITFunction
        The kernel; for ``@triton.autotune`` pass the plain function, and its configurations as ``configs``.
    grid : callable
        ``grid(problem, config) -> (x, y, z)``, up to three numbers.
    args : callable
        ``args(problem, config)``: one argument for each parameter that is not ``constexpr``, in order. A str is the
        address of that buffer (``q k v o``, contiguous [B, H, S, D] in the problem's dtype); an int is an ``i32``, or
        an ``i64`` if it does not fit; a float is an ``fp32``.
    configs : sequence of mapping
        Supported configurations; the first is the default. A knob is a ``constexpr`` parameter, or one of Triton's
        options ``num_warps``, ``num_stages`` and ``maxnreg``.
    supports, reject, numerics, limits, min_arch, only_arch, knobs, lse, features, idea
        As for :class:`~sdpalab.kernels.kernel.CudaKernel`.

    Notes
    -----
    The lab sets ``constexpr`` parameters called ``HEAD_DIM`` (int), ``CAUSAL``, ``DTYPE_BF16`` and ``DTYPE_FLOAT32``
    (bool); for its ``features`` also ``WINDOW_LEFT`` and ``WINDOW_RIGHT`` (int), ``SOFTCAP`` (float),
    and the other macros of CudaKernel (int).

    Pointers are declared as multiples of 16, which every allocation is. Integers are not specialised by value, so one
    compilation serves all lengths. (Triton's own launcher does both.)
    """

    name: str
    fn: Any
    grid: Callable[[Problem, Config], Sequence[int]]
    args: Callable[[Problem, Config], Sequence[Argument]]
    configs: Sequence[Mapping[str, Knob]] = ({},)
    supports: Supports = supports_all
    reject: Callable[[Problem, Config], str | None] = lambda problem, config: None
    numerics: Numerics | Callable[[Config], Numerics] = field(default_factory=Numerics)
    limits: StaticLimits | Callable[[Problem], StaticLimits] = field(default_factory=StaticLimits)
    min_arch: int = 80
    only_arch: str = ""
    knobs: Mapping[str, Sequence[Knob]] = field(default_factory=dict)
    lse: bool = False
    features: Collection[str] = ()
    idea: str = ""
    takes: InitVar[Collection[str]] = ()
    """Former name of ``features``."""

    def __post_init__(self, takes: Collection[str]) -> None:
        if takes:
            object.__setattr__(self, "features", takes if isinstance(takes, str) else (*self.features, *takes))
        if not hasattr(self.fn, "params"):  # objects of @triton.autotune and of the interpreter have none
            inner = ": give its .fn, and its configurations as configs" if hasattr(self.fn, "fn") else ""
            raise UserError(
                f"kernel {self.name!r}: fn must be a function under @triton.jit, not {_described(self.fn)}{inner}"
            )
        if not self.configs:
            raise UserError(f"kernel {self.name!r}: configs must hold at least one configuration, such as {{}}")
        check_features(self.name, self.features, lse=self.lse)

    @property
    def folder(self) -> Path | None:
        """Folder of the function's file."""
        path = inspect.getsourcefile(self.fn.fn)
        return Path(path).parent if path else None

    def _plan(self, problem: Problem, config: Config) -> LaunchPlan:
        args = tuple(self.args(problem, config))
        warps = config.int("num_warps") if "num_warps" in config else _WARPS
        step = Launch(
            grid=self._grid(problem, config),
            block=(32 * warps, 1, 1),
            args=args,
            module=self.module(problem, config, args),
        )
        return LaunchPlan(problem_buffers(problem, lse=self.lse), (step,))

    def module(self, problem: Problem, config: Config, args: Sequence[Argument]) -> TritonModule:
        """The function with types for its parameters, taken from ``args``, and values for its constants.

        Raises
        ------
        UnsupportedProblem
            If a knob is neither a ``constexpr`` parameter nor an option, a ``constexpr`` has no value, or there are
            more or fewer arguments than parameters.
        """
        constexprs = {name for param, name in zip(self.fn.params, self.fn.arg_names, strict=True) if param.is_constexpr}
        options = {name: config.int(name) for name in _OPTIONS if name in config}
        options.setdefault("num_warps", _WARPS)
        for name in config:
            if name not in constexprs and name not in _OPTIONS:
                raise UnsupportedProblem(
                    f"kernel {self.name}: knob {name} is neither a constexpr parameter of {self.fn.__name__} "
                    f"nor one of {', '.join(_OPTIONS)}"
                )
        runtime = [name for name in self.fn.arg_names if name not in constexprs]
        if len(args) != len(runtime):
            raise UnsupportedProblem(
                f"kernel {self.name}: args gives {len(args)} arguments, and {self.fn.__name__} takes {len(runtime)}: "
                f"{', '.join(runtime)}"
            )
        types = {name: self._type(name, value, problem) for name, value in zip(runtime, args, strict=True)}
        path = Path(inspect.getsourcefile(self.fn.fn) or f"{self.name}.py")
        return TritonModule(
            name=path.name,
            source=path.read_text() if path.is_file() else str(self.fn.src),
            fn=self.fn,
            signature={name: types.get(name, "constexpr") for name in self.fn.arg_names},
            constants={name: self._constant(name, problem, config) for name in self.fn.arg_names if name in constexprs},
            options=options,
        )

    def _grid(self, problem: Problem, config: Config) -> Dim3:
        given = tuple(self.grid(problem, config))
        if not 1 <= len(given) <= 3 or not all(isinstance(size, int) and size > 0 for size in given):
            raise UnsupportedProblem(f"kernel {self.name}: grid gives {given}, not one to three positive integers")
        x, y, z = (*given, 1, 1)[:3]
        return x, y, z

    def _constant(self, name: str, problem: Problem, config: Config) -> int | float | str | bool:
        traits = {
            "HEAD_DIM": problem.head_dim,
            "CAUSAL": problem.causal,
            "DTYPE_BF16": problem.dtype == "bfloat16",
            "DTYPE_FLOAT32": problem.dtype == "float32",
            **feature_constants(problem, self.features),
        }
        values = {**traits, **config}
        if name in values:
            return values[name]
        parameter = self.fn.signature.parameters[name]
        if parameter.default is inspect.Parameter.empty:
            raise UnsupportedProblem(f"kernel {self.name}: constexpr {name} of {self.fn.__name__} is given by no knob")
        default: int | float | str | bool = parameter.default
        return default

    def _type(self, name: str, value: Argument, problem: Problem) -> str:
        if isinstance(value, str):
            absent = {name: "int32" if name == "kv_lengths" else "float32" for name in ARRAYS if name in self.features}
            known = absent | {buffer.name: buffer.dtype for buffer in problem_buffers(problem, lse=self.lse)}
            if value not in known:
                raise UnsupportedProblem(
                    f"kernel {self.name}: argument {name} is the buffer {value!r}, and there are {', '.join(known)}"
                )
            return f"*{_TYPES[known[value]]}"
        if isinstance(value, float):
            return "fp32"
        return "i32" if -(2**31) <= value < 2**31 else "i64"


def _described(value: object) -> str:
    """A description of another value for messages: Triton's wrappers by their type."""
    return f"the plain function {value.__name__}" if inspect.isfunction(value) else f"of type {type(value).__name__}"


def bare_triton_reason(value: object) -> str | None:
    """Reason why a ``@triton.jit`` function, or a decorator's wrapper of one, is not a kernel yet, and the code to
    write; None for any other object. Triton is not imported."""
    depth, function = 0, value
    while _is_triton(function) and _is_triton(getattr(function, "fn", None)):
        depth, function = depth + 1, function.fn  # type: ignore[attr-defined]
    if not _is_triton(value):
        return None
    name = str(getattr(function, "__name__", "fn"))
    return (
        f"{name} is a Triton function without a launch: define a TritonKernel with fn={name}{'.fn' * depth}, its grid "
        f"and its args; {HOW_TO_DESCRIBE}"
    )


def _is_triton(value: object) -> bool:
    return type(value).__module__.startswith("triton.runtime.")
