"""Text of a candidate's exception, safe to pass on."""

from __future__ import annotations

import os
import traceback

from sdpalab.judge.sandbox.messages import plain

__all__ = ["launches_triton", "raised", "text_of"]


def raised(error: BaseException) -> str:
    """``raised ValueError: text (file.py, line 3)``, with the place of the exception."""
    if isinstance(error, SystemExit):
        return f"called sys.exit({text_of(error)})"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"raised {type(error).__name__}: {text_of(error)[:500]}{where}"


def launches_triton(error: BaseException) -> bool:
    """Whether Triton raised the exception at a launch: there is no GPU, or the tensors are not on one."""
    modules = {frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)}
    return bool(modules & {"triton.runtime.jit", "triton.runtime.driver"})


def text_of(error: BaseException) -> str:
    """The exception's text, which may have any type or size, or raise another exception."""
    try:
        return plain(str(error)) or type(error).__name__
    except BaseException as other:
        return f"nothing: its text {type(other).__name__}"
