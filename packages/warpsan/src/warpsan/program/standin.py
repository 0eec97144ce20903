"""Replacement for the CUDA runtime, built from ``cudart.c`` by the machine's C compiler and kept in the cache."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from warpsan.build.cache import Cache, key_of
from warpsan.errors import MachineError
from warpsan.program.calls import calls_source

__all__ = ["VERSIONS", "lay_out_standin"]

VERSIONS = {"11": "libcudart.so.11.0", "12": "libcudart.so.12", "13": "libcudart.so.13"}
"""Supported versions of the runtime, with their library names."""

_HERE = Path(__file__).parent
_OPTIONS = ("-std=gnu11", "-O1", "-fPIC", "-shared", "-fno-omit-frame-pointer", "-pthread")


def lay_out_standin(version: str, folder: Path, cache: Cache | None = None) -> Path:
    """Write the replacement for a version of the runtime to a folder, under the library names of the original.

    Returns
    -------
    Path
        Path of the library.

    Raises
    ------
    MachineError
        If the machine has no C compiler, or compilation fails.
    """
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(compiler[0]) is None:
        raise MachineError(
            f"there is no C compiler ({compiler[0]}), which builds the library that stands in for the CUDA runtime: "
            "install gcc or clang"
        )
    source, calls = (_HERE / "cudart.c").read_text(), calls_source(_HERE / "unmodelled.txt")
    name = VERSIONS[version]
    key = key_of(source, calls, name, " ".join([*compiler, *_OPTIONS]))
    entry = (cache or Cache()).get_or_make(
        f"cudart-{version}-{key[:16]}", key, lambda: {"libcudart.so": _compiled(compiler, source, calls, version)}
    )
    library = folder / name
    library.write_bytes(entry.files["libcudart.so"])
    library.chmod(0o755)
    for other in ("libcudart.so", "libcuda.so.1"):
        (folder / other).symlink_to(name)
    return library


def _compiled(compiler: list[str], source: str, calls: str, version: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "cudart.c").write_text(source)
        (root / "calls.inc").write_text(calls)
        # Programs require symbols with the library's name as their version.
        (root / "symbols.map").write_text(f"{VERSIONS[version]} {{ global: cuda*; cu*; __cuda*; local: *; }};\n")
        out = root / "libcudart.so"
        command = [*compiler, *_OPTIONS, f"-I{folder}", f"-DVERSION={version}", f"-Wl,-soname,{VERSIONS[version]}"]
        command += [f"-Wl,--version-script,{root / 'symbols.map'}", str(root / "cudart.c"), "-o", str(out), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
            raise MachineError(f"{compiler[0]} failed to compile the replacement of the CUDA runtime: {first}")
        return out.read_bytes()
