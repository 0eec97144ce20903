"""The distribution of attention's work over the blocks of a grid: whole tiles of queries, or equal shares (stream-K).

The unit of work is one tile of queries against one tile of keys that it sees. All units of a problem stand in a row,
head by head, in a head tile of queries by tile of queries. The device side is ``include/schedule/stream_k.cuh``.
Stream-K is of Osama, Merrill, Cecka, Garland and Owens (2023), who distribute the products of a matrix product.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from sdpalab.problem import Problem

__all__ = ["Shares", "Units", "reciprocal", "time_of_shares", "time_of_tiles"]

TILE_COST, SHARING_COST, MERGING_COST = 0.5, 1.0, 0.25
"""Latencies that a block has beside its units, in units: to begin and end a tile of queries; to store a partial result
of it and signal that; to merge one of the parts. Assumptions: not yet run on hardware."""


@dataclass(frozen=True)
class Units:
    """The units of a problem in a tiling.

    Attributes
    ----------
    of_tile : tuple of int
        Units of each tile of queries of a head: the tiles of keys that it sees.
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
    """Neighbouring units for each block, of all blocks the same number or, for the first ``longer`` ones, one more."""

    blocks: int
    units_per_block: int
    longer: int

    @classmethod
    def of(cls, units: Units, blocks: int) -> Shares:
        """All ``units`` for at most ``blocks`` blocks, of which none is idle."""
        blocks = min(blocks, units.total)
        return cls(blocks, *divmod(units.total, blocks))

    def block_of(self, unit: int) -> int:
        """The block whose share ``unit`` is in."""
        in_longer = self.longer * (self.units_per_block + 1)
        if unit < in_longer:
            return unit // (self.units_per_block + 1)
        return self.longer + (unit - in_longer) // self.units_per_block

    def arguments(self, units: Units) -> tuple[int, ...]:
        """The arguments of the device side: units of a head, of a block, how many blocks have one more, and the
        reciprocals of what it divides by."""
        divisors = (units.per_head, units.of_tile[0], self.units_per_block, self.units_per_block + 1)
        return units.per_head, self.units_per_block, self.longer, *map(reciprocal, divisors)

    def sharers(self, units: Units) -> Iterator[range]:
        """For each tile of queries the blocks that have some of its units."""
        first = 0
        for _ in range(units.heads):
            for tile in units.of_tile:
                yield range(self.block_of(first), self.block_of(first + tile - 1) + 1)
                first += tile


def reciprocal(divisor: int) -> int:
    """ceil(2^63 / divisor), by which the device divides numbers below 2^31; of 1 <= divisor < 2^31."""
    return -(-(2**63) // divisor)


def time_of_tiles(units: Units, sms: int) -> float:
    """Modelled time of a block for each tile of queries, in units that one SM takes one after the other.

    In the grid each head's longest tiles come first, and a block goes to the SM that has least to do. Blocks of an SM
    take turns at its tensor cores, so that it takes as long as all of them together.
    """
    loads = [0] * sms
    longest_first = sorted(units.of_tile, reverse=True)
    for _ in range(units.heads):
        for tile in longest_first:
            heapq.heapreplace(loads, loads[0] + tile)
    return max(loads) + TILE_COST


def time_of_shares(units: Units, shares: Shares, sms: int) -> float:
    """Modelled time of equal shares, as :func:`time_of_tiles`: the busiest SM, and the longest latencies of a block."""
    added = [0.0] * shares.blocks
    for blocks in shares.sharers(units):
        latency = TILE_COST + (SHARING_COST + MERGING_COST * len(blocks) if len(blocks) > 1 else 0.0)
        for block in blocks:
            added[block] += latency
    busiest = sum(shares.units_per_block + (block < shares.longer) for block in range(0, shares.blocks, sms))
    return busiest + max(added)
