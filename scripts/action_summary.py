"""Summary of a command's JSON document in Markdown, for a step of GitHub Actions: ``action_summary.py FILE CODE``."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def summary(path: Path, code: int) -> str:
    """Markdown: the status, and a table of submissions if the document has them."""
    if not path.is_file():
        return f"sdpalab ended with exit code {code} and wrote no document\n"
    document = json.loads(path.read_text())
    lines = [f"**{document['status']}** {_cell(document.get('error') or document['subject'])}", ""]
    rows = document.get("submissions", [])
    if rows:
        lines += ["| submission | verdict | coverage | output by | own check | reason |", "|---|---|---|---|---|---|"]
    for row in rows:
        cells = (row[name] for name in ("submission", "status", "coverage", "provenance", "own", "reason"))
        lines.append(f"| {' | '.join(_cell(str(cell)) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text of a candidate as one cell: without markup and line breaks, at most 300 characters."""
    return " ".join(text[:300].replace("|", "\\|").replace("<", "&lt;").replace("`", "'").split())


if __name__ == "__main__":
    sys.stdout.write(summary(Path(sys.argv[1]), int(sys.argv[2])))
