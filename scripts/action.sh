#!/usr/bin/env bash
# Entry point of the GitHub Action (action.yml): install the packages of this checkout if they are missing, run a command, and
# write its outcome to the step's summary and outputs. COMMAND, PATHS and OPTIONS are the inputs.
set -uo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-python3}"
report="${RUNNER_TEMP:-$(mktemp -d)}/sdpalab.json"
case "${COMMAND:-audit}" in
    audit | judge | sanitize) ;;
    *)
        echo "command is audit, judge or sanitize, not $COMMAND" >&2
        exit 2
        ;;
esac
if ! "$python" -c "import sdpalab, warpsan" 2> /dev/null; then
    "$python" -m pip install --quiet -c "$root/constraints.txt" --extra-index-url https://download.pytorch.org/whl/cpu \
        "$root/packages/warpsan" "$root/packages/sdpalab[triton]" || exit 3
fi
read -ra paths <<< "${PATHS:-}"
read -ra options <<< "${OPTIONS:-}"
code=0
"$python" -m sdpalab "${COMMAND:-audit}" "${paths[@]}" "${options[@]}" --json "$report" || code=$?
"$python" "$root/scripts/action_summary.py" "$report" "$code" >> "${GITHUB_STEP_SUMMARY:-/dev/stdout}"
status="$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["status"])' "$report" 2> /dev/null || echo NONE)"
printf 'status=%s\nreport=%s\n' "$status" "$report" >> "${GITHUB_OUTPUT:-/dev/null}"
exit "$code"
