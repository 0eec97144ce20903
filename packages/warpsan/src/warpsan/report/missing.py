"""Advice about races: the synchronisation that is missing (:mod:`warpsan.engine.missing`)."""

from __future__ import annotations

from warpsan.checks.orders import SAME_CLUSTER, SAME_CTA, SAME_GPU
from warpsan.engine import rules

__all__ = ["missing"]

_WITHIN = ("", "of another block of the cluster", "in another block")
_SCOPES = ("cta", "cluster", "gpu", "sys")
_FENCES = {SAME_CTA: "__threadfence_block()", SAME_CLUSTER: "fence.acq_rel.cluster", SAME_GPU: "__threadfence()"}
_TEXTS = {
    rules.RELAXED_ARRIVAL: "the arrival at the mbarrier is .relaxed: use .release, or a fence before it",
    rules.EARLY_FENCE: "the arrival at the mbarrier is .relaxed, and the access is not before its fence: use .release",
    rules.RELAXED_IN_CLUSTER: (
        "the arrival at the barrier of the cluster is .relaxed: use .release, or a fence before it"
    ),
    rules.NARROW_ARRIVAL: (
        "the arrival at the mbarrier is .cta, and the thread that waits is in another block of the cluster: use "
        ".release.cluster"
    ),
    rules.RELAXED_WAIT: "the wait for the mbarrier is .relaxed: use .acquire, or a fence behind it",
    rules.NARROW_WAIT: (
        "the wait for the mbarrier is .cta, and the other thread is in another block of the cluster: use "
        ".acquire.cluster"
    ),
    rules.LINK_TOO_NARROW: "the operation that it saw is .{scope}, and the reader is {within}: use .gpu",
    rules.READ_TOO_NARROW: "the operation that saw it is .{scope}, and the writer is {within}: use .gpu",
    rules.NO_FENCE_BEFORE: (
        "no fence or release is between it and the operation that the other thread saw: use {fence}"
    ),
    rules.FENCE_TOO_NARROW: "the fence is .{scope}, and the reader is {within}: use {fence}",
    rules.NO_FENCE_AFTER: "the operation that saw the release is relaxed, and no fence follows it: use {fence}",
    rules.WAIT_FENCE_TOO_NARROW: "the fence after it is .{scope}, and the writer is {within}: use {fence}",
    rules.NOT_COVERED: (
        "no fence is between it, or the barrier that passed it on, and the operation that the other thread saw: put "
        "the fence directly before that operation, or give both sides a fence.sc (__threadfence())"
    ),
}


def missing(number: int) -> str:
    """The text of what is missing, by the number in a row; empty for 0, if that is unknown."""
    text, relation = _TEXTS.get(number & 0xFF, ""), number >> 8 & 0xF
    return text.format(scope=_SCOPES[number >> 12], within=_WITHIN[relation], fence=_FENCES[relation])
