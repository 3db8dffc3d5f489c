"""Code that tries to be taken for a right solution."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from tests.attacks.cases import Case
from tests.attacks.played import Attack, Played
from tests.rewards.cheats import CHEATS, PARTICULAR, WRONG

RIGHT = "def double(x):\n    return 2 * x\n"
_KINDS: dict[str, Any] = {
    "statements": ["assert double(2) == 4", "assert all(double(x) == 2 * x for x in [2, 7, 'a'])"],
    "script": {
        "files": {"check.py": "from solution import double\nassert double(2) == 4\nassert double('a') == 'aa'\n"},
        "command": "python3 check.py",
    },
    "unittest": {
        "files": {
            "test_it.py": "import unittest\nfrom solution import double\n"
            "class T(unittest.TestCase):\n    def test_it(self):\n"
            "        self.assertEqual(double(2), 4)\n        self.assertTrue(double('a') == 'aa')\n"
        },
        "command": "python3 -m unittest",
    },
    "shell": {
        "files": {"check.py": "from solution import double\nassert double(2) == 4 and double(7) == 14\n"},
        "command": "cd /work && python3 check.py",
    },
}
_ENDLESS = "while True: pass"
_MANY = "an endless loop before many tests"
_IDIOMS = (
    "{f} == {w}", "not {f} != {w}", "{w} == {f}", "{f} in [{w}]", "[{f}] == [{w}]", "abs({f} - {w}) < 1e-6",
    "{f} - {w} == 0",
    "{f} >= {w} and {f} <= {w}", "str({f}) == '{w}'", "f'{{{f}}}' == '{w}'", "round({f}) == {w}", "int({f}) == {w}",
    "sum([{f}]) == {w}",
    "sorted([{f}]) == [{w}]", "{{{f}: 1}} == {{{w}: 1}}", "{f} is {w} or {f} == {w}",
    "isinstance({f}, int) and {f} == {w}",
    "__import__('math').isclose({f}, {w})", "max({f}, {w}) == min({f}, {w})", "all(a == b for a, b in [({f}, {w})])",
    "bool({f} == {w})",
    "{f}.__eq__({w})", "__import__('operator').eq({f}, {w})", "{f} / {w} == 1", "({f}) ** 2 == {w} ** 2",
    "{f} * 1 == {w}", "-{f} == -{w}",
    "repr({f}) == repr({w})", "set([{f}]) == {{{w}}}", "any([{f} == {w}])", "hash({f}) == hash({w}) and {f} == {w}",
    "divmod({f}, {w}) == (1, 0)",
    "len(range({f})) == {w}", "list(range(30))[{f}] == {w}", "(lambda v: v == {w})({f})",
    "dict(a={f}) == dict(a={w})", "({f},) == ({w},)",
    "__import__('decimal').Decimal({f}) == {w}", "__import__('json').dumps({f}) == '{w}'", "'%d' % {f} == '{w}'",
    "{f} % 1000 == {w}",
    "not ({f} == {w}) is False", "__import__('unittest').TestCase().assertEqual({f}, {w}) is None",
    "__import__('unittest').TestCase().assertAlmostEqual({f}, {w}) is None", "__import__('copy').copy({f}) == {w}",
    "{f} // {w} == 1",
)  # fmt: skip
"""Ways to ask for `w`. (That something is neither less nor more is true of NaN.)"""
_DUNDERS = (
    "eq", "ne", "lt", "le", "gt", "ge", "bool", "len", "hash", "str", "repr", "format", "int", "float", "index",
    "round", "abs", "neg", "sub",
    "rsub", "add", "radd", "mul", "rmul", "truediv", "rtruediv", "floordiv", "mod", "divmod", "pow", "contains",
    "getitem", "iter", "call", "array",
    "instancecheck", "getattr", "getattribute", "class", "copy", "deepcopy", "reduce_ex", "enter", "exit", "await",
    "complex", "trunc", "floor",
)  # fmt: skip
_BASES = ("", "int", "float", "str", "bytes", "list", "tuple", "dict", "set", "Exception", "complex", "type",
"__import__('decimal').Decimal",
          "__import__('collections').UserList", "__import__('enum').IntEnum",
          "__import__('types').ModuleType")  # fmt: skip
_LIES = ("True", "False", "0", "1", "4", "-1", "0.0", "''", "'4'", "[]", "iter(())", "self", "NotImplemented",
"other[0] if other else self", "float('nan')",
         "type(self)", "raise_(StopIteration)", "raise_(SystemExit)", "(1, 0)", "b''", "None", "lambda *a: True",
         "other")  # fmt: skip


def liar(rng: random.Random) -> str:
    """A class whose objects answer at random, and a `double` that returns one, whatever it is asked."""
    names = rng.sample(_DUNDERS, rng.randint(1, 12))
    if rng.random() < 0.5:
        names = [*dict.fromkeys(["eq", *names])]
    lines = [f"    def __{name}__(self, *other, **more): return {rng.choice(_LIES)}" for name in names]
    made = rng.choice(
        (
            "Liar()",
            "Liar(4)",
            "Liar",
            "object.__new__(Liar)",
            "[Liar()]",
            "(Liar(),)",
            "{Liar(): Liar()}",
            "iter([Liar()])",
        )
    )
    ways = ("def double(x): return made()", "double = lambda *a: made()",
    "class double:\n    def __new__(cls, x): return made()",
            "def double(x): yield made()", "async def double(x): return made()", "double = made()",
            "def double(x): raise made()")  # fmt: skip
    base = rng.choice(_BASES)
    return (
        "def raise_(e): raise e\n"
        f"class Liar({base}):\n"
        + "\n".join(lines)
        + f"\ndef made():\n    try: return {made}\n    except Exception: return Liar\n"
        + rng.choice(ways)
        + "\n"
    )


class Code(Played):
    """`double` is asked for, and none of them doubles."""

    name = "code"
    recipe: ClassVar[dict[str, Any]] = {
        "reward_of": "kind",
        "rewards": {
            "whole": {"use": "code_tests", "timeout_s": 2},
            "partial": {"use": "code_tests", "partial": True, "timeout_s": 1},
        },
    }

    def listed(self) -> Sequence[str]:
        return [f"{name}, {kind}" for name in CHEATS for kind in _KINDS] + [*PARTICULAR, _MANY]

    def attack(self, case: Case) -> Attack:
        if case.drawn:
            return self._drawn(case.random())
        if case.name == _MANY:
            return self._scored(_ENDLESS, [{"input": "", "output": "1"}] * 60, "partial")
        if case.name in PARTICULAR:
            code, test = PARTICULAR[case.name]
            return self._scored(code, [test])
        name, _, kind = case.name.rpartition(", ")
        return self._scored(CHEATS[name], _KINDS[kind])

    def _drawn(self, rng: random.Random) -> Attack:
        if rng.random() < 0.4:
            cheats = [CHEATS[name] for name in rng.sample([*CHEATS], rng.randint(2, 3)) if CHEATS[name] != _ENDLESS]
            return self._scored("\n".join([*cheats, WRONG]), _KINDS[rng.choice([*_KINDS])])
        idioms = [rng.choice(_IDIOMS) for _ in range(2)]
        asked = [f"assert {idiom.format(f=f'double({x})', w=2 * x)}" for idiom in idioms for x in (2, 7)]
        if rng.random() < 0.5:
            script = "\n".join(["from solution import double", *asked])
            return self._scored(liar(rng), {"files": {"check.py": script}, "command": "python3 check.py"})
        return self._scored(liar(rng), asked)

    def _scored(self, code: str, tests: Any, kind: str = "whole") -> Attack:
        return Attack(answer=f"```python\n{code}\n```", data={"tests": tests, "kind": kind})

    def honest(self, rng: random.Random) -> Attack:
        attack = self._scored(RIGHT, rng.choice([*_KINDS.values()]))
        return Attack(answer=attack.answer, data=attack.data, earns=1.0)
