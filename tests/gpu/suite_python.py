"""Stands in the place of python in tests of ``gpu_suite.sh``: notes its command line, and ends as MOODS says.

The suite itself runs on the real Python. MOODS maps the name of a part's subject to what happens there: ``wrong`` (exit
code 1), ``refused`` (3), ``again`` (4 the first time), ``hang``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

KERNELS = ("scalar", "flash", "hopper")
TIMES = {"results": [{"measurements": [{"summary": {"median_us": 3.0}}]}]}


def main(words: list[str]) -> int:
    """Do what a part would do."""
    if words[0].endswith("gpu_suite.py"):
        os.execv(os.environ["REAL_PYTHON"], [os.environ["REAL_PYTHON"], *words])
    asked = " ".join(words)
    with open(os.environ["ASKED"], "a") as file:
        file.write(f"{asked}\n")
    if "gpu_records.py probe" in asked:
        print(json.dumps({"gpu": "NVIDIA T1", "arch": "sm_90a", "kernels": KERNELS, "refused": ["it is too new"]}))
        return 0
    moods = json.loads(os.environ["MOODS"])
    mood = next((moods[subject] for subject in moods if subject in asked), "")
    if mood == "hang":
        print("it hangs", flush=True)
        time.sleep(60)
    if mood == "again" and Path(os.environ["ASKED"]).read_text().count(f"{asked}\n") == 1:
        print("first try")
        return 4
    if mood == "refused":
        print("refused")
        return 3
    if "repro" in words:
        bundle = "wrong" if mood == "wrong" else words[words.index("--kernel") + 1]
        folder = Path(words[words.index("--out") + 1])
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(os.environ["BUNDLES"]) / f"{bundle}.tar.gz", folder / "bundle.tar.gz")
    if "bench" in words and mood != "no times":
        Path(words[words.index("--json") + 1]).write_text(json.dumps(TIMES))
    for name in ("PYTHONPATH", "SDPALAB_COMMIT", "SDPALAB_CACHE_DIR"):
        print(f"{name}={os.environ.get(name)}")
    print("last line of it")
    return 1 if mood in ("wrong", "no times") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
