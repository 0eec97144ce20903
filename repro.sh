#!/usr/bin/env bash
# The main job: set up .venv, then build, gate, simulate and judge the kernels and leave a bundle of evidence and a report.
# Options are those of `sdpalab repro`: [--kernel K]... [--device auto|sim|gpu] [--out DIR] [--json FILE]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/setup_env.sh"
setup_env "" || exit 3
exec "$VENV_PYTHON" -m sdpalab repro "$@"
