#!/usr/bin/env bash
# Lint, format, types and pins: one line for each, after the tool's output on failure. Exit code 1 if any fails.
# PYTHON=... is the interpreter with the development tools.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
python="${PYTHON:-python3}"
code=0

check() {
    local name="$1" output
    shift
    if output="$("$python" -m "$@" 2>&1)"; then
        echo "$name: ok"
    else
        printf '%s\n%s: FAILED: python -m %s\n' "$output" "$name" "$*"
        code=1
    fi
}

check lint ruff check .
check format ruff format --check .
check types mypy --strict

pins_code=0
output="$(PYTHON="$python" timeout 120 scripts/constraints.sh --check 2>&1)" || pins_code=$?
case "$pins_code" in
    0) echo "pins: ok" ;;
    3 | 124) echo "pins: not compared with packages/*/pyproject.toml: the package index does not answer" ;;
    *)
        printf '%s\npins: FAILED: run scripts/constraints.sh\n' "$output"
        code=1
        ;;
esac
exit "$code"
