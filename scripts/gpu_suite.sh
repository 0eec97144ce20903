#!/usr/bin/env bash
# Everything worth doing with a few minutes of a GPU, most valuable first: scripts/gpu_suite.sh OUT
#
# Needs: python3 (or PYTHON=...) 3.10 or newer with cuda-bindings 13.0, numpy, ml_dtypes, torch, pydantic, platformdirs,
# typer, rich, pytest, jinja2 and matplotlib; NVRTC 13.0 and the CUDA headers, by pip or in a toolkit; an NVIDIA driver
# for CUDA 13.0; timeout; for the profiles ncu. No network, no installation: it runs the source tree that it lies in.
#
# Each part has its time, and all together 8 minutes (or SECONDS_IN_ALL=...). A part leaves OUT/PART.log and, once it
# has come to its end, OUT/PART.done; it is not done again then. What ran out of time is taken up by the next call.
# OUT/evidence/<gpu> is to be committed as evidence/<gpu>: verdicts and times. Profiles are in OUT/profile.
# Exit code: 0 if every part came to its end, whatever it found; 1 if one did not; 2 for wrong usage; 3 without a GPU.
set -uo pipefail

if [ $# -ne 1 ]; then
    echo "usage: scripts/gpu_suite.sh OUT, a folder for the records" >&2
    exit 2
fi
mkdir -p "$1" || exit 2
out="$(cd "$1" && pwd -P)"
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
python="${PYTHON:-python3}"
export PYTHONPATH="$PWD/src" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

"$python" -c "import sys; from sdpalab.run import gpu_problem; sys.exit(gpu_problem() or 0)" || exit 3

deadline=$((SECONDS + ${SECONDS_IN_ALL:-480}))
parts=()

# part NAME SECONDS COMMAND...: exit codes 0 and 1 (tests failed, judged wrong) mean that it came to its end.
part() {
    local name="$1" seconds="$2" start=$SECONDS code
    shift 2
    parts+=("$name")
    [ -e "$out/$name.done" ] && return
    [ "$seconds" -gt $((deadline - SECONDS)) ] && seconds=$((deadline - SECONDS))
    if [ "$seconds" -le 0 ]; then
        echo "not begun: the time was over" >"$out/$name.end"
        return
    fi
    echo "$name: at most $seconds s ..."
    timeout -s INT -k 15 "$seconds" "$@" >"$out/$name.log" 2>&1
    code=$?
    echo "exit $code after $((SECONDS - start)) s" >"$out/$name.end"
    case "$code" in 0 | 1) mv "$out/$name.end" "$out/$name.done" ;; esac
}

record='from sdpalab.evidence.environment import current_environment, harness_diff
print(current_environment(harness_diff()).model_dump_json(indent=1))'
pytest=("$python" -m pytest -q -p no:cacheprovider --continue-on-collection-errors)
lab=("$python" -m sdpalab)

part environment 20 bash -c '"$1" -m sdpalab doctor && "$1" -c "$2" >"$3"' _ "$python" "$record" "$out/environment.json"
part executor 40 "${pytest[@]}" tests/gpu/test_gpu_executor.py
part kernel_parity 80 "${pytest[@]}" tests/gpu/test_kernel_parity.py --junitxml="$out/kernel_parity.xml"
part replay 110 "${pytest[@]}" tests/sim --replay-on-gpu "$out"

for kernel in $("$python" scripts/gpu_records.py candidates "$out"); do
    part "verdict_$kernel" 40 "${lab[@]}" repro --kernel "$kernel" --device gpu --out "$out/verdicts/$kernel"
done
"$python" scripts/gpu_records.py collect "$out" >"$out/collect.log" 2>&1
read -ra green <<<"$("$python" scripts/gpu_records.py green "$out")"
times=$(find "$out/evidence" -mindepth 1 -maxdepth 1 -type d 2>/dev/null | head -n 1)

# Without a kernel that is green there are still the peers, which say what the GPU can do.
timed() {
    local name="$1" seconds="$2"
    shift 2
    part "$name" "$seconds" "${lab[@]}" bench ${green[@]+"${green[@]}"} "$@" --verdicts "$out/evidence" \
        --json "${times:-$out}/$name.json"
}
timed mission 90 --shape mission --seconds 8
timed large 60 --shape prefill-4k --shape 2,16,4096,128 --clock gpu --seconds 5
timed mission_cold 40 --shape mission --clock gpu --cold --seconds 8
for kernel in ${green[@]+"${green[@]: -2}"}; do
    part "profile_$kernel" 60 "${lab[@]}" profile "$kernel" --verdicts "$out/evidence" --out "$out/profile" \
        --json "$out/profile_$kernel.json"
done

echo
code=0
for name in "${parts[@]}"; do
    if [ -e "$out/$name.done" ]; then state="$(cat "$out/$name.done")"; else state="NOT COMPLETE, $(cat "$out/$name.end")" code=1; fi
    printf '%-26s %-40s %s\n' "$name" "$state" "$(tail -n 1 "$out/$name.log" 2>/dev/null)"
done
grep -h "launches equal bit for bit" "$out/replay.log" 2>/dev/null
exit "$code"
