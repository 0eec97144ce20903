"""The arithmetic that a kernel declares reaches the judge unchanged, and nothing else does."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sdpalab.judge.sandbox.messages import DeclaredNumerics
from sdpalab.kernels.kernel import Numerics, Quantisation

FLOAT8 = Numerics(probabilities="float8_e4m3fn", probability_scale=256.0, quantised=Quantisation(rows=128))


@pytest.mark.parametrize(
    "numerics", [Numerics(), FLOAT8, Numerics(unordered=("dq",))], ids=["plain", "quantised", "order"]
)
def test_it_arrives_as_it_was_declared(numerics: Numerics) -> None:
    message = DeclaredNumerics.model_validate(numerics.to_dict())
    assert Numerics.from_dict(message.model_dump()) == numerics


@pytest.mark.parametrize("quantised", [{"dtype": "float8_e4m3fn"}, {"dtype": 8, "rows": 128}, {"rows": "128"}, "e4m3"])
def test_what_is_no_quantisation_is_refused(quantised: Any) -> None:
    with pytest.raises(ValidationError, match="quantised"):
        DeclaredNumerics.model_validate({**FLOAT8.to_dict(), "quantised": quantised})
