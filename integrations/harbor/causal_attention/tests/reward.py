"""Reward of a submission: 1 if it is PASSED and its own kernels wrote the output, otherwise 0.

python reward.py APP REFERENCE LOGS
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def main(app: Path, reference: Path, logs: Path) -> int:
    """Audit the submission beside the verifier's own reference, and write ``reward.txt`` and ``audit.json``."""
    submission = app / "submission.py"
    if not submission.is_file():
        print(f"there is no {submission}")
        return 0
    with tempfile.TemporaryDirectory(prefix="audit-") as folder:
        for path, name in ((submission, "submission.py"), (reference, "reference.py")):
            shutil.copyfile(path, Path(folder, name))
        report = logs / "audit.json"
        command = [sys.executable, "-m", "sdpalab", "audit", f"{folder}/submission.py", "--json", str(report)]
        done = subprocess.run(command, check=False)
    if done.returncode == 3:
        print("the machine failed: no verdict")
        return 3
    rows = json.loads(report.read_text()).get("submissions", []) if report.is_file() else []
    passed = [row for row in rows if row["status"] == "PASSED" and row["provenance"].startswith("kernels 100%")]
    (logs / "reward.txt").write_text(f"{int(bool(passed))}\n")
    for row in rows:
        own = "its own kernels" if row["provenance"].startswith("kernels 100%") else row["provenance"] or "nothing"
        print(f"{row['status']}, output by {own}: {row['reason']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
