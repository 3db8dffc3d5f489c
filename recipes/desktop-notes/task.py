"""Notes to be written and changed in mousepad, a GTK editor, under an X server; the files on disk decide."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Generator, Iterator
from typing import Any

from agentrl import Message, Say, Task
from agentrl.tools.builtin.gui.gui import Gui
from agentrl.types.sandbox import Sandbox

KINDS = ("write", "append", "prepend", "replace", "delete", "copy")
WORDS = {
    False: ["bread", "milk", "apples", "rice", "salt", "tea", "butter", "beans", "lemons", "pasta", "onions", "yeast"],
    True: ["stamps", "candles", "paper", "string", "nails", "soap", "matches", "glue", "chalk", "wire", "cork", "tape"],
}
"""Of the tasks to learn from, and of those that are held out."""
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
NAMES = {False: ["list", "shopping", "week", "plan", "note"], True: ["errands", "market", "house", "trip", "memo"]}

Files = dict[str, str]


def notes(n: int = 60, seed: int = 0, held_out: bool = False) -> Iterator[Task]:
    """`n` tasks, of each kind in turn. A smaller `n` gives the beginning of the same list.

    Args:
        seed: of what is written in them.
        held_out: tasks with other words and names, for evaluation.
    """
    for number in range(n):
        rng = random.Random(f"{seed}/{held_out}/{number}")
        words, names = rng.sample(WORDS[held_out], 6), rng.sample(NAMES[held_out], 2)
        lines = [f"{rng.choice(DAYS)}: {word}" for word in words[:4]]
        make = MAKERS[KINDS[number % len(KINDS)]]
        said, before, after, doing = make(rng, lines, words, [f"{name}.txt" for name in names])
        yield Task.of(
            f"{KINDS[number % len(KINDS)]}-{number}",
            f"{said} Then say that you are done.",
            opens=list(before),
            files=after,
            doing=doing,
            sandbox={"files": before},
        )


Made = tuple[str, Files, Files, list[str]]
"""What is said, the files before and after, and what the oracle needs to know."""


def _write(rng: random.Random, lines: list[str], words: list[str], names: list[str]) -> Made:
    text = "\n".join(lines[: rng.randint(1, 3)])
    said = f"Write this note, save it under the name {names[0]} in the folder that is shown:\n\n{text}\n\n"
    return said.rstrip(" "), {}, {names[0]: text}, [text, names[0]]


def _append(rng: random.Random, lines: list[str], words: list[str], names: list[str]) -> Made:
    after = [*lines, words[4]]
    return f"Write '{words[4]}' into a line of its own below the last line of the note, and save it.", *_changed(
        names, lines, after, [words[4]]
    )


def _prepend(rng: random.Random, lines: list[str], words: list[str], names: list[str]) -> Made:
    after = [words[4], *lines]
    return f"Write '{words[4]}' into a line of its own above the first line of the note, and save it.", *_changed(
        names, lines, after, [words[4]]
    )


def _replace(rng: random.Random, lines: list[str], words: list[str], names: list[str]) -> Made:
    old, new = rng.choice(words[:4]), words[5]
    before = [*lines, f"not {old}", old]
    after = [line.replace(old, new) for line in before]
    return f"Replace '{old}' by '{new}' everywhere in the note, and save it.", *_changed(
        names, before, after, [old, new]
    )


def _delete(rng: random.Random, lines: list[str], words: list[str], names: list[str]) -> Made:
    number = rng.randrange(len(lines) - 1)
    after = [*lines[:number], *lines[number + 1 :]]
    return f"Delete the line '{lines[number]}' from the note, and save it.", *_changed(
        names, lines, after, [str(number)]
    )


def _copy(rng: random.Random, lines: list[str], words: list[str], names: list[str]) -> Made:
    text = "\n".join(lines)
    said = f"Save the note under the name {names[1]}, in the same folder. Leave {names[0]} as it is."
    return said, {names[0]: text}, {names[0]: text, names[1]: text}, [names[1]]


def _changed(names: list[str], before: list[str], after: list[str], doing: list[str]) -> tuple[Files, Files, list[str]]:
    return {names[0]: "\n".join(before)}, {names[0]: "\n".join(after)}, doing


MAKERS: dict[str, Callable[[random.Random, list[str], list[str], list[str]], Made]] = {
    "write": _write,
    "append": _append,
    "prepend": _prepend,
    "replace": _replace,
    "delete": _delete,
    "copy": _copy,
}


class Notes(Gui):
    """mousepad, with the note of the task."""

    def command(self, task: Task) -> list[str]:
        """The editor, and the file that it opens, if there is one."""
        return ["mousepad", *task.data["opens"]]

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Makes the note old before it starts: dialogs show when a file was changed, for one of today the minute."""
        if sandbox is not None and task.data["opens"]:
            await sandbox.exec(["touch", "-d", "2021-01-01", *task.data["opens"]])
        await super().open(task, sandbox)


