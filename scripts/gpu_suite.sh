#!/usr/bin/env bash
# Everything worth doing with a few minutes of a GPU, most valuable first: scripts/gpu_suite.sh OUT
#
# Needs: python3 (or PYTHON=...) 3.10 or newer with cuda-bindings 13.0, numpy, ml_dtypes, torch, pydantic, platformdirs,
# typer, rich and pytest; NVRTC 13.0 and the CUDA headers, by pip or in a toolkit; an NVIDIA driver for CUDA 13.0; timeout. No network, no
# installation: it runs the source tree that it lies in.
#
# Each part has its time, 8 minutes in all, and leaves OUT/PART.log and OUT/PART.done. A part that is done is not done
# again; one that ran out of time is taken up again by the next call (the replay goes on where it was).
# Exit code: 0 if every part came to its end, whatever it found; 1 if one did not; 2 for wrong usage; 3 without a GPU.
#
# Not here yet: verdicts on the GPU, the mission shape against its peers, large shapes, profiles.
set -uo pipefail

if [ $# -ne 1 ]; then
    echo "usage: scripts/gpu_suite.sh OUT, a folder for the records" >&2
    exit 2
fi
mkdir -p "$1" || exit 2
out="$(cd "$1" && pwd -P)"
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
python="${PYTHON:-python3}"
export PYTHONPATH="$PWD/src" PYTHONDONTWRITEBYTECODE=1

"$python" -c "import sys; from sdpalab.run import gpu_problem; sys.exit(gpu_problem() or 0)" || exit 3

# part NAME SECONDS COMMAND...: exit codes 0 and 1 (tests failed) mean that it came to its end.
part() {
    local name="$1" seconds="$2" start=$SECONDS code
    shift 2
    [ -e "$out/$name.done" ] && return
    echo "$name: at most $seconds s ..."
    timeout -s INT -k 15 "$seconds" "$@" >"$out/$name.log" 2>&1
    code=$?
    echo "exit $code after $((SECONDS - start)) s" >"$out/$name.end"
    case "$code" in 0 | 1) mv "$out/$name.end" "$out/$name.done" ;; esac
}

record='from sdpalab.evidence.environment import current_environment, harness_diff
print(current_environment(harness_diff()).model_dump_json(indent=1))'
pytest=("$python" -m pytest -q -p no:cacheprovider --continue-on-collection-errors)

part environment 30 bash -c '"$1" -m sdpalab doctor && "$1" -c "$2" >"$3"' _ "$python" "$record" "$out/environment.json"
part executor 60 "${pytest[@]}" tests/gpu/test_gpu_executor.py
part kernel_parity 130 "${pytest[@]}" tests/gpu/test_kernel_parity.py --junitxml="$out/kernel_parity.xml"
part replay 250 "${pytest[@]}" tests/sim --replay-on-gpu "$out"

echo
code=0
for name in environment executor kernel_parity replay; do
    if [ -e "$out/$name.done" ]; then state="$(cat "$out/$name.done")"; else state="NOT COMPLETE, $(cat "$out/$name.end")" code=1; fi
    printf '%-14s %-36s %s\n' "$name" "$state" "$(tail -n 1 "$out/$name.log")"
done
grep -h "launches equal bit for bit" "$out/replay.log"
exit "$code"
