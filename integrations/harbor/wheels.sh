#!/usr/bin/env bash
# Build wheels of warpsan and sdpalab into the contexts of the task's two images.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
for context in environment tests; do
    folder="$here/causal_attention/$context/wheels"
    rm -rf "$folder"
    "${PYTHON:-python3}" -m pip wheel --quiet --no-deps --wheel-dir "$folder" "$root/packages/warpsan" "$root/packages/sdpalab"
    cp "$root/constraints.txt" "$folder/"
done
