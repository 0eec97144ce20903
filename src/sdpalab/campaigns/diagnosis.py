"""How often the judge's diagnosis names the right class of a planted bug: the table in docs/judge.md.

The self-test's bugs that are written in Python run on the quick cases, in this process.
"""

from __future__ import annotations

from collections import Counter

import torch

from sdpalab.bugs import Bug, Mutant
from sdpalab.bugs.catalogue import mutants
from sdpalab.campaigns.campaign import CampaignResult, Say
from sdpalab.inputs import make_inputs
from sdpalab.judge.cases import quick_cases
from sdpalab.judge.diagnose.diagnosis import Diagnosis, diagnose
from sdpalab.judge.diagnose.failure import Failure
from sdpalab.judge.diagnose.hypotheses import Cause
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.rule.numerics import UNDECLARED
from sdpalab.judge.tensors import from_torch, to_torch
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import CudaKernel

__all__ = ["PACKAGES", "run"]

PACKAGES = ("numpy", "torch")

EXPECTED: dict[Cause, tuple[str, ...]] = {
    Cause.NO_ATTENTION: (
        *("zeros", "zeros, under a mask", "the mean of V", "the mean of V on a long sequence", "V", "Q"),
        "a single row is taken for no row",
    ),
    Cause.MASK: ("a stale build: the kernel of yesterday's flags, without a mask",),
    Cause.HEADS: (
        "query head h reads K/V head h mod Hkv",
        "all query heads read K/V head 0",
        "all batches read batch 0",
        "V of the next head",
    ),
    Cause.LAYOUT: ("O in [B, S, H, D] order in memory that is read as [B, H, S, D]",),
    Cause.OPERANDS: (
        "K and V change places",
        "Q and K change places",
        "the last 8 of head_dim are left out of the scores",
    ),
    Cause.RESCALE: (
        "the rescale of O is lost",
        "the rescale of the sum is lost",
        "both rescales are lost",
        "O is rescaled after this tile's product is added",
        "the sum is rescaled after this tile's weights are added",
        "O is rescaled twice",
        "the rescale is skipped where the maximum grows by less than 1",
        "each tile is normalised by itself, and the tiles are averaged",
    ),
    Cause.PADDING: (
        "zeros up to the end of the tile count as keys",
        "zeros up to the end of the tile count as keys, under a mask",
        "the keys after the last belong to the next head",
    ),
    Cause.KEYS: (
        "the first tile is left out",
        "the last tile is counted twice",
        "the second tile is counted twice, the third never",
        "V of the tile before (a stage that was not waited for)",
        "K of the tile before (a stage that was not waited for)",
        "two rows of K change places (a wrong swizzle)",
        "rows 8 to 15 of V hold rows 0 to 7 (a fragment loaded twice)",
        "the keys after the last whole tile are left out",
        "the last key is left out",
        "keys after the last multiple of 8 are left out",
    ),
    Cause.SCORES: (
        "the scores are not scaled",
        "1 / D in place of 1 / sqrt(D)",
        "a scale that is 1% too large",
        "a scale of its own in place of the one given",
        "a scale rounded to bfloat16",
        "exponentials to base 2 without log2(e)",
        "wrong QK scale: sqrt(2 D) for a head of D",
    ),
    Cause.EXPONENTIAL: (
        "weights below 2**-8 are taken for 0",
        "weights of the absolute scores",
        "negative scores are taken for 0",
        "scores are capped by 30 tanh(s / 30), as some models do",
        "exponents clamped to -10..10",
        "scores clamped to -20..20 and no maximum",
        "clamped exponents, epsilon in the sum, and zeros for what is not finite",
    ),
    Cause.ROWS: (
        "Q starts one row late",
        "rows 8 apart change places (an accumulator's layout misread)",
        "rows after the last whole tile are those of the tile before",
    ),
    Cause.COLUMNS: (
        "columns of O change places in pairs (an accumulator's layout misread)",
        "the last column is that before it",
    ),
    Cause.NORMALISATION: (
        "the output is not divided by the sum",
        "the output is divided by the number of keys",
        "the sum lacks the last tile",
        "a reciprocal by one Newton step too few, wrong by 0.3%",
        "0.001 is added to the sum against a division by zero",
        "rows 8 to 15 of each 16 are divided by the sums of rows 0 to 7",
    ),
    Cause.EDGE: ("the last row is not written",),
    Cause.PLACE: ("one row in the middle is wrong by 2%", "one element is wrong by 0.01"),
    Cause.RANGE: (
        "the maximum of the first tile is kept, sums are not rescaled to later ones",
        "the maximum starts at 0, and weights below 2**-24 are dropped",
        "no maximum is subtracted",
        "the maximum of the head in place of the row's, in the inputs' type",
        "float8 e4m3 with one scale a head, and sums of P beyond its range: NaN at S = 512",
    ),
    Cause.PRECISION: (
        "exponentials by Schraudolph's bit trick, wrong by up to 6%",
        "exponentials by a polynomial of degree 3, wrong by up to 1e-4 (Cody-Waite with too few terms)",
        "float8 e4m3 with one scale a head",
        "float8 e4m3 with one scale a head, in bfloat16",
    ),
}
"""The class that each bug belongs to. All masks are MASK, and all lower precision is PRECISION; the rest, such as the
output of the call before, belongs to none, so that nothing which is said of it is right."""


