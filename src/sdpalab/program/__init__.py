"""Programs as they are: a CUDA program runs unmodified, its kernels on the simulator.

The program is linked with the shared CUDA runtime, in whose place it loads a stand-in (``cudart.c``). That hands every
call to this process through a socket; device memory is shared. Modules come as PTX from the program's fat binaries.
"""

from sdpalab.program.options import RunOptions
from sdpalab.program.session import ProgramOutcome, run_program

__all__ = ["ProgramOutcome", "RunOptions", "run_program"]
