"""The cost of a kernel on a GPU: calculated floors, and measured times with confidence intervals.

Floors need no GPU. Times are in :mod:`~sdpalab.measure.benchmark` (peers and kernels on a GPU),
:mod:`~sdpalab.measure.session` (rounds, checks, stopping) and :mod:`~sdpalab.measure.comparison` (A against B). No time
has been taken on a GPU yet: the statistics are tested on a simulated clock, the session on a CPU, the GPU clocks not.
"""

from sdpalab.measure.speed_of_light import PUBLISHED_MISSION_US, Feasibility, Floor, binding_floor, feasibility, floors
from warpsan.gpus import GPUS, Gpu, gpu_named

__all__ = [
    "GPUS",
    "PUBLISHED_MISSION_US",
    "Feasibility",
    "Floor",
    "Gpu",
    "binding_floor",
    "feasibility",
    "floors",
    "gpu_named",
]
