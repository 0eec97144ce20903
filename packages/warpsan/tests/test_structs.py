"""Structs in memory: native code and plain Python read and write the same fields."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import translated_structs
from translated_structs import STRUCTS, Pair, Whole
from warpsan.engine.compiler import compile_functions, target_name
from warpsan.engine.library import Library
from warpsan.engine.structs import PtrTo
from warpsan.engine.translate import symbol


def test_fields_lie_one_after_the_other_at_multiples_of_their_size() -> None:
    assert [Whole.offset_of(name) for name in Whole.fields] == [0, 1, 4, 8, 16, 24, 40, 72]
    assert (Whole.byte_size, Pair.byte_size) == (80, 16)
    assert Whole.fields["pair"].kind is Pair
    assert Whole.fields["pairs"].kind == PtrTo(Pair)


@pytest.mark.parametrize("function", STRUCTS, ids=lambda function: function.__name__)
def test_translated_functions_do_to_structs_what_python_does(
    function: Callable[[Whole, int, int], object], tmp_path: Path
) -> None:
    library = Library(*target_name(), root=tmp_path)
    library.load({"": compile_functions((function,), *target_name())}, (symbol(function),))
    native = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(library.address(symbol(function)))
    draw = random.Random(function.__name__)
    memory, further = np.zeros(Whole.byte_size, np.uint8), np.zeros(4 * Pair.byte_size, np.uint8)
    whole = Whole(int(memory.ctypes.data))
    for _ in range(50):
        memory[:], further[:] = (np.frombuffer(draw.randbytes(len(each)), np.uint8) for each in (memory, further))
        whole.pair = Pair(int(further.ctypes.data))
        whole.pairs = translated_structs.pointer_to_pairs(int(further.ctypes.data))
        given = memory.copy(), further.copy()
        first, second = draw.randrange(4), draw.randrange(-1000, 1000)
        outcomes = []
        for each in (native, lambda *values: function(Whole(values[0]), *values[1:])):
            memory[:], further[:] = given
            outcomes.append((each(int(memory.ctypes.data), first, second), memory.tobytes(), further.tobytes()))
        assert outcomes[0] == outcomes[1]


def test_what_is_no_field_is_refused() -> None:
    for function in translated_structs.REFUSED:
        with pytest.raises(SyntaxError, match=r"translated_structs, line \d+: .* is not translated"):
            compile_functions((function,), *target_name())
    with pytest.raises(TypeError, match=r"float is no field's type"):
        type("Wrong", (Pair,), {"__annotations__": {"x": "float"}, "__module__": __name__})
