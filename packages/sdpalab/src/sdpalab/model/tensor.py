"""Matrix instructions of machine code: their FLOPs, and the type of their operands."""

from __future__ import annotations

import re

from sdpalab.compile.sass import TENSOR_CLASSES, SassInstruction, classify
from sdpalab.errors import UserError

__all__ = ["is_tensor", "sass_flops", "sass_precision"]

_SHAPE = re.compile(r"\.(?:(\d+)x(\d+)x(\d+)|(16)(8)(4|8|16|32|64|128|256))(?=\.|$)")


def is_tensor(instruction: SassInstruction) -> bool:
    """Whether the instruction runs on the tensor cores."""
    return classify(instruction.opcode) in TENSOR_CLASSES


def sass_precision(instruction: SassInstruction) -> str:
    """``fp8`` for QMMA and QGMMA, otherwise ``fp16``."""
    return "fp8" if instruction.base.startswith("Q") else "fp16"


def sass_flops(instruction: SassInstruction) -> int:
    """FLOPs of one warp's execution: ``HMMA.16816`` is m16n8k16; ``GMMA`` names the shape of a warpgroup, 4 warps.

    Raises
    ------
    UserError
        If the name lacks the shape.
    """
    shape = _SHAPE.search(instruction.opcode)
    if shape is None:
        raise UserError(f"the shape of {instruction.opcode} is not known")
    m, n, k = (int(number) for number in shape.groups() if number)
    return 2 * m * n * k // (4 if "GMMA" in instruction.base else 1)
