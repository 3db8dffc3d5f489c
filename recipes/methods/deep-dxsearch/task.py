"""The reward of Deep-DxSearch: form, retrieval of similar patients and its structure, look-ups, and the diagnosis.

After `rare_search.py` of MAGIC-AI4Med/Deep-DxSearch@4ed1609.
"""

from __future__ import annotations

import itertools
import random
import re
import string
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl import Episode, Message, Say, Task
from agentrl.registry.references import load_object
from agentrl.types.episode import CallRecord

_CLINIC = Path(__file__).parents[2] / "clinic"
listed = load_object("./task.py:listed", _CLINIC)
researcher = load_object("./task.py:researcher", _CLINIC)
clinic = load_object("./world.py:clinic", _CLINIC)

MATCHES = 3
CHANGES = 2
LOOKED_UP = 10


def form(task: Task, episode: Episode) -> float:
    """1 for one to three matches, a thought in the turn after each, calls that could be read, and an answer."""
    turns = episode.own_turns
    matches = [k for k, turn in enumerate(turns) if _calls(turn, "match")]
    thought = all(k + 1 < len(turns) and _thought(turns[k + 1].text) for k in matches)
    readable = all(call.outcome != "malformed" for turn in turns for call in turn.calls)
    return float(1 <= len(_matches(episode)) <= MATCHES and thought and readable and bool(episode.answer))


def matching(task: Task, episode: Episode) -> float:
    """1 if a match brought up the disease, less 1/2 if the last one did not, less 1/2 if two in a row differ by fewer
    than two symptoms. Without the disease: 0.2 for two matches that all differ by two, 0.4 for three, else 0."""
    found = _matches(episode)
    if not 0 < len(found) <= MATCHES:
        return 0.0
    right = [_plain(task.data["answer"]) in map(_plain, re.findall(r"-> (.+)", call.result)) for call in found]
    symptoms = [{_plain(each) for each in listed(str(call.arguments.get("symptoms", "")))} for call in found]
    apart = all(len(one ^ other) >= CHANGES for one, other in itertools.pairwise(symptoms))
    if any(right):
        return max(0.0, 1.0 - 0.5 * (not right[-1]) - 0.5 * (not apart))
    return 0.2 * (len(found) - 1) if apart else 0.0


def looking(task: Task, episode: Episode) -> float:
    """What the first look-up or search asked for: the cube root of the share of the disease's words; 0 for more than
    ten diseases."""
    asked = [call for turn in episode.own_turns for name in ("lookup", "search") for call in _calls(turn, name)]
    names = listed(" ".join(map(str, asked[0].arguments.values()))) if asked else []
    return _similarity(names, task.data["answer"]) if len(names) <= LOOKED_UP else 0.0


def diagnosis(task: Task, episode: Episode) -> float:
    """The cube root of the share of the disease's words that the answer has."""
    return _similarity([episode.answer or ""], task.data["answer"])


def _similarity(names: Sequence[str], right: str) -> float:
    said = {word for name in names for word in _plain(name).split()}
    words = _plain(right).split()
    return float((sum(word in said for word in words) / len(words)) ** (1 / 3))


def _plain(text: str) -> str:
    """Lower case, without marks, articles and the s of a plural."""
    words = "".join(each for each in text.lower() if each not in string.punctuation).split()
    return " ".join(
        word[:-1] if len(word) > 1 and word.endswith("s") else word for word in words if word not in _ARTICLES
    )


_ARTICLES = {"a", "an", "the"}


def _calls(turn: Any, name: str) -> list[CallRecord]:
    return [call for call in turn.calls if call.name == name]


def _matches(episode: Episode) -> list[CallRecord]:
    return [call for turn in episode.own_turns for call in _calls(turn, "match")]


def _thought(text: str) -> bool:
    """True if a reply has words before its first call."""
    return bool(re.match(r"\s*(<think>)?\s*\w", text))


# --- scripts ----------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """The researcher of the clinic, who says a word before each call."""
    play = researcher(task, rng)
    said = next(play)
    while True:
        heard = yield Say("Next.", calls=said.calls)
        try:
            said = play.send(heard)
        except StopIteration:
            return


def some(task: Task, rng: random.Random) -> Iterator[Say]:
    """Matches some symptoms once or twice, and names the disease or its twin, at times without a thought."""
    for _ in range(rng.randint(1, 2)):
        symptoms = rng.sample(task.data["symptoms"], rng.randint(1, 3))
        yield Say("Next.", calls=[("match", {"symptoms": ", ".join(symptoms)})])
    twin = clinic().diseases[task.data["answer"]].twin
    text = "So." if rng.random() < 0.8 else ""
    yield Say(text, calls=[("answer", {"text": rng.choice([task.data["answer"], twin])})])
