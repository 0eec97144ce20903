"""Extensions of torch in CUDA C++ (``torch.utils.cpp_extension``), on the simulator and on CPU tensors.

The machine's C++ compiler compiles the host code (:mod:`.host_text`) against headers that stand in for torch and the
CUDA runtime (``include/``), and NVRTC compiles each kernel at its first launch. Pointers of tensors are addresses of
the simulated device, so host code cannot read them, as on a GPU.
"""

from warpsan.program.extension.gpu import ExtensionGpu, extensions_of_process, install_extensions

__all__ = ["ExtensionGpu", "extensions_of_process", "install_extensions"]
