"""Calls of tools with odd arguments, calls that cannot be read, and tools that do not exist."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from agentrl.chat.formats.registry import parser_named
from tests.attacks.cases import Case
from tests.attacks.families import words
from tests.attacks.families.queries import query
from tests.attacks.played import Attack, Played, Turn
from tests.sql.test_in_a_helper import EVIL
from tests.sql.test_sql import SHOP


def _text(rng: random.Random) -> str:
    return words.text(rng)


def _path(rng: random.Random) -> str:
    return rng.choice(words.PATHS)


def _patch(rng: random.Random) -> str:
    lines = [rng.choice((" a", "-a", "+b", "@@", "@@ a", "*** Update File: x", "*** Add File: ../x",
    "*** Delete File: /etc/passwd",
                         "*** Move to: /tmp/x", "--- a/x", "+++ b/x", "@@ -1,9999999 +1 @@", "\\ No newline",
                         "*** End of File", ""))
             for _ in range(rng.choice((3, 30, 20_000)))]  # fmt: skip
    return "\n".join(
        ["*** Begin Patch", f"*** Update File: {_path(rng)[:50]}", *lines, rng.choice(("*** End Patch", ""))]
    )


def _program(rng: random.Random) -> str:
    return rng.choice((
        "x = 'a' * 10**8; x", "import sys; sys.setrecursionlimit(10**6)\ndef f(): f()\nf()", "print('\\ud800')",
        "input()", "exit()", "1/0",
        "import os; os._exit(0)", "[].append", "while True: pass", "print(chr(0) * 10**6)",
        "import os; os.kill(os.getppid(), 9)", "\0", "raise SystemExit",
        "__import__('os').close(501)", "import os\nwhile True: os.write(501, b'7' * 65536)",
        "class R:\n    def __repr__(self): return 'x' * 10**8\nR()",
        words.text(rng)[:5000],
    ))  # fmt: skip


def _number(rng: random.Random) -> float:
    return rng.choice(words.NUMBERS)


ARGUMENTS: dict[str, dict[str, Callable[[random.Random], Any]]] = {
    "shell": {
        "command": lambda rng: rng.choice(
            (_text(rng)[:9000], "cat /dev/zero", "exec 0<&-", "printf '\\0\\377'", "exit", "cat <<X", "kill -9 $$")
        )
    },
    "python": {"code": _program},
    "view_file": {"path": _path, "first": _number, "last": _number},
    "create_file": {"path": _path, "content": _text},
    "replace_in_file": {"path": _path, "old": _text, "new": _text},
    "insert_in_file": {"path": _path, "line": _number, "text": _text},
    "search_files": {
        "pattern": lambda rng: rng.choice((*words.PATTERNS, _text(rng)[:5000])),
        "path": _path,
        "regex": lambda rng: rng.random() < 0.6,
    },
    "apply_patch": {"patch": _patch},
    "calculate": {"expression": lambda rng: rng.choice((*words.SUMS, _text(rng)))},
    "remember": {"name": _text, "text": _text},
    "recall": {"name": _text},
    "sql": {"query": lambda rng: rng.choice((query(rng), query(rng), rng.choice(EVIL["sqlite"]), _text(rng)[:20_000]))},
    "schema": {"table": _text},
    "search": {"query": _text},
    "fetch": {"id": _text},
    "no_such_tool": {"x": _text},
}
"""Sensible kinds of odd values, by tool and argument."""
_HERMES = parser_named("hermes", [])


def call(rng: random.Random) -> Turn:
    """A call, or a text that is nearly one."""
    tool = rng.choice([*ARGUMENTS])
    given = {name: draw(rng) if rng.random() < 0.8 else words.value(rng) for name, draw in ARGUMENTS[tool].items()}
    given = {name: value for name, value in given.items() if rng.random() < 0.95}
    if rng.random() < 0.1:
        given[words.text(rng)[:30]] = words.value(rng)
    if rng.random() < 0.25:
        return "<tool_call>\n" + words.broken_json(rng, {"name": tool, "arguments": given})[:200_000] + "\n</tool_call>"
    return [(tool, given)]


class Calls(Played):
    """The word that was asked for is never said."""

    name = "calls"
    recipe: ClassVar[dict[str, Any]] = {
        "tools": [
            {"use": "shell", "timeout_s": 1}, {"use": "python", "timeout_s": 1}, {"use": "files", "timeout_s": 5},
            {"use": "apply_patch", "timeout_s": 5},
            "calculator", "memory", {"use": "sql", "key": "database", "timeout_s": 1}, {"use": "search",
            "corpus": "tests.attacks.families.calls:corpus"},
        ],
        "rewards": {"exact_match": {"key": "answer"}},
    }  # fmt: skip
    data: ClassVar[dict[str, Any]] = {"answer": "unsaid", "database": SHOP}

    def listed(self) -> Sequence[str]:
        return [f"sum {n}" for n in range(len(words.SUMS))]

    def attack(self, case: Case) -> Attack:
        if not case.drawn:
            said: list[Turn] = [[("calculate", {"expression": words.SUMS[int(case.name.removeprefix("sum "))]})]]
            return Attack(turns=said, answer="0", data=self.data)
        rng = case.random()
        return Attack(turns=[call(rng) for _ in range(rng.randint(2, 6))], answer=_text(rng)[:10_000], data=self.data)

    def honest(self, rng: random.Random) -> Attack:
        asked: list[Turn] = [
            [("sql", {"query": "SELECT 1"})],
            [("calculate", {"expression": "1 + 1"})],
            [("shell", {"command": "true"})],
        ]
        return Attack(turns=asked, answer="<answer>unsaid</answer>", data=self.data, earns=1.0)


def corpus() -> Sequence[dict[str, str]]:
    """Documents of the search tool."""
    return [
        {"id": f"d{n}", "title": f"Page {n}", "text": f"About {word}."}
        for n, word in enumerate(("tea", "pots", "cups"))
    ]
