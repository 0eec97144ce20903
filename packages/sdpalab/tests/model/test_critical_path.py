"""The critical path of a CTA on wgmma: its phases, and what a split of the keys adds and takes off."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from sdpalab.kernels.hopper import HOPPER
from sdpalab.kernels.kernel import Config
from sdpalab.kernels.registry import get
from sdpalab.model.counted import CountedLaunch, count
from sdpalab.model.critical_path import CLUSTER_BYTES_PER_CLOCK, CriticalPath, critical_path
from sdpalab.model.operations import CLUSTER_CLOCKS
from sdpalab.problem import Problem
from warpsan.gpus import gpu_named

H200 = gpu_named("H200")
PROBLEM = Problem(1, 1, 128, 64, seq_kv=512)
WHOLE = HOPPER.default_config.but(BLOCK_M=64, BLOCK_N=128, SPLIT=1, KEY_GROUPS=1)


def counted(config: Config, problem: Problem = PROBLEM) -> CountedLaunch:
    return count(HOPPER, problem, "sm_90a", config, sms=H200.sms).main


def path_of(config: Config, problem: Problem = PROBLEM) -> CriticalPath:
    path = counted(config, problem).critical_path(H200)
    assert path is not None
    return path


@pytest.fixture(scope="module")
def whole() -> CriticalPath:
    return path_of(WHOLE)


@pytest.fixture(scope="module")
def split() -> CriticalPath:
    return path_of(WHOLE.but(SPLIT=2))


@pytest.mark.slow
def test_a_tile_of_keys_is_products_and_a_softmax(whole: CriticalPath) -> None:
    names = [phase.name for phase in whole.phases]
    assert names[:4] == ["start", "first copies", "products", "softmax"]
    assert names[4:7] == ["products", "softmax beside a product", "softmax"]  # what is packed behind the wait
    assert Counter(names)["softmax beside a product"] == PROBLEM.seq_kv // 128 - 1
    assert names[-2:] == ["products", "store"]
    assert all(phase.clocks > 0 for phase in whole.phases)


def test_scores_take_what_their_products_take(whole: CriticalPath) -> None:
    first = next(phase for phase in whole.phases if phase.name == "products")
    assert first.clocks == pytest.approx(4 * 64, abs=64)  # m64n128k16, four times, and the latency of the last one


def test_a_softmax_takes_no_less_than_its_exponentials(whole: CriticalPath) -> None:
    beside = [phase.clocks for phase in whole.phases if phase.name == "softmax beside a product"]
    assert min(beside) >= 56 * 8  # of a lone warp on its sub-core, without those on the FMA units


def test_a_split_sends_merges_and_has_fewer_tiles(whole: CriticalPath, split: CriticalPath) -> None:
    names = [phase.name for phase in split.phases]
    assert names[-3:] == ["send", "to the other SM", "merge and store"]
    send, network = (phase.clocks for phase in split.phases[-3:-1])
    sent = 2 * 16 * (PROBLEM.head_dim + 8) * 4  # of two warps: 16 rows of O, and 16 bytes a lane for the softmax
    assert send + network == pytest.approx(max(send, sent / CLUSTER_BYTES_PER_CLOCK) + CLUSTER_CLOCKS)
    assert Counter(names)["softmax beside a product"] == 1
    turns = whole.clocks - split.clocks
    assert 0 < turns < whole.clocks / 2
    assert split.microseconds == pytest.approx(split.clocks / H200.clock_mhz)


def turn_of(path: CriticalPath) -> float:
    """Clocks of the last turn: its products, the softmax beside them, and what is behind the wait."""
    last = max(place for place, phase in enumerate(path.phases) if phase.name == "softmax beside a product")
    return sum(phase.clocks for phase in path.phases[last - 1 : last + 2])


def test_groups_take_two_tiles_in_less_than_two_turns_and_merge_before_they_store(whole: CriticalPath) -> None:
    groups = path_of(WHOLE.but(KEY_GROUPS=2, NUM_STAGES=4), PROBLEM.with_(seq_kv=768))
    assert Counter(phase.name for phase in groups.phases)["softmax beside a product"] == 768 // 128 // 2 - 1
    assert turn_of(groups) < 1.7 * turn_of(whole)
    assert groups.phases[-1].name == "store"
    assert groups.phases[-1].clocks > whole.phases[-1].clocks


def test_few_ctas_have_more_of_l2_each(whole: CriticalPath) -> None:
    launch = counted(WHOLE)
    everywhere = critical_path(launch.code, launch.counters, launch._memory, H200)
    assert everywhere is not None
    assert whole.phases[1].name == "first copies"
    assert whole.phases[1].clocks < everywhere.phases[1].clocks


def test_without_wgmma_or_with_more_blocks_than_fit_there_is_none() -> None:
    l4 = gpu_named("L4")
    flash = count(get("flash"), Problem(1, 1, 64, 64), "sm_89", sms=l4.sms).main
    assert flash.critical_path(l4) is None
    three = counted(WHOLE, PROBLEM.with_(seq_q=192))
    assert three.resources.blocks_per_sm == 1  # by their shared memory
    assert three.critical_path(replace(H200, sms=2)) is None
    assert three.critical_path(replace(H200, sms=3)) is not None