async def saved(task: Task, sandbox: Sandbox) -> float:
    """Whether the folder has these files with these contents and no others; a line break at the end may be there."""
    listed = await sandbox.list()
    if any(entry.kind != "file" for entry in listed):
        return 0.0
    found = {entry.name: (await sandbox.read(entry.name)).decode("utf-8", "replace") for entry in listed}
    return float({name: text.removesuffix("\n") for name, text in found.items()} == task.data["files"])


# --- scripts --------------------------------------------------------------------------------------------------------

Script = Generator[Say, list[Message], None]


def oracle(task: Task, rng: random.Random) -> Script:
    """Uses the keys that mousepad has, and the buttons of its dialogs, which it finds in the list of elements."""
    kind, doing = task.id.partition("-")[0], task.data["doing"]
    if kind == "write":
        yield _do("type", text=doing[0])
        yield from _save_as("ctrl+s", doing[1])
    elif kind == "copy":
        yield from _save_as("ctrl+shift+s", doing[0])
    else:
        yield from CHANGES[kind](doing)
        yield _do("key", text="ctrl+s")
    yield _do("done")


def _save_as(keys: str, name: str) -> Script:
    yield _do("key", text=keys)
    yield _do("key", text="ctrl+a")
    seen = yield _do("type", text=name)
    yield _do("left_click", element=number(seen, "push button", "Save"))


def _replaces(doing: list[str]) -> Script:
    yield _do("key", text="ctrl+r")
    yield _do("type", text=doing[0])
    yield _do("key", text="Tab")
    seen = yield _do("type", text=doing[1])
    seen = yield _do("left_click", element=number(seen, "check box", "Replace all in:"))
    seen = yield _do("left_click", element=number(seen, "push button", "Replace All"))
    yield _do("left_click", element=number(seen, "push button", "Close"))


def _appends(doing: list[str]) -> Script:
    yield _do("key", text="ctrl+End")
    yield _do("type", text=f"\n{doing[0]}")


def _prepends(doing: list[str]) -> Script:
    yield _do("key", text="ctrl+Home")
    yield _do("type", text=f"{doing[0]}\n")


def _deletes(doing: list[str]) -> Script:
    yield _do("key", text=" ".join(["ctrl+Home", *["Down"] * int(doing[0]), "shift+Down", "Delete"]))


CHANGES: dict[str, Callable[[list[str]], Script]] = {
    "append": _appends,
    "prepend": _prepends,
    "replace": _replaces,
    "delete": _deletes,
}


def random_agent(task: Task, rng: random.Random) -> Script:
    """Clicks anywhere, types words of the task, presses keys that the editor knows."""
    words = re.findall(r"\w+", task.instruction[0]["content"])
    for _ in range(10):
        actions = [
            {"action": "left_click", "coordinate": [rng.randrange(1024), rng.randrange(768)]},
            {"action": "type", "text": rng.choice(words)},
            {"action": "key", "text": rng.choice(["ctrl+s", "Return", "ctrl+End", "ctrl+Home", "BackSpace", "Delete"])},
        ]
        yield Say(calls=[("computer", rng.choice(actions))])
    yield _do("done")


def empty(task: Task, rng: random.Random) -> Script:
    """Says that it is done, and did nothing."""
    yield _do("done")


def junk(task: Task, rng: random.Random) -> Script:
    """Types words without sense into whatever is there, saves them, and says that it is done."""
    yield _do("type", text="lorem ipsum\n")
    yield _do("key", text="ctrl+s")
    yield _do("type", text="lorem")
    yield _do("key", text="Return")
    yield _do("wait", duration=1)
    yield _do("done")


def _do(action: str, **arguments: Any) -> Say:
    return Say(calls=[("computer", {"action": action, **arguments})])


def number(seen: list[Message], role: str, name: str) -> int:
    """The number of an element of the list that was shown last."""
    content = seen[-1]["content"]
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    found = re.findall(rf'^\[(\d+)\] {role} "{re.escape(name)}"', text, re.MULTILINE)
    assert found, f"there is no {role} {name!r} in the list"
    return int(found[-1])
