"""Programs as they are: a CUDA program, or a Python program with Triton's kernels, runs unmodified on the simulator.

A CUDA program is linked with the shared CUDA runtime, in whose place it loads a stand-in (``cudart.c``). That hands
every call to this process through a socket; device memory is shared. Modules come as PTX from the program's fat
binaries.

A Python program runs in a process in which the simulator is Triton's GPU (``triton_driver.py``), on tensors of the CPU
(``cpu_tensors.py``).
"""

from warpsan.program.options import RunOptions
from warpsan.program.outcome import ProgramOutcome
from warpsan.program.session import run_program

__all__ = ["ProgramOutcome", "RunOptions", "run_program"]
