"""Pages to click through, and single steps out of the middle of such a way: a script has played the steps before."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentrl import Message, Say, Task, ToolResult
from agentrl.registry.references import load_object
from agentrl.types.episode import CallRecord, Episode

MINIWOB = Path(__file__).parents[2] / "miniwob"
MiniWob = load_object("./task.py:MiniWob", MINIWOB)
SEEDS: dict[str, int] = load_object("./task.py:SEEDS", MINIWOB)
FAMILIES: dict[str, Any] = load_object("./families.py:FAMILIES", MINIWOB)
solve: Callable[..., Generator[Say, list[Message], None]] = load_object("./task.py:oracle", MINIWOB)
full: Callable[[Any], str] = load_object("./listing.py:full", MINIWOB)

LENGTHS = {
    "click-button": 1, "click-link": 1, "click-tab": 1, "focus-text": 1, "click-button-sequence": 2, "enter-text": 2,
    "click-option": 2, "choose-list": 2, "form-sequence-2": 3,
}  # fmt: skip
"""Families whose way has one length, and that length in turns; a turn is one call."""

FORM = re.compile(r"\s*<think>.+?</think>\s*<action>.+?</action>", re.DOTALL)


def steps(
    families: Sequence[str] = tuple(LENGTHS), split: str = "train", seeds: int = 16, lengths: Sequence[int] = (1, 2, 3)
) -> Iterator[Task]:
    """Every step of every way: a seed of each family in turn.

    Args:
        split: `train` or `held-out`: which seeds.
        seeds: of each family.
        lengths: of the ways that steps are taken from.
    """
    for seed in range(SEEDS[split], SEEDS[split] + seeds):
        for family in families:
            if LENGTHS[family] in lengths:
                for step in range(LENGTHS[family]):
                    yield Task.of(f"{family}/{seed}/{step}", [], family=family, seed=seed, step=step)


class OneStep(MiniWob):  # type: ignore[misc]
    """A page before a step of its way, where the first call ends the episode; a task without `step` is the whole way.

    `info` holds the calls that the script makes there: `wanted`.
    """

    judged = False
    gold: Mapping[str, Any] = MappingProxyType({})
    done: Sequence[str] = ()

    async def open(self, task: Task, sandbox: Any) -> None:
        await super().open(task, sandbox)
        if "step" not in task.data:
            return
        way = FAMILIES[self.family].play([{"role": "tool", "content": full(self.state)}], random.Random(task.seed))
        said, done = next(way), list[str]()
        for _ in range(task.data["step"]):
            for name, arguments in said.calls:
                await getattr(self, name)(**arguments)
                done.append(_in_words(name, arguments))
            said = way.send([{"role": "tool", "content": full(self.state)}])
        boxes = {line[1]: line[6] for line in self.state["lines"]}
        self.done = done
        self.judge({"wanted": [_gold(name, arguments, boxes) for name, arguments in said.calls]})

    def judge(self, gold: Mapping[str, Any]) -> None:
        """From now on a call ends the episode; `info` keeps what it is judged by."""
        self.gold, self.judged, self.info = gold, True, {**self.info, **gold}

    async def _after(self, *steps: Any, **at: Any) -> ToolResult:
        found: ToolResult = await super()._after(*steps, **at)
        self.info = {**self.info, **self.gold}  # the end of the page writes `info` anew
        return dataclasses.replace(found, done=True) if self.judged else found

    def _shown(self) -> str:
        done = f"\nDone so far: {', '.join(self.done)}." if self.done else ""
        return f"{super()._shown()}{done}"


def _gold(name: str, arguments: dict[str, Any], boxes: Mapping[int, Any]) -> dict[str, Any]:
    """A call of the script, and the box of the element that it acts on."""
    left, top, width, height = boxes.get(arguments.get("ref", 0), (0, 0, 0, 0))
    return {"name": name, "arguments": arguments, "box": [left, top, left + width, top + height]}


def _in_words(name: str, arguments: Mapping[str, Any]) -> str:
    return " ".join([name, *(each if isinstance(each, str) else json.dumps(each) for each in arguments.values())])


# --- rewards --------------------------------------------------------------------------------------------------------


def acted(episode: Episode, info: dict[str, Any]) -> float:
    """1 if the first reply makes the calls of the script: a click on the element or in its box, all others exactly."""
    calls = episode.turns[0].calls if episode.turns else []
    wanted = info["wanted"]
    return float(len(calls) == len(wanted) and all(map(same, calls, wanted)))


def same(call: CallRecord, wanted: Mapping[str, Any]) -> bool:
    """Returns True if a call is the wanted one."""
    given = call.arguments
    if wanted["name"] == "click" and call.name == "left_click":
        left, top, right, bottom = wanted["box"]
        x, y = given.get("x"), given.get("y")
        return isinstance(x, int | float) and isinstance(y, int | float) and left <= x <= right and top <= y <= bottom
    return bool(call.name == wanted["name"] and given == wanted["arguments"])


def won(info: dict[str, Any]) -> float:
    """1 if the page was solved."""
    return float(info["raw"] > 0)


def form(episode: Episode) -> float:
    """Share of the replies that are a thought, an action in words, and calls that can be read."""
    fit = [FORM.match(turn.text) is not None and bool(turn.calls) and turn.valid for turn in episode.turns]
    return sum(fit) / max(1, len(fit))


# --- scripts --------------------------------------------------------------------------------------------------------


def narrator(task: Task, rng: random.Random, messages: list[Message]) -> Generator[Say, list[Message], None]:
    """Solves the page, and says at each step what it does."""
    way = solve(task, rng, messages)
    said = next(way, None)
    while said is not None:
        action = ", ".join(_in_words(name, arguments) for name, arguments in said.calls)
        seen = yield Say(f"<think>Next.</think><action>{action}</action>", said.calls)
        try:
            said = way.send(seen)
        except StopIteration:
            return
