"""Where the CTAs of a launch run, and when the last one ends."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

__all__ = ["last_end", "wave_efficiency"]


def last_end(by_cta: Sequence[float], blocks_per_sm: int, sms: int, rates: Sequence[float] = (1.0,)) -> float:
    """When the last CTA ends, in units of work over rate.

    CTAs start in order, the first on each SM in turn until ``blocks_per_sm`` are on every one; then the next starts
    wherever one ends. The CTAs of an SM share its rate evenly. Those of a cluster are taken as independent.

    Parameters
    ----------
    by_cta : sequence of float
        Work of each CTA, in the order of their launch; at least one.
    blocks_per_sm, sms : int
        At least 1 each.
    rates : sequence of float
        Work that an SM with 1, 2, ... resident CTAs does in a unit of time; the last one also with more.
    """
    if blocks_per_sm < 1 or sms < 1 or not by_cta:
        raise ValueError("there must be a CTA, an SM, and room for a CTA on it")
    pace = [0.0, *(rate / many for many, rate in enumerate(rates, 1))]  # of one CTA, by how many there are
    pace += [rates[-1] / many for many in range(len(pace), blocks_per_sm + 1)]
    # served[sm]: work that each of its CTAs has had since the start; a CTA that starts there ends after that many more
    served = [0.0] * sms
    residents: list[list[float]] = [[] for _ in range(sms)]
    first = by_cta[: sms * blocks_per_sm]
    for number, work in enumerate(first):
        residents[number % sms].append(float(work))
    for ends in residents:
        heapify(ends)
    waiting = iter(by_cta[len(first) :])
    events = [(ends[0] / pace[len(ends)], sm) for sm, ends in enumerate(residents) if ends]
    heapify(events)
    now = 0.0
    while events:
        now, sm = heappop(events)
        ends = residents[sm]
        served[sm] = heappop(ends)
        work_next = next(waiting, None)
        if work_next is not None:
            heappush(ends, served[sm] + work_next)
        if ends:
            heappush(events, (now + (ends[0] - served[sm]) / pace[len(ends)], sm))
    return now


def wave_efficiency(by_cta: Sequence[int], blocks_per_sm: int, sms: int) -> float:
    """The share of the SMs' time, until the last CTA ends, in which they work: 1 if all end together.

    An SM has one rate, however many CTAs share it, so that 64 equal ones on 58 SMs take the time of two (64 / 116 =
    55%) no matter how many fit. Arguments as for :func:`last_end`.
    """
    end = last_end(by_cta, blocks_per_sm, sms)
    return sum(by_cta) / (sms * end) if end else 1.0
