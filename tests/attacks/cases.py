"""Cases of the suite, and what a family of them is."""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

NAMESPACE, DOCKER, DRIVER = PLACES = ("namespace", "docker", "driver")
"""Where cases are played: in sandboxes of a backend, or in the driver alone."""
SANDBOXES = (NAMESPACE, DOCKER)


@dataclass(frozen=True)
class Case:
    """An attack.

    Attributes:
        name: of a listed case; of a drawn one its number.
    """

    seed: int
    place: str
    family: str
    name: str

    @property
    def id(self) -> str:
        return f"{self.place}/{self.family}/{self.name}"

    @property
    def drawn(self) -> bool:
        return self.name.isdecimal()

    def random(self) -> random.Random:
        """Draws the same in every place and process."""
        return random.Random(f"{self.seed}/{self.family}/{self.name}")


def case_of(id: str, seed: int) -> Case:
    """The case with an id."""
    place, family, name = id.split("/", 2)
    return Case(seed, place, family, name)


@dataclass(frozen=True)
class Broken:
    """A promise that did not hold.

    Attributes:
        cases: ids; more than one if it is not known which of them broke it.
    """

    cases: tuple[str, ...]
    what: str


class Family(ABC):
    """A kind of attack.

    Attributes:
        places: where it can be played.
        batch: cases that are played together.
        draws: whether there are drawn cases.
    """

    name: ClassVar[str]
    places: ClassVar[Sequence[str]] = SANDBOXES
    batch: ClassVar[int] = 4
    draws: ClassVar[bool] = True

    @abstractmethod
    def listed(self) -> Sequence[str]:
        """Names of the listed cases; none of them is a number."""

    @abstractmethod
    def play(self, cases: Sequence[Case], folder: Path) -> Iterator[Broken]:
        """Plays cases of one place. What is in `folder` afterwards counts as left behind by nobody."""


def batches(family: Family, place: str, seed: int) -> Iterator[list[Case]]:
    """Batches of a family without end, or to the end of those that are listed: half of each listed, while they last."""
    listed = list(family.listed())
    random.Random(f"{seed}/{family.name}").shuffle(listed)
    numbers = itertools.count()
    some = (family.batch + 1) // 2 if family.draws else family.batch
    while listed or family.draws:
        names = [listed.pop() for _ in range(min(some, len(listed)))]
        if family.draws:
            names += [str(next(numbers)) for _ in range(family.batch - len(names))]
        yield [Case(seed, place, family.name, name) for name in names]
