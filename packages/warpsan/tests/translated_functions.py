"""Integer functions for tests of the native engine's translator: each uses another part of Python."""

from __future__ import annotations

LIMIT = 5


def divided(a: int, b: int) -> int:
    divisor = b if b != 0 else 3
    return 1000 * (a // divisor) + a % divisor


def bits(a: int, b: int) -> int:
    x = (a & b) | (a ^ 5)
    x ^= ~b
    return (x << 3) - (a >> 2)


def compared(a: int, b: int, c: int) -> int:
    total = 0
    if a < b <= c:
        total += 1
    elif a in (b, c, 7):
        total += 10
    else:
        total -= 100
    if not (a == b or (b > 0 and c < 0)):
        total += 1000
    return total + (a > c)


def looped(a: int, b: int) -> int:
    total = 0
    for k in range(a % LIMIT, 12):
        if k == b:
            continue
        if total > 40:
            break
        total += k
    while total > 10:
        total -= max(b, 3)
        if total == LIMIT:
            return -1
    return total


def nested(a: int) -> int:
    total = 0
    for j in range(3):
        for k in range(j, LIMIT):
            total += helper(j, k) if k != 2 else -a
    return total


def helper(a: int, b: int) -> int:
    """A function called by another one."""
    x, y = b, a
    return min(x, y) * 10 + y


def refused(a: int) -> int:
    values = [a]
    return values[0]


FUNCTIONS = (divided, bits, compared, looped, nested, helper)
