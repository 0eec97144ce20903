"""What Nsight Compute measures of a kernel on a GPU, and what that says about it."""

from __future__ import annotations

from sdpalab.profile.findings import Finding, findings
from sdpalab.profile.metrics import FIGURES, STALLS, Figure
from sdpalab.profile.ncu import NCU_OPTIONS, profile_command, run_ncu
from sdpalab.profile.raw_csv import LaunchProfile, clean_csv, read_raw_csv

__all__ = [
    "FIGURES",
    "NCU_OPTIONS",
    "STALLS",
    "Figure",
    "Finding",
    "LaunchProfile",
    "clean_csv",
    "findings",
    "profile_command",
    "read_raw_csv",
    "run_ncu",
]
