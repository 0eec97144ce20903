"""Evaluation of a candidate by stages of rising cost, and of many candidates at once, for programs that write kernels.

The answer is a vector of observations. Nothing here combines them into one number.
"""

from __future__ import annotations

from sdpalab.evaluation.many import GRACE_SECONDS, evaluate_alone, evaluate_job, judge_many
from sdpalab.evaluation.stages import STAGES, evaluate
from sdpalab.evaluation.vector import Evaluation

__all__ = ["GRACE_SECONDS", "STAGES", "Evaluation", "evaluate", "evaluate_alone", "evaluate_job", "judge_many"]
