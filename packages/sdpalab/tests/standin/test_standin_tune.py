"""Measured costs of a search on the stand-in driver: what is raced was judged, and in the same rounds."""

from __future__ import annotations

import json

import pytest
from standin_gpu import StandIn

RACE = """
import json
from sdpalab import Problem
from sdpalab.kernels.registry import get
from sdpalab.search.racing import race
flash = get("flash")
tiles = flash.default_config.but(SCHEDULE="tiles")
problem = Problem(1, 1, 64, 64)
print(json.dumps(race(flash, {"champion": tiles, "challenger": tiles.but(BLOCK_M=32)}, [problem], seconds=8.0, seed=1)))
"""

TUNE = """
import json
from sdpalab import Problem
from sdpalab.search import tuning
from sdpalab.jobs.local import result_of
from sdpalab.jobs.worker import answer

class InThisProcess:
    capacity = 1
    def __init__(self):
        self.results = []
        self.kinds = []
    def submit(self, job):
        self.kinds.append(job.kind)
        self.results.append(result_of(job.number, answer(job.kind, job.inputs, job.code)))
    def completed(self, seconds):
        results, self.results = self.results, []
        return results
    def close(self):
        pass

tuning.run_finals = lambda *arguments: []  # the full judge takes minutes here, and is tested elsewhere
executor = InThisProcess()
result = tuning.tune("flash", Problem(1, 1, 64, 64), gpu="here", budget=2, executor=executor)
print(json.dumps({**result.to_dict(), "kinds": executor.kinds}))
"""


@pytest.mark.slow
def test_a_race_compares_two_configurations_in_the_same_rounds(standin: StandIn) -> None:
    done = standin.run(RACE, timeout=600)
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout.splitlines()[-1])
    assert set(value["times_us"]["1x1x64x64"]) == {"champion", "challenger"}
    assert set(value["outcomes"]["1x1x64x64"]) == {"challenger"}
    assert value["reasons"] == {}


@pytest.mark.slow
def test_a_measured_search_judges_on_the_gpu_and_then_races(standin: StandIn) -> None:
    done = standin.run(TUNE, timeout=900)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["kind"], result["head"]["gpus"]) == ("gpu", ["H200"])
    assert result["kinds"][:3] == ["build", "prove", "race"]
    assert "count" not in result["kinds"]
    default = result["trials"][0]
    assert default["standing"] == "PASSED", default["reason"]
    assert default["gates"] == ["build", "static gate", "sanitize", "quick judge", "race"]
    assert default["costs_us"]["H200"] > 0