def right_cause(mutant: Mutant) -> Cause | None:
    """The class of a bug."""
    for cause, names in EXPECTED.items():
        if mutant.name in names:
            return cause
    return {Bug.MASK: Cause.MASK, Bug.PRECISION: Cause.PRECISION}.get(mutant.bug)


def failures(mutant: Mutant) -> list[Failure]:
    """The quick cases that a bug in Python fails by its numbers."""
    found = []
    for spec in quick_cases([mutant.problem]):
        problem, inputs = spec.problem, make_inputs(spec.problem, spec.inputs, 1 if spec.seed is None else spec.seed)
        tensors = [to_torch(array.copy()) for array in vars(inputs).values()]
        assert callable(mutant.candidate)
        out = from_torch(mutant.candidate(*tensors, scale=problem.scale, causal=problem.causal))
        judged = judge_output(problem, inputs, out, UNDECLARED)
        if judged.status is not Status.PASSED:
            found.append(Failure(problem, inputs, out, judged.errors, judged.limits))
    return found


def run(words: str, verbose: bool, say: Say) -> CampaignResult:
    """Diagnose the bugs whose name has ``words`` in it; ``verbose`` prints every diagnosis, not only the wrong ones."""
    torch.set_num_threads(1)
    counts: dict[Bug, Counter[str]] = {}
    for mutant in mutants():
        if isinstance(mutant.candidate, CudaKernel) or mutant.equivalent or words not in mutant.name:
            continue
        diagnosis: Diagnosis | None = diagnose(failures(mutant))
        outcome = "none" if diagnosis is None else "right" if diagnosis.cause is right_cause(mutant) else "wrong"
        counts.setdefault(mutant.bug, Counter())[outcome] += 1
        if verbose or outcome != "right":
            say(f"{outcome:5} {mutant.bug.value}: {mutant.name} [{mutant.problem.label}]: {diagnosis}")
    say("| class | bugs | right | another class | no diagnosis |\n|---|---|---|---|---|")
    total: Counter[str] = sum(counts.values(), Counter())
    for name, count in [*((bug.value, count) for bug, count in counts.items()), ("all", total)]:
        say(f"| {name} | {count.total()} | {count['right']} | {count['wrong']} | {count['none']} |")
    content = {"totals": dict(total), "classes": {bug.value: dict(count) for bug, count in counts.items()}}
    return CampaignResult(content, True, f"{total['right']} of {total.total()} bugs are diagnosed rightly")
