"""Repairs in one reply: an issue and the code around it, answered by a unified diff."""

from __future__ import annotations

import difflib
import itertools
import json
import random
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl import Say, Task
from agentrl.registry.references import load_object
from agentrl.rewards.functions.patch import changes
from agentrl.rewards.functions.verifiers import code_in
from agentrl.types.episode import Episode

HERE = Path(__file__).parent
MUTANTS = HERE.parents[1] / "swe-inject"
broken = load_object("./task.py:broken", MUTANTS)
bugs = load_object("./task.py:bugs", MUTANTS)
code_of = load_object("./packages.py:code_of", MUTANTS)
PACKAGES = load_object("./packages.py:PACKAGES", MUTANTS)


def issues(
    n: int = 512, packages: Sequence[str] = tuple(PACKAGES), around: int = 12, test: bool = True, held_out: bool = False
) -> Iterator[Task]:
    """The first `n` bugs of recipes/swe-inject, every package in turn, each with the code around it.

    Args:
        around: lines shown before and behind the bug, moved by a random number of lines.
        test: shows a test that fails.
        held_out: those for evaluation (one in four, by a hash of the file and line), not the rest.
    """
    pools = []
    for package in packages:
        rows = [json.loads(line) for line in (MUTANTS / f"mutants-{package}.jsonl").read_text().splitlines()]
        pools.append(
            [row for row in rows if (zlib.crc32(f"{row['path']} {row['line']}".encode()) % 4 == 0) == held_out]
        )
    texts = (
        {task.id: str(task.instruction[0]["content"]) for task in bugs(n=100_000, held_out=held_out)} if test else {}
    )
    dealt = (row for several in itertools.zip_longest(*pools) for row in several if row is not None)
    for row in itertools.islice(dealt, n):
        issue = texts[row["id"]].partition("\n\nFind the bug")[0] + "\n\n" if test else ""
        text = f"{issue}{row['path']}:\n{_excerpt(row, around)}\n\nRepair it. Reply with a unified diff alone."
        yield Task.of(row["id"], text, patch=patch(row), path=row["path"])


def _excerpt(row: dict[str, Any], around: int) -> str:
    lines = broken(row).split("\n")
    middle = row["line"] - 1 + random.Random(row["id"]).randint(-around // 2, around // 2)
    first = max(0, middle - around)
    return "\n".join(f"{first + k + 1:4} {line}" for k, line in enumerate(lines[first : middle + around + 1]))


def patch(row: dict[str, Any]) -> str:
    """The unified diff from the file with the bug to the published one, without lines around the change."""
    path = row["path"]
    before, after = (text.split("\n") for text in (broken(row), code_of(row["package"])[path]))
    return "\n".join(difflib.unified_diff(before, after, f"a/{path}", f"b/{path}", lineterm="", n=0))


def same_patch(task: Task, episode: Episode) -> float:
    """1 if the reply's diff makes the published change, else 0: what there is to learn from without the similarity."""
    return float(changes(code_in(episode.answer or "")) == changes(task.data["patch"]))


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """Replies with the diff."""
    yield Say(task.data["patch"])


def editor(task: Task, rng: random.Random) -> Iterator[Say]:
    """Replies with a diff of the same file, one time in three with its own lines, and one time in five with no diff."""
    head = [f"--- a/{task.data['path']}", f"+++ b/{task.data['path']}"]
    line = rng.randint(1, 99)
    guess = "\n".join([*head, f"@@ -{line} +{line} @@", "-pass", f"+{rng.choice(['return None', 'raise', 'pass'])}"])
    yield Say(rng.choices([task.data["patch"], guess, "I see no bug."], [5, 7, 3])[0])
