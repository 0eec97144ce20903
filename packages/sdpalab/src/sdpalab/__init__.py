"""SDPA Lab: fused attention kernels for NVIDIA GPUs, with tools to build, simulate, judge and measure them.

The names below are the public interface. Each is imported on first use, so ``import sdpalab`` is cheap and needs
neither torch nor a GPU. ``sdpalab.judge`` is the judge's package and also callable: ``sdpalab.judge("flash")``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sdpalab.version import __version__ as __version__

if TYPE_CHECKING:
    from sdpalab import judge, sim
    from sdpalab.errors import MachineError, UserError
    from sdpalab.evaluation import Evaluation, evaluate, judge_many
    from sdpalab.evidence.prove import prove
    from sdpalab.evidence.repro import repro
    from sdpalab.judge.verdict import Case, Status, Verdict
    from sdpalab.kernels.kernel import (
        Config,
        CudaKernel,
        Kernel,
        Numerics,
        Quantisation,
        StaticLimits,
        UnsupportedProblem,
    )
    from sdpalab.kernels.layouts import laid_out
    from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan, Module, TiledMap
    from sdpalab.kernels.triton_kernel import TritonKernel
    from sdpalab.problem import MISSION, NAMED_PROBLEMS, TWELVE_CASES, Problem
    from sdpalab.search.tuning import TuneResult, tune
    from sdpalab.torch_api.explaining import Explanation, explain, explain_call, prepare
    from sdpalab.torch_api.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
    from sdpalab.torch_api.kernels import reload_proofs
    from sdpalab.torch_api.lse import attention_with_lse
    from sdpalab.torch_api.mode import no_fallback
    from sdpalab.torch_api.ops import scaled_dot_product_attention
    from sdpalab.torch_api.recording import record_calls
    from sdpalab.torch_api.simulating import on_simulator

__all__ = [
    "MISSION",
    "NAMED_PROBLEMS",
    "TWELVE_CASES",
    "Buffer",
    "Case",
    "Config",
    "CudaKernel",
    "Evaluation",
    "Explanation",
    "Kernel",
    "Launch",
    "LaunchPlan",
    "MachineError",
    "Module",
    "Numerics",
    "Problem",
    "Quantisation",
    "StaticLimits",
    "Status",
    "TiledMap",
    "TritonKernel",
    "TuneResult",
    "UnsupportedProblem",
    "UserError",
    "Verdict",
    "attention_with_lse",
    "evaluate",
    "explain",
    "explain_call",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "judge",
    "judge_many",
    "laid_out",
    "no_fallback",
    "on_simulator",
    "prepare",
    "prove",
    "record_calls",
    "reload_proofs",
    "repro",
    "scaled_dot_product_attention",
    "sim",
    "tune",
]

_PACKAGES = ("judge", "sim")
_HOME = {
    "sdpalab.evidence.prove": ("prove",),
    "sdpalab.evidence.repro": ("repro",),
    "sdpalab.evaluation": ("Evaluation", "evaluate", "judge_many"),
    "sdpalab.errors": ("MachineError", "UserError"),
    "sdpalab.judge.verdict": ("Case", "Status", "Verdict"),
    "sdpalab.kernels.kernel": (
        "Config",
        "CudaKernel",
        "Kernel",
        "Numerics",
        "Quantisation",
        "StaticLimits",
        "UnsupportedProblem",
    ),
    "sdpalab.kernels.layouts": ("laid_out",),
    "sdpalab.kernels.plan": ("Buffer", "Launch", "LaunchPlan", "Module", "TiledMap"),
    "sdpalab.kernels.triton_kernel": ("TritonKernel",),
    "sdpalab.problem": ("MISSION", "NAMED_PROBLEMS", "TWELVE_CASES", "Problem"),
    "sdpalab.search.tuning": ("TuneResult", "tune"),
    "sdpalab.torch_api.explaining": ("Explanation", "explain", "explain_call", "prepare"),
    "sdpalab.torch_api.flash_attn": ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"),
    "sdpalab.torch_api.kernels": ("reload_proofs",),
    "sdpalab.torch_api.lse": ("attention_with_lse",),
    "sdpalab.torch_api.mode": ("no_fallback",),
    "sdpalab.torch_api.ops": ("scaled_dot_product_attention",),
    "sdpalab.torch_api.recording": ("record_calls",),
    "sdpalab.torch_api.simulating": ("on_simulator",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it, on first use (PEP 562)."""
    if name in _PACKAGES:
        return import_module(f"sdpalab.{name}")
    if name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'sdpalab' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Public names, including those not imported yet."""
    return sorted([*globals(), *__all__])
