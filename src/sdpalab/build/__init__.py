"""Source and configuration to PTX and cubin: NVRTC, a content-keyed cache, resources, occupancy, SASS, the static gate."""

from sdpalab.build.builder import DEFAULT_ARCH, Build, build
from sdpalab.build.cache import Cache
from sdpalab.build.headers import cuda_include_dirs
from sdpalab.build.nvrtc import BuildError, check_arch, compiler_version, supported_archs

__all__ = [
    "DEFAULT_ARCH",
    "Build",
    "BuildError",
    "Cache",
    "build",
    "check_arch",
    "compiler_version",
    "cuda_include_dirs",
    "supported_archs",
]
