#!/usr/bin/env bash
# The GPU suite in calls of ten minutes; each call runs the steps that earlier calls have not finished (docs/gpu.md):
#
#     scripts/gpu_suite.sh OUT [--kernel K]... [--only WORD]... [--large B,H,S,D]... [--seconds S] [--patience X]
#
# Needs python3 (or PYTHON=...) 3.10 or newer with the packages of packages/*/pyproject.toml and pytest, torch with CUDA, an NVIDIA driver
# for CUDA 13.0, and for the profiles ncu. No network, no installation: it runs the tree that it is in. PYTHONPATH is kept.
set -u
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
export PYTHONPATH="$root/packages/sdpalab/src:$root/packages/warpsan/src${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" "$root/scripts/gpu_suite.py" "$@"
