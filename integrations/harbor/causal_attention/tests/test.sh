#!/usr/bin/env bash
# Judge /app/submission.py, and write the reward. APP, LOGS and PYTHON are set in tests only.
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
logs="${LOGS:-/logs/verifier}"
mkdir -p "$logs"
echo 0 > "$logs/reward.txt"
"${PYTHON:-python3}" "$here/reward.py" "${APP:-/app}" "$here/reference.py" "$logs"
