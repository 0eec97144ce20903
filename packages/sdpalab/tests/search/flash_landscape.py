"""Every configuration of ``flash`` for the mission shape on an L4, with its modelled time: ``flash_landscape.json``.

``python tests/search/flash_landscape.py`` makes the file anew: half an hour on one core. Strategies are compared on it;
it says nothing of a GPU.
"""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

from sdpalab import MISSION
from sdpalab.kernels.kernel import Config
from sdpalab.kernels.registry import get
from sdpalab.kernels.source import source_digest
from sdpalab.search.gates import build_gate, count_gate
from warpsan.gpus import GPUS

FILE = Path(__file__).with_suffix(".json")


def landscape() -> tuple[dict[str, tuple[Any, ...]], dict[Config, tuple[int, float]]]:
    """The knobs, and for each configuration a number of what runs (equal ones are the same code) and microseconds.

    Infinitely many where the model has no time.
    """
    data = json.loads(FILE.read_text())
    names = data["columns"][:-2]
    rows = {
        Config(dict(zip(names, row[:-2], strict=True))): (row[-2], math.inf if row[-1] is None else row[-1])
        for row in data["rows"]
    }
    return {name: tuple(dict.fromkeys(config[name] for config in rows)) for name in names}, rows


def main() -> None:
    """Build and count every configuration; equal code is counted once."""
    kernel, gpu = get("flash"), GPUS["L4"]
    about = {
        "kernel": "flash",
        "source": source_digest(kernel),
        "problems": [MISSION.to_dict()],
        "gpus": [{"name": gpu.name, "arch": gpu.arch, "sms": gpu.sms}],
    }
    names = list(kernel.knobs)
    known: dict[str, tuple[int, float | None]] = {}
    rows = []
    for config in kernel.space(MISSION):
        inputs = {**about, "config": dict(config)}
        identity = build_gate(inputs)["identity"][gpu.name]
        if identity not in known:
            times = count_gate(inputs).get("times_us")
            known[identity] = len(known), round(times[gpu.name][MISSION.label], 4) if times else None
        rows.append([*(config[name] for name in names), *known[identity]])
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    head = {
        "kind": "modelled",
        "kernel": "flash",
        "gpu": gpu.name,
        "problem": MISSION.label,
        "commit": commit.stdout.strip(),
        "command": f"python {Path(__file__).relative_to(Path.cwd())}",
        "columns": [*names, "identity", "microseconds"],
    }
    text = json.dumps(head)[:-1] + ', "rows": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n]}\n"
    FILE.write_text(text)


if __name__ == "__main__":
    main()
