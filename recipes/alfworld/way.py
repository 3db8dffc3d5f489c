"""A way to the goal of a game, by one who knows where everything is."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

DONE_AT = {"isClean": ("clean", "sinkbasin"), "isHot": ("heat", "microwave"), "isCool": ("cool", "fridge")}

Fact = tuple[str, ...]
"""A predicate, and the ids of its arguments; in lower case, as Fast Downward has them."""


def way(problem: str, facts: Collection[Fact], names: Mapping[str, str]) -> list[str]:
    """The moves from the beginning of a game.

    Args:
        problem: in PDDL.
        facts: at the beginning.
        names: what is shown of an id.

    Raises:
        LookupError: there is none that this would find.
    """
    goal = problem[problem.index("(:goal") :]
    target, parent, lamp = (
        _type(goal, pattern) for pattern in (r"objectType \?o1?", "receptacleType .r", "objectType .ot")
    )
    house = _House(facts, names)
    things = house.of("objecttype", target)
    if lamp:
        house.take(things[0])
        light = house.of("objecttype", lamp)[0]
        house.go(house.within[light])
        house.moves.append(f"use {names[light]}")
        return house.moves
    places = house.of("receptacletype", parent)
    done = next((DONE_AT[each] for each in DONE_AT if each in goal), None)
    place = max(places, key=lambda each: sum(house.within[thing] == each for thing in things))
    there = [] if done else [thing for thing in things if house.within[thing] == place]
    wanted = 2 if "?o2" in goal else 1
    for thing in [each for each in things if each not in there][: wanted - len(there)]:
        house.take(thing)
        if done:
            act, machine = done
            where = house.of("receptacletype", machine)[0]
            house.go(where)
            house.moves.append(f"{act} {names[thing]} with {names[where]}")
        house.go(place, inside=True)
        house.moves.append(f"move {names[thing]} to {names[place]}")
    return house.moves


def _type(goal: str, pattern: str) -> str:
    found = re.search(pattern + r" (\w+)Type\b", goal)
    return found[1].lower() if found else ""


class _House:
    """Where things are, what is open, and the moves so far."""

    def __init__(self, facts: Collection[Fact], names: Mapping[str, str]) -> None:
        self.names, self.moves = names, list[str]()
        self._of: Sequence[Fact] = sorted(fact for fact in facts if fact[0] in ("objecttype", "receptacletype"))
        self.within = {fact[1]: fact[2] for fact in facts if fact[0] == "inreceptacle"}
        self._stand = {fact[1]: fact[2] for fact in facts if fact[0] == "receptacleatlocation"}
        self._closed = {fact[1] for fact in facts if fact[0] == "openable"}
        self._closed -= {fact[1] for fact in facts if fact[0] == "opened"}
        self._here = next(fact[2] for fact in facts if fact[0] == "atlocation")

    def of(self, predicate: str, type: str) -> list[str]:
        """The things of a type that lie somewhere, or the receptacles of a type."""
        ids = [id for name, id, kind in self._of if (name, kind) == (predicate, f"{type}type")]
        return [id for id in ids if predicate == "receptacletype" or id in self.within]

    def go(self, place: str, inside: bool = False) -> None:
        """Goes to a receptacle, and opens it if that is needed."""
        if self._stand[place] != self._here:  # several stand at one location
            self.moves.append(f"go to {self.names[place]}")
            self._here = self._stand[place]
        if inside and place in self._closed:
            self.moves.append(f"open {self.names[place]}")
            self._closed.remove(place)

    def take(self, thing: str) -> None:
        """Goes to a thing and takes it."""
        place = self.within[thing]
        self.go(place, inside=True)
        self.moves.append(f"take {self.names[thing]} from {self.names[place]}")
