"""Exact arithmetic on single-instruction mutants of every shipped kernel, and on the bugs planted in sources.

Each kernel runs in the ring of :mod:`warpsan.numerics.ring` as the judge's stage runs it, on one small causal problem.
Then each floating-point instruction is replaced by a wrong one in turn (:mod:`.float_mutants`): the outputs must be
unequal, or there is a reason. The planted bugs are those of the self-test whose cause is the data flow
(:mod:`.algebra_bugs`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lab.algebra_bugs import bug_entry
from lab.float_mutants import FloatSite, float_sites, probes, reaches_only, target_of
from lab.ring_subject import RingSubject, outcome_of
from sdpalab.bugs.catalogue import BUGS
from sdpalab.campaigns.campaign import CampaignResult, Content, Say
from sdpalab.errors import UserError
from sdpalab.judge.algebra.outcome import AlgebraCase
from sdpalab.judge.algebra.stage import SCALE
from sdpalab.kernels.kernel import Kernel
from sdpalab.kernels.registry import KERNELS, get
from sdpalab.problem import Problem
from warpsan import KernelTrap, SimError
from warpsan.ptx import link, parse

__all__ = ["PACKAGES", "run"]

Changes = Mapping[str, Any]

PACKAGES = ("numpy", "llvmlite")
SMALL = Problem(1, 1, 80, 32, causal=True, scale=SCALE)
"""Two tiles of keys of most kernels, the last one ragged, and a mask."""
_WINDOW: Changes = {"window_size": (21, 9), "causal": False}
_TILES = {"SCHEDULE": "tiles"}
_SUBJECTS: Mapping[str, Sequence[tuple[Mapping[str, str], Changes]]] = {
    "flash": ((_TILES, {}), (_TILES, _WINDOW)),
    "fp8": (({}, {}), ({"P_DTYPE": "fp16"}, {})),
    "hopper": (({}, {}), ({"BLOCK_M": "64", "SPLIT": "2"}, {}), ({}, _WINDOW)),
}
"""Knobs and problem changes of kernels with several data flows: a separate source for windows, weights in another type,
keys shared by the blocks of a cluster. No block in them waits for a later block."""


def subjects(kernel: Kernel) -> Iterator[RingSubject]:
    """A kernel in each of its data flows, on the smallest problem that it computes."""
    for knobs, changes in _SUBJECTS.get(kernel.name, (({}, {}),)):
        yield subject(kernel, knobs, changes)


def subject(kernel: Kernel, knobs: Mapping[str, str], changes: Changes) -> RingSubject:
    """A kernel with some knobs, on the smallest problem with some changes that it computes."""
    config = kernel.config_with(knobs).but(**kernel.algebraic)
    for head_dim in (32, 64, 128):
        problem = SMALL.with_(**{"head_dim": head_dim, "scale": SCALE, **changes})
        if kernel.supports(problem) is None and kernel.why_not(problem, config) is None:
            return RingSubject(kernel, config, problem)
    raise UserError(f"{kernel.name} computes none of the small problems")


def mutant_entry(of: RingSubject, number: int, site: FloatSite, right: AlgebraCase) -> dict[str, str]:
    """Run one mutant: its outcome, and the reason if its outputs are equal."""
    ptx = of.builds[number].ptx.decode()
    entry = {"instruction": site.opcode, "line": str(site.line), "source": site.source}
    try:
        case = of.run(number, site.apply(ptx), max_steps=200_000)
    except SimError as error:
        return {**entry, "outcome": "stopped", "reason": type(error).__name__}
    outcome = outcome_of(case)
    if case.lse_refusal and not right.lse_refusal:
        outcome = "not algebraic" if outcome == "equal" else outcome
    if outcome != "equal":
        return {**entry, "outcome": outcome}
    return {**entry, "outcome": "equal", "reason": reason_of(of, number, site, ptx, right)}


def reason_of(of: RingSubject, number: int, site: FloatSite, ptx: str, right: AlgebraCase) -> str:
    """Reason why a mutant's outputs are equal; empty if there is none."""
    opcode = site.opcode.split(".")
    if opcode[0] in ("max", "min"):
        return "a maximum cancels"
    for reason, statement in probes(site).items():
        try:
            of.run(number, site.apply(ptx, statement))
        except KernelTrap:
            continue
        return reason
    if opcode[0] == "div" and right.prime == 13:
        return "mod 12 every unit is its own inverse, so that a product with a scale of Q or K is the quotient"
    if opcode[0] == "selp" and _either(of, number, site, ptx):
        return "either of its two values gives the same outputs"
    if opcode[0] == "setp":
        larger = opcode[1] in ("lt", "le", "gt", "ge")
        return "a threshold: either answer is right" if larger else "both ways of the branch give the same"
    code = link(parse(ptx), of.builds[number].entry)
    return reaches_only(code, site) or _dead(of, number, site, ptx)


