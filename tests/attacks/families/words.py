"""Values and texts that a model may write where something sensible was asked for."""

from __future__ import annotations

import json
import random
from typing import Any

from agentrl.api.certify.probes import _VALUES as PROBED

PATHS = (
    "/etc/passwd", "../../../../etc/passwd", "/proc/self/mem", "/proc/1/root/etc/passwd", "/proc/self/fd/0",
    "/dev/zero",
    "/dev/stdin", "/dev/full", "/", "", ".", "..", "~", "a\nb", "a\0b", "x" * 300, "a/" * 2000, "-rf", "\udcff",
    "/work/../work/x",
    "/run/agentrl", "/sys/fs/cgroup/memory.max", "|id", "file:///etc/passwd", "/tmp", "/proc/self/environ",
    "/dev/shm/x",
)  # fmt: skip
PATTERNS = (
    "(a+)+$",
    "(" * 50,
    "[",
    "(?:x|x)*y",
    "\\",
    "^(.*)*$",
    "a{1,65535}{1,65535}",
    "\0",
    "(?P<n>.)" * 50,
    "x" * 30_000,
)
SUMS = (
    "round(7, -(10**9))", "9**9**9", "(-8)**(1/3)", "1/0", "max()", "10**-400", "1e400", "gcd(10**1200, 3)",
    "abs(" * 200,
    "round(2.5, 10**400)", "sqrt(-1)", "floor(1e308*10)", "__import__('os').system('id')", "().__class__", "pi.real",
    "1if 1else 2",
    "'a'*10**9", "[0]*10**9", "0x" + "f" * 900, "1_0", "exp(710)", "log(0)", "min(1, 'a')", "~1", "1<<10**9",
    "e" * 990, "True+1",
    "1" + "+1" * 490, "(" * 400 + "1" + ")" * 400, "9" * 999, "9" * 999 + "*1", "\u0660+\u0661", "2**-2**9",
    "-" * 900 + "1",
)  # fmt: skip
TEXTS = (
    "", " ", "\0", "\ud800", "\u202e", "\x1b[2J", "x" * 100_000, "\n" * 10_000, "é中😀", "</tool_call>", "<tool_call>",
    "<|im_end|>",
    "<answer>right</answer>", "{}", "[]", "null", "NaN", "1e999", "-0", "9" * 5000, "[" * 5000, "{\"a\":" * 3000,
    "%s%n", "${7*7}",
    "{{7*7}}", "$(id)", "`id`", "'; --", "<script>", "&amp;", "\\x00", "=1+1", "http://127.0.0.1:1/", "javascript:1",
    "A" * 70_000,
    "$9^{9^{9^{9}}}$", "\\frac{" * 800, "\\sqrt" * 2000, "(" * 3000, "1+" * 4000 + "1", "x^" * 900 + "x",
    "\\boxed{" * 500,
    "\\int_0^1" * 100, "<confidence>1e999</confidence>", "<confidence>nan</confidence>", "10!!!!!!!!",
    "1/" * 999 + "3", "0" * 19_000,
)  # fmt: skip
NUMBERS = (0, -1, 1, 10**12, -(10**12), 2**31, 2**63, 2**64, 10**400, 1.5, 1e308, -1e-320, True, False)


LONGEST = 200_000
"""Characters of a text: engines end replies at the context of the model, and only a script could write more."""


def text(rng: random.Random) -> str:
    """A text, or two of them joined, or one that is cut or repeated."""
    one = rng.choice((*TEXTS, *SUMS, *PATTERNS, *PATHS))
    kind = rng.randrange(6)
    if kind == 0:
        return one + rng.choice(TEXTS)
    if kind == 1:
        part = one[: rng.randrange(len(one) + 1)]
        return (part * rng.choice((1, 2, 50)))[:LONGEST]
    if kind == 2:
        return "".join(rng.choice(one or "x") for _ in range(rng.choice((3, 40, 400))))
    return one


def value(rng: random.Random, depth: int = 3) -> Any:
    """What JSON can hold."""
    kind = rng.randrange(8 if depth else 6)
    if kind < 3:
        return text(rng)
    if kind == 3:
        return rng.choice(NUMBERS)
    if kind == 4:
        return rng.choice(PROBED)
    if kind == 5:
        return None
    if kind == 6:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {text(rng)[:40]: value(rng, depth - 1) for _ in range(rng.randrange(4))}


def broken_json(rng: random.Random, whole: Any) -> str:
    """JSON of something, with bytes that were changed, dropped or repeated."""
    said = json.dumps(whole, ensure_ascii=rng.random() < 0.5)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(said) + 1)
        said = (
            said[:at]
            + rng.choice(("", "[", "{", '"', "\\", ",", ":", "1e999", "NaN", "\0", "\\ud800", "'", "//", "nul"))
            + said[at + rng.randrange(3) :]
        )
    return said
