"""Unmodified programs on the simulator: CUDA programs, and Python programs with Triton kernels.

A CUDA program links the shared CUDA runtime; at run time it loads a replacement (``cudart.c``), which sends every call
to this process through a socket. Device memory is shared. Modules are the PTX of the program's fat binaries.

A Python program runs in a process with the simulator as Triton's GPU (``triton_driver.py``), on CPU tensors
(``cpu_tensors.py``). Extensions of torch (``extension/``) run there, too.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpsan.program.cpu_tensors import CpuTensors as CpuTensors
    from warpsan.program.extension import ExtensionGpu as ExtensionGpu
    from warpsan.program.extension import extensions_of_process as extensions_of_process
    from warpsan.program.extension import install_extensions as install_extensions
    from warpsan.program.options import RunOptions as RunOptions
    from warpsan.program.outcome import ProgramOutcome as ProgramOutcome
    from warpsan.program.session import run_program as run_program
    from warpsan.program.triton_gpu import TritonGpu as TritonGpu
else:
    from warpsan.exports import exports

    __getattr__, __all__ = exports(
        {
            "warpsan.program.cpu_tensors": ["CpuTensors"],
            "warpsan.program.extension": ["ExtensionGpu", "extensions_of_process", "install_extensions"],
            "warpsan.program.options": ["RunOptions"],
            "warpsan.program.outcome": ["ProgramOutcome"],
            "warpsan.program.session": ["run_program"],
            "warpsan.program.triton_gpu": ["TritonGpu"],
        }
    )
