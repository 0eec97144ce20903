"""Programs with kernels that nobody here wrote, built from their public sources and run by ``sdpalab run``.

    python tests/external/gallery.py DIR [WORD]... --fetch  # brings the sources into DIR (sources.py)
    python tests/external/gallery.py DIR [WORD]...          # builds and runs the programs with a WORD in the name

Sources, their versions, digests and licences are in ``gallery.json``. Nothing of them is in this repository:
``programs/`` has the main functions that a library's kernels are called from. A program compares its results itself.
``why`` of a program says why the hazards, or the wrong numbers, that are expected of it are its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sources import Source, SourceError, fetch, place

HERE = Path(__file__).resolve().parent
GALLERY: dict[str, Any] = json.loads((HERE / "gallery.json").read_text())
SOURCES: dict[str, Source] = GALLERY["sources"]
NVCC = ("nvcc", "-w", "-lineinfo", "-g", "-cudart", "shared")


def why_not(program: dict[str, Any], root: Path) -> str:
    """Why a program cannot be run here; empty if it can."""
    if "build" in program and shutil.which("nvcc") is None:
        return "there is no nvcc"
    if "python" in program and find_spec("triton") is None:
        return "Triton is not installed"
    missing = [name for name in program["needs"] if not place(SOURCES[name], root).is_dir()]
    return f"{', '.join(missing)} not in {root}: gallery.py {root} --fetch" if missing else ""


def expanded(words: list[str]) -> list[str]:
    """Options of a build: ``@name`` stands for those that several programs have."""
    options = []
    for word in words:
        options += expanded(GALLERY["options"][word[1:]]) if word.startswith("@") else [word]
    return options


def filled(word: str, root: Path) -> str:
    """A word of ``gallery.json`` with folders in place of ``{name}``."""
    for name, source in SOURCES.items():
        word = word.replace(f"{{{name}}}", str(place(source, root)))
    return word.replace("{programs}", str(HERE / "programs"))


def build(program: dict[str, Any], root: Path, folder: Path) -> Path:
    """Input of ``sdpalab run``: a program that is built into a folder, or a Python file as it is.

    Raises
    ------
    SourceError
        If nvcc fails: with its output.
    """
    if "python" in program:
        return Path(filled(program["python"], root))
    out = folder / program["name"]
    # PTX alone, which is what runs: no time of ptxas.
    arch = f"compute_{program.get('arch', '80')}"
    options = [filled(option, root) for option in expanded(program["build"])]
    command = [*NVCC, "-gencode", f"arch={arch},code={arch}", *options, "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SourceError(f"nvcc failed: {done.stdout}{done.stderr}")
    return out


def run(program: dict[str, Any], target: Path, root: Path, folder: Path) -> list[str]:
    """Run a program in a folder; what is not as expected."""
    report = folder / f"{program['name']}.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "sdpalab", "run", "--json", str(report), *program.get("run", [])]
    command += [str(target), *program.get("arguments", [])]
    paths = [filled(path, root) for path in program.get("path", [])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", cwd=folder, env=environment, check=False
    )
    if not report.is_file():
        return [f"it was not run: {done.stderr.strip()}"]
    document = json.loads(report.read_text())
    if document["error"]:
        return [document["error"]]
    kinds = sorted({hazard["kind"] for hazard in document.get("hazards", [])})
    wrong = []
    if program["prints"] not in done.stdout:
        wrong.append(f"it does not print {program['prints']!r}, but {done.stdout[-500:]!r}")
    if document["exit_code"] != program.get("exit_code", 0):
        wrong.append(f"it ended with {document['exit_code']}: {done.stdout[-500:]!r}")
    if kinds != program.get("hazards", []):
        wrong.append(f"hazards {kinds}, not {program.get('hazards', [])}: {done.stderr}")
    wrong += [f"a call failed: {problem}" for problem in document.get("problems", [])]
    return wrong


def main() -> int:
    """Fetch the sources, or build and run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the sources are, and programs are built")
    parser.add_argument("words", nargs="*", help="of the names of the programs")
    parser.add_argument("--fetch", action="store_true", help="bring the sources of these programs")
    given = parser.parse_args()
    root = given.folder.absolute()
    programs = [
        program
        for program in GALLERY["programs"]
        if not given.words or any(word in program["name"] for word in given.words)
    ]
    return fetch_all(programs, root) if given.fetch else run_all(programs, root)


def fetch_all(programs: list[dict[str, Any]], root: Path) -> int:
    """Bring the sources of programs; the exit code."""
    bad = 0
    for name in sorted({name for program in programs for name in program["needs"]}):
        try:
            fetch(SOURCES[name], root)
            print(f"{name}: {place(SOURCES[name], root)}", flush=True)
        except SourceError as error:
            bad += 1
            print(f"{name}: {error}", flush=True)
    return 1 if bad else 0


def run_all(programs: list[dict[str, Any]], root: Path) -> int:
    """Build and run programs; the exit code."""
    built = root / "built"
    built.mkdir(exist_ok=True, parents=True)
    bad = 0
    for program in programs:
        if reason := why_not(program, root):
            print(f"{program['name']}: skipped: {reason}", flush=True)
            continue
        begin = middle = time.monotonic()
        try:
            target = build(program, root, built)
            middle = time.monotonic()
            wrong = run(program, target, root, built)
        except SourceError as error:
            wrong = [str(error)]
        bad += bool(wrong)
        seconds = f"built in {middle - begin:.0f} s, run in {time.monotonic() - middle:.0f} s"
        print(f"{program['name']}: {'; '.join(wrong) or 'as expected'} ({seconds})", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
