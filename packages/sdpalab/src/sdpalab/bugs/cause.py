"""Classes of bugs: the answers of a diagnosis."""

from __future__ import annotations

from enum import Enum

__all__ = ["Cause"]


class Cause(str, Enum):
    """A class of bugs, in the words of a message."""

    NO_ATTENTION = "the scores have no effect"
    MASK = "the mask is wrong"
    CAP = "the soft cap is wrong"
    ALIBI = "the ALiBi bias is wrong"
    SINKS = "the attention sinks are wrong"
    DELTA = "delta, the sum of dO * O of each row, is wrong"
    LOG_SUM = "P is computed from a wrong log-sum-exp"
    SLOPE = "the derivative of the soft cap is wrong"
    GROUP = "dK and dV are not the sums over the query heads of their group"
    HEADS = "heads or batches are mixed up"
    LAYOUT = "memory is read or written in another order of heads and rows"
    SEQUENCES = "rows of another sequence are read or written, or those of one are left out"
    PAGES = "the block table or the pages of the cache are misread"
    OPERANDS = "Q, K and V are mixed up or not all read"
    RESCALE = "the error grows with the tile of keys: a rescale to the new maximum is lost or wrong"
    PADDING = "keys past the last one are counted"
    KEYS = "keys are left out, counted twice or out of date"
    SUMS = "parts of the sum of a gradient are lost, added elsewhere, or left over"
    FACTOR = "a gradient has a wrong factor"
    SCORES = "the scores have a wrong factor"
    EXPONENTIAL = "scores or small weights are cut off"
    ROWS = "rows of the output hold other rows"
    COLUMNS = "columns of the output hold other columns: a fragment's layout is misread"
    RANGE = "a number overflows, or a sum is 0: the running maximum is wrong, or a type has too little range"
    NORMALISATION = "rows are multiples of the right ones: the sum that they are divided by is wrong"
    EDGE = "only the last rows or columns are wrong"
    PLACE = "only some rows or columns are wrong"
    PRECISION = "the error is noise, alike in all rows: something is held in fewer bits, or computed more roughly"
