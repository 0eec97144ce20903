"""What the simulator counts for ``flash`` on the mission shape, and what it would count without the swizzle."""

import numpy as np
import pytest

from sdpalab import sim
from sdpalab.build import build
from sdpalab.kernels.plan import INCLUDE_DIR, Module
from sdpalab.kernels.registry import get
from sdpalab.problem import MISSION, Problem
from sdpalab.sim.counters import Counters


def counters_of(problem: Problem, include_dir=None) -> Counters:
    (step,) = get("flash").launch_plan(problem).steps
    assert step.module is not None
    module = step.module
    if include_dir is not None:
        module = Module(module.name, module.source, module.entry, module.defines, (include_dir,))
    built = build(module, "sm_89")
    shapes = {"q": problem.q_shape, "k": problem.kv_shape, "v": problem.kv_shape, "o": problem.q_shape}
    args = [np.ones(shapes[arg], np.float16) if isinstance(arg, str) else arg for arg in step.args]
    report = sim.launch(
        built.ptx,
        built.entry,
        step.grid,
        step.block,
        args,
        dynamic_smem=step.dynamic_smem,
        checks=(),
        counters=True,
    )
    assert report.counters is not None
    return report.counters


def test_the_mission_shape_does_exactly_its_flops_and_moves_exactly_its_bytes():
    counters = counters_of(MISSION)
    assert counters.tensor_flops == MISSION.flops
    assert counters.exponentials >= MISSION.exponentials
    assert counters.compulsory_read_bytes + counters.compulsory_write_bytes == MISSION.least_bytes
    assert counters.total("sectors") == counters.total("ideal_sectors")
    assert counters.total("wavefronts") == counters.total("ideal_wavefronts")
    assert counters.divergence == 0


def test_without_the_swizzle_every_ldmatrix_conflicts_eight_times(tmp_path):
    old = "(row * CHUNKS + (chunk ^ phase)) * CHUNK_BYTES"
    for header in INCLUDE_DIR.glob("*.cuh"):
        text = header.read_text()
        if header.name == "tile.cuh":
            assert text.count(old) == 1
            text = text.replace(old, "(row * CHUNKS + chunk + 0 * phase) * CHUNK_BYTES")
        (tmp_path / header.name).write_text(text)
    counters = counters_of(Problem(1, 1, 128, 64), tmp_path)
    loads = [each for each in counters.by_instruction if each.text.startswith("ldmatrix") and each.warps]
    assert loads
    for each in loads:
        assert each.wavefronts == pytest.approx(8 * each.ideal_wavefronts)
        assert each.source.startswith("ptx.cuh:")
