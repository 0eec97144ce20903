#!/usr/bin/env bash
# The tests: set up .venv with the development tools, then pytest on every core; lint, format and types beside it.
# ./test.sh is the fast suite, ./test.sh --full everything. Other options are pytest's: ./test.sh -k judge
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source scripts/setup_env.sh
setup_env dev || exit 3

# With it, each run would compile the lab's modules in each process that it starts, and rewrite each test's asserts anew.
unset PYTHONDONTWRITEBYTECODE
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
PYTHON="$VENV_PYTHON" scripts/lint.sh >"$log" 2>&1 &
lint=$!
code=0
# A file's tests stay on one worker, so that the fixtures of its module run once; the files' order is that of conftest.py.
# A crash ends a worker; xdist runs the rest of its file again, and a second crash there would go on for ever.
"$VENV_PYTHON" -m pytest -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart 1 "$@" || code=$?
if ! wait "$lint"; then
    [ "$code" -ne 0 ] || code=1
fi
cat "$log"
exit "$code"
