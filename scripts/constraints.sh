#!/usr/bin/env bash
# Writes constraints.txt from the pyproject.toml of both packages; versions that still fit stay. --upgrade takes the newest version of every package.
# --check compares only: exit 1 where constraints.txt is stale, 3 where the package index does not answer.
# PYTHON=... is an interpreter with the development tools; the default is that of .venv.
set -euo pipefail
case "${1:-}" in
    "" | --check | --upgrade) ;;
    *) echo "scripts/constraints.sh takes --check, --upgrade or nothing, not '$1'" >&2 && exit 2 ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-.venv/bin/python}"
command="uv pip compile --universal --all-extras --python-version 3.10 --no-python-downloads --no-header --no-annotate --no-emit-package warpsan packages/warpsan/pyproject.toml packages/sdpalab/pyproject.toml"

folder="$(mktemp -d)"
trap 'rm -r "$folder"' EXIT
[ "${1:-}" = --upgrade ] || cp constraints.txt "$folder/pins"
code=0
# Arguments come from word splitting: none has a space.
"$python" -m $command --quiet --output-file "$folder/pins" || code=$?
if [ "$code" -ne 0 ]; then
    [ "$code" -ne 2 ] || code=3  # uv exits with 2 if a download failed, and with 1 if no versions are compatible
    exit "$code"
fi
{
    echo "# $command"
    echo "# Written by scripts/constraints.sh. No hashes: torch 2.13.0 has several builds, by Python, by CPU or CUDA, and by index."
    grep -v '^#' "$folder/pins"
} >"$folder/constraints.txt"
if [ "${1:-}" = --check ]; then
    diff -u --label constraints.txt --label "written from packages/*/pyproject.toml" constraints.txt "$folder/constraints.txt"
else
    cp "$folder/constraints.txt" constraints.txt
fi
