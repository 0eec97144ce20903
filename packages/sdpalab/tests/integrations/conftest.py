"""transformers shows progress with tqdm, whose thread would stay and keep the simulator from forking in later tests."""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):
    from tqdm import tqdm

    tqdm.monitor_interval = 0
