#!/usr/bin/env bash
# The most valuable measurements of a few minutes of GPU time first (docs/gpu.md):
#
#     scripts/gpu_suite.sh prepare CACHE      no GPU needed: build into CACHE what the rest would compile
#     scripts/gpu_suite.sh smoke OUT          4 minutes: doctor, confinement, each kernel once in a process of its own
#     scripts/gpu_suite.sh measure OUT        10 minutes: verdicts, times, profiles, then parity with the simulator
#     scripts/gpu_suite.sh OUT                smoke, then measure
#
# Needs: python3 (or PYTHON=...) 3.10 or newer with cuda-bindings 13.0, numpy, ml_dtypes, torch, pydantic, platformdirs,
# cloudpickle, typer, rich, jinja2, matplotlib, and pytest; NVRTC 13.0 and the CUDA headers, by pip or in a toolkit; an
# NVIDIA driver for CUDA 13.0; for the profiles ncu. No network, no installation: it runs the tree that it is in.
# Packages that travel with the tree are found through PYTHONPATH, which is kept.
set -u
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" "$root/scripts/gpu_suite.py" "$@"
