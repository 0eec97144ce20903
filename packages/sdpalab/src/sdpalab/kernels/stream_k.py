"""Distribution of attention's work over the blocks of a grid: whole tiles of queries, or equal shares (stream-K).

The unit of work is one tile of queries against one visible tile of keys. Work units are numbered consecutively, head
by head and within a head by tile of queries. The device side is ``include/schedule/stream_k.cuh``. Source of stream-K,
for matrix products: Osama, Merrill, Cecka, Garland and Owens (2023).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from sdpalab.problem import Problem

__all__ = ["Shares", "Units", "reciprocal", "time_of_shares", "time_of_tiles"]

TILE_COST, SHARING_COST, MERGING_COST = 0.5, 1.0, 0.25
"""Latencies of a block besides its units, in units: start and end of a tile of queries; store and signal of a partial
result; merge of one part. Assumptions: not yet measured."""


@dataclass(frozen=True)
class Units:
    """The units of a problem in a tiling.

    Attributes
    ----------
    of_tile : tuple of int
        Units of each tile of queries of a head: its visible tiles of keys.
    heads : int
        Query heads of all batches.
    """

    of_tile: tuple[int, ...]
    heads: int

    @classmethod
    def of(cls, problem: Problem, block_m: int, block_n: int) -> Units:
        """The units of ``problem`` in tiles of ``block_m`` queries and ``block_n`` keys."""
        last_rows = (min(first + block_m, problem.seq_q) - 1 for first in range(0, problem.seq_q, block_m))
        seen = (min(row + 1, problem.seq_kv) if problem.causal else problem.seq_kv for row in last_rows)
        return cls(tuple(-(-keys // block_n) for keys in seen), problem.batch * problem.heads)

    @property
    def per_head(self) -> int:
        """Units of a head."""
        return sum(self.of_tile)

    @property
    def total(self) -> int:
        """Units of the problem."""
        return self.per_head * self.heads

    @property
    def tiles(self) -> int:
        """Tiles of queries of the problem."""
        return len(self.of_tile) * self.heads


@dataclass(frozen=True)
class Shares:
    """Consecutive units for each block: equal numbers, plus one for each of the first ``longer`` blocks."""

    blocks: int
    units_per_block: int
    longer: int

    @classmethod
    def of(cls, units: Units, blocks: int) -> Shares:
        """Distribution of all ``units`` over at most ``blocks`` blocks, none of them idle."""
        blocks = min(blocks, units.total)
        return cls(blocks, *divmod(units.total, blocks))

    def block_of(self, unit: int) -> int:
        """Block whose share contains ``unit``."""
        in_longer = self.longer * (self.units_per_block + 1)
        if unit < in_longer:
            return unit // (self.units_per_block + 1)
        return self.longer + (unit - in_longer) // self.units_per_block

    def arguments(self, units: Units) -> tuple[int, ...]:
        """Arguments of the device side: units of a head and of a block, number of longer blocks, and the reciprocals of
        the divisors."""
        divisors = (units.per_head, units.of_tile[0], self.units_per_block, self.units_per_block + 1)
        return units.per_head, self.units_per_block, self.longer, *map(reciprocal, divisors)

    def sharers(self, units: Units) -> Iterator[range]:
        """Blocks with units of each tile of queries, tile by tile."""
        first = 0
        for _ in range(units.heads):
            for tile in units.of_tile:
                yield range(self.block_of(first), self.block_of(first + tile - 1) + 1)
                first += tile


def reciprocal(divisor: int) -> int:
    """ceil(2^63 / divisor) for 1 <= divisor < 2^31, with which the device divides numbers below 2^31."""
    return -(-(2**63) // divisor)


def time_of_tiles(units: Units, sms: int) -> float:
    """Modelled time of one block per tile of queries, in units of work of one SM.

    The grid has each head's longest tiles first, and each block goes to the least loaded SM. Blocks of an SM share its
    tensor cores, so its time is the sum of theirs.
    """
    loads = [0] * sms
    longest_first = sorted(units.of_tile, reverse=True)
    for _ in range(units.heads):
        for tile in longest_first:
            heapq.heapreplace(loads, loads[0] + tile)
    return max(loads) + TILE_COST


def time_of_shares(units: Units, shares: Shares, sms: int) -> float:
    """Modelled time of equal shares, as :func:`time_of_tiles`: the busiest SM, and a block's longest latencies."""
    added = [0.0] * shares.blocks
    for blocks in shares.sharers(units):
        latency = TILE_COST + (SHARING_COST + MERGING_COST * len(blocks) if len(blocks) > 1 else 0.0)
        for block in blocks:
            added[block] += latency
    busiest = sum(shares.units_per_block + (block < shares.longer) for block in range(0, shares.blocks, sms))
    return busiest + max(added)
