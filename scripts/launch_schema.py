"""Write docs/launch.schema.json, the JSON schema of launch files, from their models.

    python scripts/launch_schema.py

A test compares the file with the models.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from warpsan.sanitize import launch_schema

SCHEMA = Path(__file__).parent.parent / "packages" / "warpsan" / "docs" / "launch.schema.json"


def main() -> int:
    """Write the schema."""
    SCHEMA.write_text(json.dumps(launch_schema(), indent=2) + "\n")
    print(f"wrote {SCHEMA.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
