"""The campaign ``deletion`` on all shipped kernels and on those of the tests.

``deletion_reasons.json`` beside this module has the reasons for survivors of the tests' kernels, of external PTX files
and of weakened instructions (:mod:`lab.weakening`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from lab import ROOT, TRITON_KERNEL
from sdpalab.campaigns import deletion
from sdpalab.campaigns.campaign import CampaignResult, Say
from sdpalab.jobs import Executor
from sdpalab.kernels.registry import KERNELS

__all__ = ["REASONS", "SUBJECTS", "run"]

REASONS: Sequence[deletion.Reason] = (
    *deletion.REASONS,
    *json.loads(Path(__file__).with_name("deletion_reasons.json").read_text()),
)
"""Reasons for the survivors of shipped kernels, tests' kernels and external PTX files."""
SUBJECTS = (*KERNELS, str(ROOT / TRITON_KERNEL))
"""The kernels of a record without names."""


def run(names: Sequence[str], say: Say, executor: Executor) -> CampaignResult:
    """Delete from the named kernels and PTX files, by default from :data:`SUBJECTS`.

    Raises
    ------
    UserError
        If there is no such kernel, or one is not clean itself.
    """
    return deletion.run(names or SUBJECTS, say, executor, REASONS)
