"""The JSON Schemas of the commands' documents: ``python scripts/json_schemas.py`` writes ``docs/schemas``."""

from __future__ import annotations

import json
from pathlib import Path

from sdpalab.commands.documents import CONTENTS, json_schema

FOLDER = Path(__file__).resolve().parent.parent / "packages" / "sdpalab" / "docs" / "schemas"


def texts() -> dict[str, str]:
    """The text of each schema by the name of its file."""
    return {f"{command}.json": json.dumps(json_schema(command), indent=1) + "\n" for command in CONTENTS}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
