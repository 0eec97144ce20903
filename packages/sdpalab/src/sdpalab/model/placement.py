"""Placement of a launch's CTAs on SMs, and the end of the last one."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

__all__ = ["last_end", "wave_efficiency"]


def last_end(by_cta: Sequence[float], blocks_per_sm: int, sms: int, rates: Sequence[float] = (1.0,)) -> float:
    """End of the last CTA, in units of work over rate.

    CTAs start in order, round-robin over the SMs until each has ``blocks_per_sm``; then the next one starts wherever
    one ends. The CTAs of an SM share its rate evenly. CTAs of a cluster are assumed independent.

    Parameters
    ----------
    by_cta : sequence of float
        Work of each CTA in launch order; at least one.
    blocks_per_sm, sms : int
        At least 1 each.
    rates : sequence of float
        Work per unit of time of an SM with 1, 2, ... resident CTAs; the last one also applies to more.
    """
    if blocks_per_sm < 1 or sms < 1 or not by_cta:
        raise ValueError("there must be a CTA, an SM, and room for a CTA on it")
    pace = [0.0, *(rate / many for many, rate in enumerate(rates, 1))]  # rate of one CTA, by number of resident CTAs
    pace += [rates[-1] / many for many in range(len(pace), blocks_per_sm + 1)]
    # served[sm]: work per resident CTA since the start; a new CTA ends after its own work more
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
    """Share of the SMs' time until the last CTA ends in which they work: 1 if all end together.

    An SM has one rate for any number of CTAs, so 64 equal ones on 58 SMs take the time of two (64 / 116 = 55%),
    whatever the number that fits. Arguments as for :func:`last_end`.
    """
    end = last_end(by_cta, blocks_per_sm, sms)
    return sum(by_cta) / (sms * end) if end else 1.0
