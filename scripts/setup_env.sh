# Sourced by repro.sh and test.sh: makes .venv at the repository's root and installs the lab into it.
# Usage: setup_env EXTRA, where EXTRA is an extra of packages/sdpalab/pyproject.toml, or empty for what runs the lab and pytest. Leaves the interpreter's path in VENV_PYTHON.

setup_env() {
    local extra="$1" root python venv wanted target
    root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
    python="${PYTHON:-python3}"
    venv="$root/.venv"
    VENV_PYTHON="$venv/bin/python"
    target="$root/packages/sdpalab[${extra:-test}]"

    # One set-up at a time: repro.sh and test.sh may be started together. The lock ends with its process.
    exec 9<"$root/constraints.txt"
    flock 9

    wanted="$(cat "$root"/packages/*/pyproject.toml "$root/constraints.txt" <(echo "$root") | sha256sum | cut -d' ' -f1)"
    # The stamp has one line for each extra that is installed; anything with the extras has the base too.
    if grep -qsxF "$wanted $extra" "$venv/.stamp" && "$VENV_PYTHON" -c "" 2>/dev/null; then
        exec 9<&-
        return 0
    fi

    # pip interrupted half-way leaves packages that it can neither use nor remove: such a .venv is recreated.
    if [ -e "$venv" ] && { [ -e "$venv/.installing" ] || ! "$VENV_PYTHON" -c "import pip, sys; sys.exit(sys.version_info < (3, 10))" 2>/dev/null; }; then
        echo "The set-up of .venv was interrupted or is broken; making it anew." >&2
        rm -rf "$venv"
    fi
    if [ ! -e "$venv" ]; then
        if ! "$python" -c "import sys; sys.exit(sys.version_info < (3, 10))" 2>/dev/null; then
            echo "SDPA Lab needs Python 3.10 or newer, and '$python' is not; set PYTHON=/path/to/python3.11 and start again." >&2
            return 3
        fi
        echo "Making .venv with $("$python" --version) ..." >&2
        if ! "$python" -m venv "$venv"; then
            rm -rf "$venv"
            echo "Python could not make .venv; on Debian and Ubuntu the package python3-venv is needed." >&2
            return 3
        fi
    fi
    echo "Installing the pinned packages (the first time: a few minutes) ..." >&2
    touch "$venv/.installing"
    # setuptools comes first, pinned too, so that pip needs no build environment of its own choosing.
    if ! "$VENV_PYTHON" -m pip install --disable-pip-version-check --no-input -q -c "$root/constraints.txt" setuptools >&2 \
        || ! "$VENV_PYTHON" -m pip install --disable-pip-version-check --no-input --no-build-isolation \
            -c "$root/constraints.txt" -e "$root/packages/warpsan" -e "$target" >&2; then
        echo "pip could not install the packages; its message is above." >&2
        rm -f "$venv/.stamp" "$venv/.installing"
        return 3
    fi
    { echo "$wanted "; [ -z "$extra" ] || echo "$wanted $extra"; } >"$venv/.stamp"
    rm "$venv/.installing"
    exec 9<&-
}
