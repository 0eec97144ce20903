"""The placement of CTAs at rates that depend on the number of resident CTAs."""

from __future__ import annotations

import pytest

from sdpalab.model.placement import last_end


@pytest.mark.parametrize(
    ("by_cta", "blocks", "sms", "rates", "end"),
    [
        ([6.0, 6.0], 2, 1, [1.0, 1.0], 12.0),
        ([6.0, 6.0], 2, 1, [1.0, 2.0], 6.0),  # two at once hide each other's latency
        ([6.0, 6.0, 6.0], 2, 1, [1.0, 1.5], 8.0 + 6.0),
        ([6.0, 3.0], 2, 1, [1.0, 1.5], 4.0 + 3.0),  # each at 0.75 until the short one ends, then one at 1
        ([6.0] * 3, 3, 1, [1.0, 2.0], 9.0),  # the last rate holds for more
    ],
)
def test_the_last_end_by_hand(by_cta: list[float], blocks: int, sms: int, rates: list[float], end: float) -> None:
    assert last_end(by_cta, blocks, sms, rates) == pytest.approx(end)
