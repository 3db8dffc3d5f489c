"""Films that do not exist, conversations about them, and lists of films to see next."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator

from agentrl import Say, Task
from agentrl.rewards import Span
from agentrl.types.episode import Episode, Turn

GENRES, MOODS, EACH = ("crime", "love", "space", "war"), ("calm", "dark"), 3
LENGTH = 3

_TITLES = ["".join(letters) for letters in itertools.product("bkmt", "ao", "lnr")]
CATALOGUE = dict(
    zip(
        _TITLES,
        itertools.chain.from_iterable(itertools.repeat((g, m), EACH) for g in GENRES for m in MOODS),
        strict=True,
    )
)
"""Genre and mood of each film."""


def talks(n: int, held_out: bool = False) -> Iterator[Task]:
    """Conversations in which someone liked a film, and wants one of a mood; every fourth is held out.

    `task.data` has the film that was spoken of, and the others of its genre with the mood.
    """
    split = [pair for k, pair in enumerate(itertools.product(CATALOGUE, MOODS)) if (k % 4 == 0) == held_out]
    for k, (liked, mood) in enumerate(random.Random(0).choices(split, k=n)):
        wanted = [title for title, own in CATALOGUE.items() if own == (CATALOGUE[liked][0], mood) and title != liked]
        yield Task.of(f"{k}:{liked}-{mood}", f"I liked {liked}. Now a {mood} one?", liked=liked, wanted=wanted)


def hits(task: Task, titles: list[str]) -> list[bool]:
    """Tells which titles are wanted, named for the first time, and among the first three."""
    return [
        title in task.data["wanted"] and title not in titles[:rank] and rank < LENGTH
        for rank, title in enumerate(titles)
    ]


def ranks(task: Task, turn: Turn) -> list[Span]:
    """The term of each line, with its line end, in the discounted cumulative gain: 1 / log2(rank + 1) of a hit."""
    lines = list(re.finditer(r"[^\n]*\n|[^\n]+$", turn.text))
    found = hits(task, [line[0].strip() for line in lines])
    return [
        Span(*line.span(), hit / math.log2(rank + 2)) for rank, (line, hit) in enumerate(zip(lines, found, strict=True))
    ]


def first(task: Task, episode: Episode) -> float:
    """1 if the first film is wanted, else 0."""
    return float((episode.answer or "").split("\n")[0].strip() in task.data["wanted"])


# --- scripts ----------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """Lists the wanted films first, and others of the catalogue if there are too few."""
    others = [title for title in CATALOGUE if title not in (*task.data["wanted"], task.data["liked"])]
    yield Say("\n".join([*task.data["wanted"], *rng.sample(others, LENGTH)][:LENGTH]))


def guesser(task: Task, rng: random.Random) -> Iterator[Say]:
    """Lists three films, of which each is any film of the catalogue half of the time."""
    listed = [*rng.sample(task.data["wanted"], len(task.data["wanted"])), rng.choice(_TITLES)]
    yield Say("\n".join(rng.choice(_TITLES) if rng.random() < 0.5 else title for title in listed[:LENGTH]))
