"""Kendall's tau and top-k regret by hand, and the placement of CTAs at rates that depend on how many there are."""

from __future__ import annotations

import pytest

from sdpalab.model.placement import last_end
from sdpalab.model.rank import kendall_tau, top_k_regret


@pytest.mark.parametrize(
    ("second", "tau"),
    [
        ([1, 2, 3, 4], 1.0),
        ([4, 3, 2, 1], -1.0),
        ([1, 2, 4, 3], 4 / 6),
        ([1, 1, 2, 3], 5 / (6 * 5) ** 0.5),
    ],
)
def test_tau(second: list[float], tau: float) -> None:
    assert kendall_tau([10, 20, 30, 40], second) == pytest.approx(tau)


@pytest.mark.parametrize(("first", "second"), [([1, 2], [1]), ([1, 1], [1, 2])])
def test_there_must_be_an_order(first: list[float], second: list[float]) -> None:
    with pytest.raises(ValueError, match="rank"):
        kendall_tau(first, second)


def test_regret_is_what_the_best_of_the_chosen_loses() -> None:
    modelled, measured = [1.0, 2.0, 3.0], [12.0, 15.0, 10.0]
    assert [top_k_regret(modelled, measured, k) for k in (1, 2, 3)] == pytest.approx([0.2, 0.2, 0.0])
    with pytest.raises(ValueError, match="k is between"):
        top_k_regret(modelled, measured, 4)


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
