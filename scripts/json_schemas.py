"""Write ``docs/schemas``: JSON Schemas of the commands' documents, of ``serve`` and of traces."""

from __future__ import annotations

import json
from pathlib import Path

from sdpalab.commands.documents import CONTENTS, json_schema
from sdpalab.evidence.store.trace import trace_schema
from sdpalab.service.answers import json_schema as service_schema

FOLDER = Path(__file__).resolve().parent.parent / "packages" / "sdpalab" / "docs" / "schemas"


def texts() -> dict[str, str]:
    """The text of each schema by the name of its file."""
    schemas = {command: json_schema(command) for command in CONTENTS}
    schemas |= {"serve": service_schema(), "trace": trace_schema()}
    return {f"{name}.json": json.dumps(schema, indent=1) + "\n" for name, schema in schemas.items()}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
