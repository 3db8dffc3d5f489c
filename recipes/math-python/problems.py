"""Generators of problems: a text, the answer from a formula, and a program that finds it another way."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Level = Literal["easy", "medium", "hard"]
NAMES = ["Ana", "Ben", "Chloe", "Dmitri", "Elif", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Keiko", "Luis"]
GOODS = ["pencils", "apples", "tickets", "notebooks", "bottles", "postcards", "bricks", "eggs", "cups", "stamps"]


@dataclass(frozen=True)
class Problem:
    """A problem.

    Attributes:
        answer: exact, as math-verify reads it.
        code: a program whose last line shows the answer.
    """

    text: str
    answer: str
    code: str


def _exact(value: Fraction | int) -> str:
    value = Fraction(value)
    return str(value.numerator) if value.denominator == 1 else f"{value.numerator}/{value.denominator}"


# --- easy: what a head can do ---------------------------------------------------------------------------------------


def sums(rng: random.Random) -> Problem:
    """three numbers, two signs"""
    a, b, c = rng.randint(10, 99), rng.randint(2, 19), rng.randint(10, 99)
    form = rng.choice(["{a} + {b} * {c}", "({a} + {b}) * {c}", "{a} * {b} - {c}", "({a} - {b}) * {c}"])
    text = form.format(a=a, b=b, c=c)
    value = {
        "{a} + {b} * {c}": a + b * c, "({a} + {b}) * {c}": (a + b) * c,
        "{a} * {b} - {c}": a * b - c, "({a} - {b}) * {c}": (a - b) * c,
    }[form]  # fmt: skip
    return Problem(f"Compute {text}.", str(value), f"print({text})")


def shopping(rng: random.Random) -> Problem:
    """prices and change"""
    name, (one, two) = rng.choice(NAMES), rng.sample(GOODS, 2)
    p, q, m, n = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 12), rng.randint(2, 12)
    paid = p * m + q * n + rng.randint(1, 30)
    text = (
        f"{name} buys {m} {one} at {p} dollars each and {n} {two} at {q} dollars each, and pays with {paid} dollars. "
        "How many dollars of change does the shop give?"
    )
    code = f"paid = {paid}\nfor price, number in [({p}, {m}), ({q}, {n})]:\n    paid -= price * number\nprint(paid)"
    return Problem(text, str(paid - p * m - q * n), code)


def shares(rng: random.Random) -> Problem:
    """a fraction of a fraction"""
    name, goods = rng.choice(NAMES), rng.choice(GOODS)
    a, b, n = rng.randint(2, 6), rng.randint(2, 6), rng.randint(2, 15)
    whole = a * b * n
    text = (
        f"{name} has {whole} {goods} and gives away 1/{a} of them. Then {name} loses 1/{b} of what is left. "
        f"How many {goods} remain?"
    )
    code = f"from fractions import Fraction\nprint({whole} * (1 - Fraction(1, {a})) * (1 - Fraction(1, {b})))"
    return Problem(text, str(n * (a - 1) * (b - 1)), code)


def percents(rng: random.Random) -> Problem:
    """up and down by percentages"""
    price, up, down = 20 * rng.randint(5, 60), 5 * rng.randint(1, 12), 5 * rng.randint(1, 12)
    text = (
        f"A price of {price} dollars rises by {up} percent and then falls by {down} percent. What is it then, in "
        "dollars, exactly?"
    )
    code = (
        "from fractions import Fraction\n"
        f"price = Fraction({price})\nprice += price * {up} / 100\nprice -= price * {down} / 100\nprint(price)"
    )
    return Problem(text, _exact(Fraction(price * (100 + up) * (100 - down), 10_000)), code)


# --- medium: what a page can do -------------------------------------------------------------------------------------


def two_unknowns(rng: random.Random) -> Problem:
    """a linear system with a whole solution"""
    x, y = rng.randint(-9, 9), rng.randint(-9, 9)
    while True:
        a, b, c, d = (rng.choice([-7, -5, -4, -3, -2, 2, 3, 4, 5, 7]) for _ in range(4))
        if a * d != b * c:
            break
    e, f = a * x + b * y, c * x + d * y
    text = f"Solve {a}x + {b}y = {e} and {c}x + {d}y = {f}. What is x - y?".replace("+ -", "- ")
    code = (
        "found = [x - y for x in range(-9, 10) for y in range(-9, 10)\n"
        f"         if {a} * x + {b} * y == {e} and {c} * x + {d} * y == {f}]\nprint(found[0])"
    )
    return Problem(text, str(x - y), code)


def powers(rng: random.Random) -> Problem:
    """a power modulo a prime"""
    p = rng.choice([11, 13, 17, 19, 23, 29, 31, 37, 41, 43])
    a, n = rng.randint(2, p - 1), rng.randint(30, 400)
    code = f"rest = 1\nfor _ in range({n}):\n    rest = rest * {a} % {p}\nprint(rest)"
    return Problem(f"What is the remainder of {a}^{n} divided by {p}?", str(pow(a, n % (p - 1), p)), code)


def committees(rng: random.Random) -> Problem:
    """choices from two groups"""
    m, n = rng.randint(4, 9), rng.randint(4, 9)
    j, k = rng.randint(1, 3), rng.randint(1, 3)
    text = f"A committee has {j} of {m} women and {k} of {n} men. How many committees are possible?"
    code = (
        "from itertools import combinations\n"
        f"print(sum(1 for _ in combinations(range({m}), {j})) * sum(1 for _ in combinations(range({n}), {k})))"
    )
    return Problem(text, str(math.comb(m, j) * math.comb(n, k)), code)


def work(rng: random.Random) -> Problem:
    """rates that add up"""
    a, b = rng.sample(range(2, 25), 2)
    one, two = rng.sample(NAMES, 2)
    text = (
        f"{one} paints a wall in {a} hours, {two} in {b} hours. How many hours do they need together? Give a whole "
        "number or a fraction."
    )
    code = f"from fractions import Fraction\nprint(1 / (Fraction(1, {a}) + Fraction(1, {b})))"
    return Problem(text, _exact(Fraction(a * b, a + b)), code)


def multiples(rng: random.Random) -> Problem:
    """a sum of multiples"""
    a, b = rng.sample([3, 4, 5, 6, 7, 9, 10, 11, 12], 2)
    n = rng.randint(200, 3000)

    def upto(k: int) -> int:
        return k * (n // k) * (n // k + 1) // 2

    text = f"What is the sum of all positive integers up to {n} that are multiples of {a} or of {b}?"
    code = f"print(sum(k for k in range(1, {n} + 1) if k % {a} == 0 or k % {b} == 0))"
    return Problem(text, str(upto(a) + upto(b) - upto(math.lcm(a, b))), code)


# --- hard: what wants a program -------------------------------------------------------------------------------------


def digit_sums(rng: random.Random) -> Problem:
    """numbers below a power of ten with a sum of digits"""
    digits, total = rng.randint(4, 5), rng.randint(8, 30)

    ways = [1] + [0] * total
    for _ in range(digits):
        ways = [sum(ways[rest - d] for d in range(10) if d <= rest) for rest in range(total + 1)]
    text = f"How many integers from 0 to {10**digits - 1} have digits that add up to {total}?"
    code = f"print(sum(1 for n in range(10 ** {digits}) if sum(map(int, str(n))) == {total}))"
    return Problem(text, str(ways[total]), code)


def grid_paths(rng: random.Random) -> Problem:
    """paths past a blocked crossing"""
    m, n = rng.randint(5, 9), rng.randint(5, 9)
    i, j = rng.randint(1, m - 1), rng.randint(1, n - 1)
    every = math.comb(m + n, m) - math.comb(i + j, i) * math.comb(m + n - i - j, m - i)
    text = (
        f"A walker goes from (0, 0) to ({m}, {n}) by steps of one to the right or one up, and may not pass ({i}, {j}). "
        "How many ways are there?"
    )
    code = (
        "from functools import cache\n\n@cache\ndef ways(x, y):\n"
        f"    if x < 0 or y < 0 or (x, y) == ({i}, {j}):\n        return 0\n"
        f"    return 1 if x == y == 0 else ways(x - 1, y) + ways(x, y - 1)\n\nprint(ways({m}, {n}))"
    )
    return Problem(text, str(every), code)


def recurrence(rng: random.Random) -> Problem:
    """a term of a recurrence modulo a number"""
    a, b, n, m = rng.randint(2, 6), rng.randint(1, 6), rng.randint(40, 200), rng.choice([97, 101, 997, 1009])

    def times(p: list[int], q: list[int]) -> list[int]:
        return [
            (p[0] * q[0] + p[1] * q[2]) % m, (p[0] * q[1] + p[1] * q[3]) % m,
            (p[2] * q[0] + p[3] * q[2]) % m, (p[2] * q[1] + p[3] * q[3]) % m,
        ]  # fmt: skip

    power, base, left = [1, 0, 0, 1], [a, b, 1, 0], n
    while left:
        power = times(power, base) if left & 1 else power
        base, left = times(base, base), left >> 1
    text = (
        f"A sequence begins with f(0) = 0, f(1) = 1 and goes on with f(n) = {a} f(n-1) + {b} f(n-2). What is the "
        f"remainder of f({n}) divided by {m}?"
    )
    code = f"x, y = 0, 1\nfor _ in range({n}):\n    x, y = y, {a} * y + {b} * x\nprint(x % {m})"
    return Problem(text, str(power[2]), code)


def coprime(rng: random.Random) -> Problem:
    """numbers without a common factor"""
    primes = rng.sample([2, 3, 5, 7, 11, 13, 17], 3)
    n = math.prod(primes) * rng.randint(1, 6)
    phi = n
    for p in primes:
        phi = phi // p * (p - 1)
    for p in (2, 3, 5):  # of the factor behind the three
        if n % p == 0 and p not in primes:
            phi = phi // p * (p - 1)
    text = f"How many positive integers up to {n} have no common factor above 1 with {n}?"
    code = f"from math import gcd\nprint(sum(1 for k in range(1, {n} + 1) if gcd(k, {n}) == 1))"
    return Problem(text, str(phi), code)


def coins(rng: random.Random) -> Problem:
    """ways to change an amount"""
    values = sorted(rng.sample([1, 2, 5, 10, 20, 25, 50], 3))
    amount = rng.randint(30, 120)
    ways = [1] + [0] * amount
    for value in values:
        for k in range(value, amount + 1):
            ways[k] += ways[k - value]
    a, b, c = values
    text = f"In how many ways can {amount} cents be paid with any number of coins of {a}, {b} and {c} cents?"
    code = (
        f"print(sum(1 for x in range({amount} // {a} + 1) for y in range({amount} // {b} + 1)\n"
        f"          for z in range({amount} // {c} + 1) if {a} * x + {b} * y + {c} * z == {amount}))"
    )
    return Problem(text, str(ways[amount]), code)


KINDS: dict[Callable[[random.Random], Problem], Level] = {
    sums: "easy", shopping: "easy", shares: "easy", percents: "easy",
    two_unknowns: "medium", powers: "medium", committees: "medium", work: "medium", multiples: "medium",
    digit_sums: "hard", grid_paths: "hard", recurrence: "hard", coprime: "hard", coins: "hard",
}  # fmt: skip
