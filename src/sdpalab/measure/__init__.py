"""What a kernel could cost at best on a GPU: floors by arithmetic, each with its source.

Times measured on hardware will live here too; there are none yet, and nothing in this room pretends to one.
"""

from sdpalab.measure.speed_of_light import (
    GPUS,
    PUBLISHED_MISSION_US,
    Feasibility,
    Floor,
    Gpu,
    binding_floor,
    feasibility,
    floors,
    gpu_named,
)

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
