"""Functions on structs for tests of the native engine's translator."""

from __future__ import annotations

from warpsan.engine.structs import NativeStruct, Ptr, i32, i64, inline, u8
from warpsan.engine.words import fill, load64


class Pair(NativeStruct):
    left: i64
    right: i32


class Whole(NativeStruct):
    small: u8
    bytes: Ptr[u8] = inline(3)
    middle: i32
    large: i64
    pair: Pair
    words: Ptr[i32] = inline(4)
    own: Ptr[Pair] = inline(2)
    pairs: Ptr[Pair]


def pointer_to_pairs(address: int) -> Ptr[Pair]:
    return Ptr(address, Pair)


def scalars(whole: Whole, k: int, value: int) -> int:
    whole.small = value
    whole.middle = value << 28
    whole.large += whole.small + whole.middle
    whole.words[k] = value * value
    whole.words[3 - k] -= value
    whole.bytes[k & 1] = value
    return whole.words[k] + whole.bytes[2]


def structs(whole: Whole, k: int, value: int) -> int:
    pair = whole.pairs[k]
    pair.left, pair.right = pair.right, pair.left
    whole.own[1].left = whole.pair.left
    other = whole.pairs.at(k) if value > 0 else whole.own
    other[0].right = 7
    return other[0].left


def nothing(whole: Whole, k: int, value: int) -> int:
    found = Pair(0)
    for j in range(4):
        if whole.pairs[j].right > value:
            found = whole.pairs[j]
    if found == 0:
        return -1
    found.left += 1
    return found - whole.pairs


def addresses(whole: Whole, k: int, value: int) -> int:
    fill(whole.words, value, 4 * k)
    fill(whole + 8, 0, 2)
    whole.middle = load64(whole.pairs + 16) + last_of(whole).right
    return whole.pairs.at(2) - whole.pairs


def last_of(whole: Whole) -> Pair:
    return whole.pairs[3]


def no_field(whole: Whole, k: int, value: int) -> int:
    return whole.none  # type: ignore[attr-defined, no-any-return]


def no_struct(whole: Whole, k: int, value: int) -> int:
    return whole.large.left  # type: ignore[attr-defined, no-any-return]


def two_kinds(whole: Whole, k: int, value: int) -> int:
    place = whole.pair
    place = value  # type: ignore[assignment]
    return place.left


STRUCTS = (scalars, structs, nothing, addresses)
REFUSED = (no_field, no_struct, two_kinds)
