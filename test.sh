#!/usr/bin/env bash
# The tests: set up .venv with the development tools, then pytest on every core. Options are pytest's: ./test.sh -k judge
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source scripts/setup_env.sh
setup_env dev || exit 3
exec "$VENV_PYTHON" -m pytest -n auto "$@"
