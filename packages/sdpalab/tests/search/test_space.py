"""The space: which configurations are valid, which predicate rejects the others, neighbours."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planted import PROBLEM, kernel

from sdpalab import MISSION, Config, CudaKernel, Launch, Problem, UserError
from sdpalab.kernels.registry import KERNELS, needs
from sdpalab.kernels.registry import get as registered
from sdpalab.model.counted import arch_on
from sdpalab.search.space import ConfigSpace
from warpsan.gpus import GPUS

L4, H200 = GPUS["L4"], GPUS["H200"]


@pytest.mark.parametrize("name", list(KERNELS))
def test_a_shipped_kernels_space_is_its_own(name: str) -> None:
    if needs(name):
        pytest.skip(str(needs(name)))
    shipped = registered(name)
    gpu = next(each for each in (L4, H200, GPUS["B200"]) if arch_on(shipped, each))
    space = ConfigSpace.of(shipped, [MISSION], [gpu])
    assert set(space) <= set(shipped.space(MISSION))
    beyond = [config for config in shipped.space(MISSION) if config not in space]
    assert not beyond or "static limits" in space.rejected
    assert space.nearest(shipped.default_config) is not None


def test_a_configuration_has_to_suit_every_problem_and_gpu() -> None:
    flash = registered("flash")
    narrow = ConfigSpace.of(flash, [MISSION], [L4])
    both = ConfigSpace.of(flash, [MISSION, MISSION.with_(head_dim=128, scale=None)], [L4, H200])
    assert set(both) < set(narrow)


def test_an_empty_space_names_the_predicates_that_emptied_it() -> None:
    with pytest.raises(UserError, match=r"toy has no valid configuration.*static limits rejects \d+ of 640.*1024"):
        ConfigSpace.of(
            replace(kernel(), plan=lambda problem, config: Launch((1, 1, 1), (2048, 1, 1), ())), [PROBLEM], [L4]
        )
    with pytest.raises(UserError, match="supports rejects 640 of 640"):
        ConfigSpace.of(replace(kernel(), supports=lambda problem: False), [PROBLEM], [L4])
    with pytest.raises(UserError, match=r"reject rejects 640 of 640 \(never\)"):
        ConfigSpace.of(replace(kernel(), reject=lambda problem, config: "never"), [PROBLEM], [L4])
    with pytest.raises(UserError, match="arch rejects 640 of 640"):
        ConfigSpace.of(replace(kernel(), only_arch="sm_90a"), [PROBLEM], [L4])
    with pytest.raises(UserError, match="supports rejects 3888 of 3888"):
        ConfigSpace.of(registered("flash"), [Problem(1, 1, 64, 77)], [L4])


def test_too_many_combinations_are_refused_before_they_are_listed() -> None:
    knobs = {f"K{n}": tuple(range(10)) for n in range(9)}
    many = CudaKernel("many", "", "many", plan=kernel().plan, configs=(dict.fromkeys(knobs, 0),), knobs=knobs)
    with pytest.raises(UserError, match="1000000000 combinations"):
        ConfigSpace.of(many, [PROBLEM], [L4])


def test_a_kernel_without_knobs_has_one_configuration() -> None:
    bare = CudaKernel("bare", "", "bare", plan=lambda problem, config: Launch((1, 1, 1), (32, 1, 1), ()))
    assert list(ConfigSpace.of(bare, [PROBLEM], [L4])) == [Config()]


def test_a_kernel_with_configurations_and_no_knobs_has_those() -> None:
    listed = ({"A": 1, "B": 1}, {"A": 2, "B": 1}, {"A": 4, "B": 2})
    plain = CudaKernel(
        "plain", "", "plain", plan=lambda problem, config: Launch((1, 1, 1), (32, 1, 1), ()), configs=listed
    )
    space = ConfigSpace.of(plain, [PROBLEM], [L4])
    assert list(space) == [Config(each) for each in listed]
    assert space.knobs == {"A": (1, 2, 4), "B": (1, 2)}
    assert space.steps(Config(listed[0])) == (Config(listed[1]), Config(listed[2]))


def test_steps_change_one_knob_to_a_neighbour_or_repair_what_a_condition_forbids() -> None:
    space = ConfigSpace.of(kernel(), [PROBLEM], [L4])
    start = Config(TILE=64, STAGES=3, WARPS=4, MODE="a", NOISE=0)
    for step in space.steps(start):
        assert step in space
        assert step != start
    near = [step for step in space.steps(start) if space.distance(step, start) == 1]
    assert {step["STAGES"] for step in near} == {2, 3, 4}
    assert {step["MODE"] for step in near} == {"a", "b", "c", "d", "e"}
    # TILE=128 allows two stages only: the step takes the other knob along.
    assert Config(TILE=128, STAGES=1, WARPS=4, MODE="a", NOISE=0) in space.steps(start)


def test_flash_steps_reach_every_configuration() -> None:
    space = ConfigSpace.of(registered("flash"), [MISSION], [L4])
    reached, frontier = {space.configs[0]}, [space.configs[0]]
    while frontier:
        frontier = [step for config in frontier for step in space.steps(config) if step not in reached]
        frontier = list(dict.fromkeys(frontier))
        reached |= set(frontier)
    assert reached == set(space)
