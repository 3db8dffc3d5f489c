"""Steps on a screen in three phases: the regions that matter, a thought, one call."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from agentrl import Message, Say, Task
from agentrl.registry.references import load_object
from agentrl.types.episode import Episode

GROUNDING = Path(__file__).parents[2] / "grounding"
steps: Callable[..., Iterator[Task]] = load_object("./task.py:steps", GROUNDING)
act: Callable[..., Generator[Say, list[Message], None]] = load_object("./task.py:oracle", GROUNDING)

PHASES = re.compile(r"\s*<blink>.*?</blink>\s*<think>.*?</think>", re.DOTALL)


def looks(**args: Any) -> Iterator[Task]:
    """The steps of recipes/grounding, with the box that is to be looked at: none of a scroll."""
    for task in steps(**args):
        (action,) = task.data["actions"]
        yield msgspec.structs.replace(task, data={**task.data, "box": action.get("box")})


def phases(episode: Episode) -> float:
    """1 if the reply is a blink, a thought, and one call that can be read and fits its arguments."""
    turn = episode.turns[0] if episode.turns else None
    one_call = turn is not None and [(call.valid, call.outcome) for call in turn.calls] == [(True, "ok")]
    return float(one_call and turn is not None and PHASES.match(turn.text) is not None)


def gazer(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Names the box of the element, thinks, acts on its middle."""
    (step,) = act(task, rng)
    box = task.data["box"]
    thought = "It is there." if box else "It is not on the screen."
    yield Say(f"<blink>{box or '[]'}</blink><think>{thought}</think>", step.calls)
