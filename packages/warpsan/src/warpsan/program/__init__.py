"""Unmodified programs on the simulator: CUDA programs, and Python programs with Triton kernels.

A CUDA program links the shared CUDA runtime; at run time it loads a replacement (``cudart.c``), which sends every call
to this process through a socket. Device memory is shared. Modules are the PTX of the program's fat binaries.

A Python program runs in a process with the simulator as Triton's GPU (``triton_driver.py``), on CPU tensors
(``cpu_tensors.py``).
"""

from warpsan.program.options import RunOptions
from warpsan.program.outcome import ProgramOutcome
from warpsan.program.session import run_program

__all__ = ["ProgramOutcome", "RunOptions", "run_program"]
