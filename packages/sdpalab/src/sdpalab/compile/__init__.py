"""Source and configuration to PTX and cubin: compiler, content-keyed cache, resources, occupancy, static gate."""

from sdpalab.compile.gate import GateResult, Rule, check
from sdpalab.compile.kernel_build import completed
from sdpalab.compile.resources import Resources, resources
from sdpalab.compile.sass import disassemble
from warpsan.build import (
    DEFAULT_ARCH,
    Build,
    BuildError,
    Cache,
    Occupancy,
    SetAside,
    SmLimits,
    build,
    check_arch,
    compiler_version,
    cuda_include_dirs,
    occupancy,
    set_aside,
    sm_limits,
    supported_archs,
)

__all__ = [
    "DEFAULT_ARCH",
    "Build",
    "BuildError",
    "Cache",
    "GateResult",
    "Occupancy",
    "Resources",
    "Rule",
    "SetAside",
    "SmLimits",
    "build",
    "check",
    "check_arch",
    "compiler_version",
    "completed",
    "cuda_include_dirs",
    "disassemble",
    "occupancy",
    "resources",
    "set_aside",
    "sm_limits",
    "supported_archs",
]
