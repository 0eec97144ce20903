"""The process that ncu profiles: one run of a kernel's plan between ``cuProfilerStart`` and ``cuProfilerStop``.

``python -m sdpalab.profile.target ORDER``, with the order that :func:`sdpalab.profile.ncu.profile_command` writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sdpalab.inputs import make_inputs
from sdpalab.judge.sandbox.sandboxed import kernel_in_sandbox
from sdpalab.packing import Packing
from sdpalab.problem import Problem

__all__ = ["main"]

WARM_UP = 3


def main(order: str) -> None:
    """Prepare the plan on torch's current GPU, run it a few times, and then once for the profiler."""
    import torch
    from cuda.bindings import driver

    from sdpalab.judge.tensors import buffer_tensors
    from sdpalab.run import GpuExecutor, torch_gpu

    request = json.loads(order)
    problem = Problem(**request["problem"])
    ordinal = torch_gpu.current_ordinal()
    executor = GpuExecutor(ordinal)
    folders = [Path(folder) for folder in request["include_dirs"]]
    with kernel_in_sandbox(
        request["kernel"], arch=executor.arch, else_say="there is nothing to profile", include_dirs=folders
    ) as kernel:
        plan = kernel.launch_plan(problem, kernel.config_with(request["settings"]), sms=executor.sms)
    device = torch_gpu.device(ordinal)
    inputs = make_inputs(problem)
    buffers = {name: tensor.to(device) for name, tensor in buffer_tensors(Packing(problem).pack(inputs.arrays)).items()}
    for buffer in plan.buffers:
        if buffer.name not in buffers:
            buffers[buffer.name] = torch.zeros(buffer.shape, dtype=getattr(torch, buffer.dtype), device=device)
    prepared = executor.prepare(plan, buffers)
    for _ in range(WARM_UP):
        prepared.launch(torch_gpu.stream())
    torch_gpu.synchronize()
    driver.cuProfilerStart()
    prepared.launch(torch_gpu.stream())
    torch_gpu.synchronize()
    driver.cuProfilerStop()


if __name__ == "__main__":
    main(sys.argv[1])
