"""Nsight Compute's measurements of a kernel on a GPU, and the kernel's limiting units."""

from __future__ import annotations

from sdpalab.profile.metrics import METRICS, STALLS, Metric
from sdpalab.profile.ncu import NCU_OPTIONS, profile_command, run_ncu
from sdpalab.profile.observations import Observation, observations
from sdpalab.profile.raw_csv import LaunchProfile, clean_csv, read_raw_csv

__all__ = [
    "METRICS",
    "NCU_OPTIONS",
    "STALLS",
    "LaunchProfile",
    "Metric",
    "Observation",
    "clean_csv",
    "observations",
    "profile_command",
    "read_raw_csv",
    "run_ncu",
]