def _either(of: RingSubject, number: int, site: FloatSite, ptx: str) -> bool:
    """True if the outputs are equal with the first value of a selection everywhere, and with the second."""
    target = str(target_of(site.statement))
    values = re.findall(r"[^\s,;]+", site.statement.partition(target)[2])[:2]
    statements = [f"mov.b32 {target}, {value};" for value in values]
    return all(outcome_of(of.run(number, site.apply(ptx, statement))) == "equal" for statement in statements)


def _dead(of: RingSubject, number: int, site: FloatSite, ptx: str) -> str:
    """Reason if other values give the same outputs, such as a factor of a sum that is still 0; otherwise empty."""
    target = target_of(site.statement)
    if target is None:
        return ""

    def equal(constant: str) -> bool:
        return outcome_of(of.run(number, site.apply(ptx, f"mov.b32 {target}, {constant};"))) == "equal"

    if all(equal(constant) for constant in ("0f40E00000", "0f41300000")):  # 7 and 11, which have inverses
        return "any other value gives the same: it cancels, or meets a zero"
    if all(equal(constant) for constant in ("0f45000000", "0f46000000")):  # 2^11 and 2^13
        return "any value beyond a threshold gives the same: it is not used"
    return ""


def kernel_entry(of: RingSubject, copies: int, say: Say) -> dict[str, Any]:
    """A kernel and all its mutants."""
    name, right = of.kernel.name, of.run()
    mutants = []
    for number, built in enumerate(of.builds):
        sites = float_sites(built.ptx.decode(), built.entry, copies)
        mutants += [mutant_entry(of, number, site, right) for site in sites]
    counts = Counter(each["outcome"] for each in mutants)
    unexplained = [each for each in mutants if each["outcome"] == "equal" and not each["reason"]]
    say(
        f"{name:18} {of.problem.label} {outcome_of(right):8} {len(mutants):5} mutants: "
        + ", ".join(f"{many} {outcome}" for outcome, many in counts.most_common())
        + (f"; {len(unexplained)} equal without a reason" if unexplained else "")
    )
    for each in unexplained:
        say(f"  {each['instruction']} at PTX line {each['line']}, {each['source']}")
    return {
        "kernel": name,
        "config": str(of.config),
        "problem": of.problem.to_dict(),
        "outcome": outcome_of(right),
        "prime": right.prime,
        "lse": "not algebraic" if right.lse_refusal else "equal" if right.lse_unequal == 0 else "none",
        "counts": dict(counts),
        "reasons": dict(Counter(each["reason"] for each in mutants if each["outcome"] == "equal")),
        "mutants": mutants,
    }


def run(names: Sequence[str], copies: int, say: Say, keep: Any = None) -> CampaignResult:
    """Run the named kernels (default: all shipped) and, without names, the planted bugs.

    Parameters
    ----------
    names : sequence of str
    copies : int
        Mutants of each source line and opcode, at most; 0 for all.
    say : callable
    keep : callable, optional
        Called with the content so far after each kernel.
    """
    kernels: list[dict[str, Any]] = []
    content: Content = {"kind": "simulated", "copies_of_a_line": copies, "kernels": kernels, "bugs": []}
    for of in (of for name in names or KERNELS for of in subjects(get(name))):
        kernels.append(kernel_entry(of, copies, say))
        if keep is not None:
            keep(content)
    if not names:
        for bug in BUGS.values():
            if bug.in_source:
                content["bugs"].append(bug_entry(bug))
                say(f"{content['bugs'][-1]['outcome']:14} {bug.id}")
                if keep is not None:
                    keep(content)
    mutants = [each for kernel in kernels for each in kernel["mutants"]]
    wrong = sum(each["outcome"] == "equal" and not each["reason"] for each in mutants)
    missed = [each["bug"] for each in content["bugs"] if each["outcome"] in ("equal", "not algebraic", "not run")]
    unequal = [kernel["kernel"] for kernel in kernels if kernel["outcome"] != "equal"]
    content["totals"] = {
        "kernels_equal": len(kernels) - len(unequal),
        "mutants": len(mutants),
        "outcomes": dict(Counter(each["outcome"] for each in mutants)),
        "equal_without_reason": wrong,
        "bugs": dict(Counter(each["outcome"] for each in content["bugs"])),
        "bugs_missed": missed,
    }
    summary = (
        f"{len(kernels) - len(unequal)} of {len(kernels)} kernels equal, {len(mutants)} mutants, {wrong} of them equal "
        f"without a reason; {len(missed)} planted bugs missed"
    )
    return CampaignResult(content, not (wrong or missed or unequal), summary)
