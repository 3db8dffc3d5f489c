"""What a consultation pays: information, compliance and the diagnosis, after the authors' environment and evaluator."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from agentrl import Episode, Message, Say, Task
from agentrl.registry.references import load_object

_CLINIC = Path(__file__).parents[2] / "clinic"
parts = load_object("./task.py:parts", _CLINIC)
diagnosed = load_object("./task.py:diagnosed", _CLINIC)
asks_well = load_object("./task.py:oracle", _CLINIC)


def information(info: dict[str, Any], answered: float = 1.0, unknown: float = -1.0) -> float:
    """`answered` for each question that the patient could answer, `unknown` for each that it could not."""
    acts = info.get("acts", [])
    return float(answered * acts.count("answered") + unknown * acts.count("unknown"))


def compliance(info: dict[str, Any], invalid: float = -2.0, repeated: float = -2.0, late: float = -5.0) -> float:
    """`invalid` for each turn without tags or with not one question, `repeated` and `late` for those."""
    acts = info.get("acts", [])
    wrong = acts.count("form") + acts.count("several")
    return float(invalid * wrong + repeated * acts.count("repeated") + late * acts.count("late"))


def diagnosis(task: Task, episode: Episode, scale: float = 5.0) -> float:
    """`scale` times the words in common (F1) with the right diagnosis, and the same of the recommendation."""
    said = parts(episode.answer)
    return scale * sum(_f1(*pair) for pair in zip(said, (task.data["disease"], task.data["treatment"]), strict=True))


def _f1(said: str, right: str) -> float:
    one, other = (Counter(re.findall(r"\w+", text.lower())) for text in (said, right))
    shared = (one & other).total()
    return 2 * shared / (one.total() + other.total()) if shared else 0.0


# --- scripts ----------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """The oracle of the clinic, with tags. It needs up to five turns, which the number drawn may not leave."""
    play = asks_well(task, rng)
    said = next(play)
    while True:
        heard = yield Say(_tagged(said.text))
        try:
            said = play.send(heard)
        except StopIteration:
            return


def some(task: Task, rng: random.Random) -> Iterator[Say]:
    """Asks up to two questions, some twice, some without tags, and names one of the diseases."""
    for _ in range(rng.randint(0, 2)):
        question = f"Do you have {rng.choice(task.data['symptoms'])}?"
        yield Say(question if rng.random() < 0.2 else _tagged(question))
    yield Say(_tagged(diagnosed(rng.choice(task.data["choices"]))))


def _tagged(text: str) -> str:
    return f"<think>so</think><answer>{text}</answer>"
