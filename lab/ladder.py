"""Resources, counts and modelled time of every kernel of the ladder on the mission shape.

The GPUs are an L4 and an H200, and a B200 for kernels that run on neither.

Each kernel is built in its default configuration for each GPU that it runs on, and counted on the simulator; the
modelled time comes from the counts (:mod:`sdpalab.model.modelled` lists its omissions). Nothing runs on a GPU.
``scripts/readme_tables.py --write`` writes the figures into the README.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sdpalab.campaigns.campaign import CampaignResult, Say
from sdpalab.compile import build, disassemble, resources
from sdpalab.compile.sass import SassInstruction, parse
from sdpalab.kernels.kernel import Kernel
from sdpalab.kernels.plan import Gemm, Module
from sdpalab.kernels.registry import KERNELS, get
from sdpalab.measure import Gpu, gpu_named
from sdpalab.model.counted import CountedLaunch, arch_on, count
from sdpalab.model.turn import turn_clocks
from sdpalab.model.worst import TimesByInputs, times_by_inputs
from sdpalab.problem import MISSION, Problem
from warpsan.profile import Counters

__all__ = ["GPUS", "PACKAGES", "run"]

GPUS = ("L4", "H200")
OTHERWISE = "B200"
"""The GPU of the kernels that run on none of these."""
LONG = tuple(Problem(4, 16, 4096, head_dim, causal=causal) for head_dim in (64, 128) for causal in (False, True))
"""Problems with other tiles than the mission shape; the main loops of kernels for one architecture are recorded."""
PACKAGES = ("numpy", "nvidia-cuda-nvdisasm")


def kernel_entry(kernel: Kernel) -> dict[str, Any]:
    """The entry of a kernel: its configuration, and its figures on each GPU that it runs on."""
    names = GPUS if any(arch_on(kernel, gpu_named(name)) for name in GPUS) else (OTHERWISE,)
    on = {gpu.name: _on(kernel, gpu, arch) for gpu in map(gpu_named, names) if (arch := arch_on(kernel, gpu))}
    entry = {"kernel": kernel.name, "idea": kernel.idea, "config": str(kernel.default_config), "on": on}
    loops = [_loop(kernel, problem, name) for name in on for problem in LONG if kernel.only_arch]
    return {**entry, "loops": loops} if loops else entry


def _loop(kernel: Kernel, problem: Problem, name: str) -> dict[str, Any]:
    """The main loop of a long problem on a GPU, compiled only."""
    gpu = gpu_named(name)
    launch = kernel.launch_plan(problem, sms=gpu.sms).launches[-1]
    assert isinstance(launch.module, Module), "the kernels with a main loop to count are CUDA C++"
    arch = arch_on(kernel, gpu)
    assert arch is not None, "it runs on this GPU"
    built = build(launch.module, arch)
    used = resources(built, launch)
    return {
        "problem": problem.to_dict(),
        "label": problem.label,
        "gpu": name,
        "knobs": dict(launch.module.defines),
        "registers": used.registers,
        "spill_bytes": used.spill_bytes,
        "turn": _turn(parse(disassemble(built))[built.entry], problem, gpu),
    }


def _turn(code: Sequence[SassInstruction], problem: Problem, gpu: Gpu) -> dict[str, Any] | None:
    clocks = turn_clocks(code, problem.head_dim, gpu)
    return None if clocks is None else clocks.to_dict()


def _on(kernel: Kernel, gpu: Gpu, arch: str) -> dict[str, Any]:
    counted = count(kernel, MISSION, arch, sms=gpu.sms)
    reason = counted.not_modelled
    times: dict[str, Any] = {"modelled": None, "modelled_cold_us": None, "by_inputs": None, "not_modelled": reason}
    if not reason:
        normal = counted.modelled(gpu)
        times["modelled"] = normal.to_dict()
        times["by_inputs"] = times_by_inputs(normal, kernel, MISSION, gpu, arch).to_dict()
        times["modelled_cold_us"] = counted.modelled(gpu, cold=True).microseconds
    return {
        "arch": arch,
        "sms": gpu.sms,
        "steps": [
            {"product": {**asdict(step), "flops": step.flops}} if isinstance(step, Gemm) else _launch(step, gpu)
            for step in counted.steps
        ],
        "main": counted.steps.index(counted.main),
        **times,
    }


def _launch(step: CountedLaunch, gpu: Gpu) -> dict[str, Any]:
    return {
        "name": step.name,
        "compiler": step.build.compiler,
        "ptx_sha256": step.build.ptx_sha256,
        "resources": step.resources.to_dict(),
        "machine_instructions": step.machine_instructions,
        "turn": _turn(step.code, MISSION, gpu),
        "counters": _totals(step.counters),
    }


def _totals(counters: Counters) -> dict[str, Any]:
    """Totals of the counts of a launch, without the counts by instruction."""
    sums = ("lanes", "warps", "sectors", "ideal_sectors", "wavefronts", "ideal_wavefronts")
    fields = (
        "tensor_flops",
        "exponentials",
        "barriers",
        "compulsory_read_bytes",
        "compulsory_write_bytes",
        "divergence",
    )
    return {
        **{name: counters.total(name) for name in sums},
        **{name: getattr(counters, name) for name in fields},
        "mix": counters.mix(),
        "ctas": len(counters.by_cta),
        "most_of_a_cta": max(counters.by_cta),
        "least_of_a_cta": min(counters.by_cta),
    }


def run(names: Sequence[str], say: Say) -> CampaignResult:
    """Record the named kernels (default: the whole ladder), with a line for each kernel and GPU.

    Raises
    ------
    UserError
        If there is no such kernel.
    MachineError
        If there is no compiler or disassembler.
    """
    kernels = [get(name) for name in names or KERNELS]
    entries = []
    for kernel in kernels:
        entries.append(kernel_entry(kernel))
        for name, on in entries[-1]["on"].items():
            time = on["modelled"]
            line = on["not_modelled"]
            if time:
                worst = TimesByInputs(on["by_inputs"]["times_us"]).sentence
                line = f"modelled {time['microseconds']:8.2f} us, {time['binds']} binds; {worst}"
            say(f"{kernel.name:16} {name:5} {line}")
    content = {
        "kind": "compiled, simulated and modelled",
        "problem": MISSION.to_dict(),
        "gpus": GPUS,
        "kernels": entries,
    }
    return CampaignResult(content, True, f"{len(entries)} kernels recorded")
