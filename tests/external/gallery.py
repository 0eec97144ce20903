"""Programs with kernels that nobody here wrote, built from their public sources and run by ``sdpalab run``.

    python tests/external/gallery.py DIR --fetch        # clones the sources into DIR, at the commits of gallery.json
    python tests/external/gallery.py DIR [WORD]...      # builds and runs all programs, or those with a WORD in the name

Sources, commits and licences are in ``gallery.json``. Nothing of them is in this repository: ``programs/`` has the main
functions that a library's kernels are called from. A program compares its results itself.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GALLERY: dict[str, Any] = json.loads((HERE / "gallery.json").read_text())
NVCC = ("nvcc", "-w", "-arch=sm_80", "-lineinfo", "-g", "-cudart", "shared")


def fetch(root: Path) -> None:
    """Clone what is not there yet, at its commit."""
    for name, source in GALLERY["sources"].items():
        if not (root / name).is_dir():
            command = ["git", "clone", "--filter=blob:none", "--no-checkout", source["repository"], str(root / name)]
            subprocess.run(command, check=True)
            subprocess.run(["git", "-C", str(root / name), "checkout", source["commit"]], check=True)


def why_not(program: dict[str, Any], root: Path) -> str:
    """Why a program cannot be built here; empty if it can."""
    if shutil.which("nvcc") is None:
        return "there is no nvcc"
    missing = [name for name in program["needs"] if not (root / name).is_dir()]
    return f"no checkout of {', '.join(missing)} in {root}" if missing else ""


def build(program: dict[str, Any], root: Path, folder: Path) -> Path:
    """Build a program into a folder."""
    places = {name: root / name for name in GALLERY["sources"]} | {"programs": HERE / "programs"}
    options = []
    for option in program["build"]:
        for name, place in places.items():
            option = option.replace(f"{{{name}}}", str(place))
        options.append(option)
    out = folder / program["name"]
    subprocess.run([*NVCC, *options, "-o", str(out)], check=True)
    return out


def run(program: dict[str, Any], binary: Path) -> list[str]:
    """Run a program; what is not as expected."""
    report = binary.with_suffix(".json")
    command = [
        sys.executable,
        "-m",
        "sdpalab",
        "run",
        "--json",
        str(report),
        str(binary),
        *program.get("arguments", []),
    ]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=binary.parent, check=False)
    if not report.is_file():
        return [f"it was not run: {done.stderr.strip()}"]
    document = json.loads(report.read_text())
    if document["error"]:
        return [document["error"]]
    kinds = sorted({hazard["kind"] for hazard in document.get("hazards", [])})
    wrong = []
    if program["prints"] not in done.stdout:
        wrong.append(f"it does not print {program['prints']!r}, but {done.stdout[-500:]!r}")
    if kinds != program.get("hazards", []):
        wrong.append(f"hazards {kinds}, not {program.get('hazards', [])}: {done.stderr}")
    wrong += [f"a call failed: {problem}" for problem in document.get("problems", [])]
    return wrong


def main() -> int:
    """Build and run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the checkouts are, and programs are built")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--fetch", action="store_true")
    given = parser.parse_args()
    if given.fetch:
        fetch(given.folder)
        return 0
    built = given.folder / "built"
    built.mkdir(exist_ok=True)
    bad = 0
    for program in GALLERY["programs"]:
        if given.words and not any(word in program["name"] for word in given.words):
            continue
        reason = why_not(program, given.folder)
        wrong = [] if reason else run(program, build(program, given.folder, built))
        bad += bool(wrong)
        print(f"{program['name']}: {f'skipped: {reason}' if reason else '; '.join(wrong) or 'as expected'}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
