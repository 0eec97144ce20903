"""Process of a Python program: ``python -m warpsan.program.python_host OPTIONS OUTCOME SCRIPT [ARG]...``.

:mod:`warpsan.program.python_program` starts it.
"""

from __future__ import annotations

import pickle
import runpy
import sys
from pathlib import Path

__all__ = ["main"]


def main() -> None:
    """Run the script as ``__main__``, and write the outcome of its launches."""
    import torch

    from warpsan.program.cpu_tensors import CpuTensors, describe_gpu
    from warpsan.program.kernel_launches import KernelLaunches
    from warpsan.program.triton_driver import install

    options_file, outcome, *command = sys.argv[1:]
    options = pickle.loads(Path(options_file).read_bytes())
    run = KernelLaunches(options)
    install(run)
    describe_gpu(options.gpu, options.arch, options.memory)
    if options.fill == "poison":
        torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty then contains NaN
    tensors = CpuTensors()
    tensors.in_backward()
    sys.argv[:] = command
    sys.path[0] = str(Path(command[0]).resolve().parent)
    try:
        with tensors:
            runpy.run_path(command[0], run_name="__main__")
    finally:
        Path(outcome).write_bytes(pickle.dumps(run))


if __name__ == "__main__":
    main()
