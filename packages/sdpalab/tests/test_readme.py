"""The READMEs' tables are those of the records, and the pages list every kernel and command."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from lab.verdicts import code_of
from sdpalab.compile import build, resources
from sdpalab.kernels.registry import KERNELS, needs
from sdpalab.measure import gpu_named
from sdpalab.model.counted import arch_on
from sdpalab.problem import MISSION

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "packages" / "sdpalab" / "README.md").read_text()
REMEDY = "run python -m lab ladder, then python scripts/readme_tables.py --write"
PUBLISHED = (
    *("registers", "static_shared_bytes", "dynamic_shared_bytes", "spill_bytes", "stack_bytes"),
    *("blocks_per_sm", "warps_per_sm", "limiter", "tensor_share"),
)
"""What the tables show of a cubin. Instructions may differ: NVRTC does not compile ``scalar`` to the same PTX."""


@pytest.fixture(scope="module")
def readme_tables(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("readme_tables")


def test_the_ladder_has_every_kernel_in_order(readme_tables: ModuleType) -> None:
    table = README.partition("<!-- table: ladder -->")[2].partition("<!-- end of table -->")[0]
    rows = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert rows == list(KERNELS), f"the ladder in packages/sdpalab/README.md must have each kernel: {REMEDY}"


def test_every_kernel_has_its_page_in_order() -> None:
    folder = ROOT / "packages" / "sdpalab" / "docs" / "kernels"
    assert {path.stem for path in folder.glob("*.md")} == {"index", *KERNELS}
    listed = (folder / "index.md").read_text().partition("```{toctree}")[2].partition("```")[0]
    assert [line for line in listed.split() if line in KERNELS] == list(KERNELS)
    for name in KERNELS:
        assert (folder / f"{name}.md").read_text().startswith(f"# `{name}`\n\n## Idea\n")


def test_the_tables_are_those_of_the_records(readme_tables: ModuleType) -> None:
    tables = readme_tables.tables()
    for page in readme_tables.PAGES:
        text = (ROOT / page).read_text()
        assert text == readme_tables.filled(text, tables), f"{page}: run python scripts/readme_tables.py --write"


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", KERNELS)
def test_the_record_of_the_ladder_is_of_the_kernel_as_it_is(name: str, readme_tables: ModuleType) -> None:
    if (reason := needs(name)) is not None:
        pytest.skip(reason)
    kernel = KERNELS[name]
    record, ladder = readme_tables.newest()
    entries = {entry["kernel"]: entry for entry in ladder["kernels"]}
    assert name in entries, f"{record} has no kernel {name}: {REMEDY}"
    entry = entries[name]
    stale = f"{record} is not of the {name} that there is now: {REMEDY}"
    assert (entry["idea"], entry["config"]) == (kernel.idea, str(kernel.default_config)), stale
    archs = {gpu: arch_on(kernel, gpu_named(gpu)) for gpu in ladder["gpus"]}
    assert {gpu: on["arch"] for gpu, on in entry["on"].items()} == {gpu: arch for gpu, arch in archs.items() if arch}, (
        stale
    )
    for gpu, on in entry["on"].items():
        assert on["sms"] == gpu_named(gpu).sms, stale
        launches = kernel.launch_plan(MISSION, sms=on["sms"]).launches
        recorded = [step["resources"] for step in on["steps"] if "resources" in step]
        used = [resources(build(launch.module, on["arch"]), launch).to_dict() for launch in launches if launch.module]
        assert len(used) == len(recorded), stale
        both = list(zip(used, recorded, strict=True))
        changed = {name for name in PUBLISHED if any(now[name] != then[name] for now, then in both)}
        assert not changed, f"{stale} ({', '.join(sorted(changed))} changed on {on['arch']})"


SEVERAL_CODES = ("scalar",)
"""NVRTC makes one code or another of them, from one source, as it pleases."""


@pytest.mark.parametrize("name", KERNELS)
def test_the_full_verdict_is_of_the_kernel_as_it_is(name: str, readme_tables: ModuleType) -> None:
    remedy = f"run python -m lab verdicts {name}, and scripts/readme_tables.py --write"
    judged = readme_tables.verdicts()
    assert name in judged, remedy
    each = judged[name]
    assert each["status"] == "PASSED"
    assert each["statuses"] == {"PASSED": each["cases"]}
    assert each["cases"] > 200
    assert each["config"] == str(KERNELS[name].default_config), remedy
    if needs(name) is None and name not in SEVERAL_CODES:
        assert each["code_sha256"] == code_of(KERNELS[name]), remedy


def test_every_command_that_there_is_and_no_other_is_listed() -> None:
    from sdpalab.cli import COMMANDS

    page = (ROOT / "packages" / "sdpalab" / "docs" / "cli.md").read_text()
    listed = re.findall(r"^\| `([\w-]+)", page.partition("## Commands\n")[2].partition("\n## ")[0], re.MULTILINE)
    assert listed == list(COMMANDS)
