"""CUDA errors returned to the program: numbers, names and texts (CUDA Runtime API, "cudaError")."""

from __future__ import annotations

__all__ = ["ERRORS", "CallError", "error_name", "error_text"]

ERRORS = {
    "cudaErrorInvalidValue": (1, "invalid argument"),
    "cudaErrorMemoryAllocation": (2, "out of memory"),
    "cudaErrorInitializationError": (3, "initialization error"),
    "cudaErrorInvalidConfiguration": (9, "invalid configuration argument"),
    "cudaErrorInvalidSymbol": (13, "invalid device symbol"),
    "cudaErrorInvalidMemcpyDirection": (21, "invalid copy direction for memcpy"),
    "cudaErrorMissingConfiguration": (52, "__global__ function call is not configured"),
    "cudaErrorInvalidDeviceFunction": (98, "invalid device function"),
    "cudaErrorInvalidDevice": (101, "invalid device ordinal"),
    "cudaErrorNoKernelImageForDevice": (209, "no kernel image is available for execution on the device"),
    "cudaErrorInvalidResourceHandle": (400, "invalid resource handle"),
    "cudaErrorIllegalAddress": (700, "an illegal memory access was encountered"),
    "cudaErrorLaunchTimeout": (702, "the launch timed out and was terminated"),
    "cudaErrorAssert": (710, "device-side assert triggered"),
    "cudaErrorLaunchFailure": (719, "unspecified launch failure"),
    "cudaErrorCooperativeLaunchTooLarge": (720, "too many blocks in cooperative launch"),
    "cudaErrorNotSupported": (801, "operation not supported"),
    "cudaErrorUnknown": (999, "unknown error"),
}
"""Error numbers by name."""


class CallError(Exception):
    """Failure of a call.

    Parameters
    ----------
    name : str
        Name in :data:`ERRORS`.
    sentence : str
        Reported sentence with details beyond the error's text; may be empty.
    """

    def __init__(self, name: str, sentence: str = "") -> None:
        super().__init__(sentence or ERRORS[name][1])
        self.status, self.sentence = ERRORS[name][0], sentence


def error_name(number: int) -> str:
    """Name of an error, such as ``cudaErrorInvalidValue``."""
    if number == 0:
        return "cudaSuccess"
    for name, (code, _) in ERRORS.items():
        if code == number:
            return name
    from cuda.bindings import runtime  # import takes about 0.3 s

    try:
        return str(runtime.cudaError_t(number).name)
    except ValueError:
        return "unrecognized error code"


def error_text(number: int) -> str:
    """Result of ``cudaGetErrorString``; the name if the text is unknown."""
    texts = dict(ERRORS.values()) | {0: "no error", 100: "no CUDA-capable device is detected", 600: "device not ready"}
    return texts.get(number) or error_name(number)
