"""Games of ALFWorld from what its package holds: the rooms of AI2-THOR, what belongs where, the goals and their words.

The placements of ALFRED's recordings are not in the package: here things are put at random where they may be.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KINDS = {  # what has to be done to the thing, and where
    "pick_and_place_simple": ("", ""),
    "look_at_obj_in_light": ("", ""),
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
    "pick_two_obj_and_place": ("", ""),
}
LAMPS = ("DeskLamp", "FloorLamp")
LAMPS_STAND_ON = ("SideTable", "Desk", "Dresser", "Shelf", "CoffeeTable", "DiningTable")
START = "loc|99|99|0|0"
HOW_MANY = (1, 1, 2)  # of each kind of thing that was seen in a room


def game(kind: str, rooms: str, seed: int) -> dict[str, Any]:
    """A game as ALFWorld stores it (`game.tw-pddl`).

    Args:
        rooms: `train`, or `test` for the rooms that ALFRED holds out.
    """
    rng = random.Random(f"{kind}/{rooms}/{seed}")
    while (drawn := _drawn(kind, rooms, rng)) is None:
        pass
    goals = _goals()[kind]
    words = {"obj": drawn.target, "recep": drawn.parent, "toggle": drawn.lamp, "mrecep": ""}
    told = rng.choice(goals["templates"]).format(**{name: word.lower() for name, word in words.items()})
    domain, grammar = _files()
    return {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL", told),
        "pddl_problem": _problem(drawn, goals["pddl"].format(**words).replace(" # ", " - ")),
        "solvable": True,
        "walkthrough": None,
    }


@dataclass
class _Room:
    """Receptacles with where the player stands before them, and things with the receptacle that holds each."""

    receptacles: Mapping[str, Sequence[float]]
    things: list[tuple[str, str, str]] = field(default_factory=list)  # kind, id, receptacle
    target: str = ""
    parent: str = ""
    lamp: str = ""


def _drawn(kind: str, rooms: str, rng: random.Random) -> _Room | None:
    """A room with things and a goal; None if what was drawn does not fit together."""
    known = _constants()
    numbers = known.TRAIN_SCENE_NUMBERS if rooms == "train" else known.TEST_SCENE_NUMBERS
    fitting = [number for number in numbers if _scene(number) in known.GOALS_VALID[kind]]
    stands, small = _layout(rng.choice(fitting))
    room = _Room(stands)
    holds = {each: known.VAL_RECEPTACLE_OBJECTS.get(_type(each), ()) for each in stands}
    for thing in small:
        places = [each for each in stands if thing in holds[each]]
        for _ in range(rng.choice(HOW_MANY) if places else 0):
            room.things.append((thing, _named(thing, rng), rng.choice(places)))
    if kind == "look_at_obj_in_light" and not _lit(room, small, rng):
        return None
    done_to, at = KINDS[kind]
    types = {_type(each) for each in stands}
    if at and at not in types:
        return None
    able = {thing for thing, _, _ in room.things if not done_to or thing in known.VAL_ACTION_OBJECTS[done_to]}
    count = 2 if kind == "pick_two_obj_and_place" else 1
    able = {each for each in able if each not in LAMPS and sum(each == thing for thing, _, _ in room.things) >= count}
    if not able:
        return None
    room.target = rng.choice(sorted(able))
    return room if kind == "look_at_obj_in_light" or _parented(room, holds, at, rng) else None


def _lit(room: _Room, small: Sequence[str], rng: random.Random) -> bool:
    """Puts one lamp somewhere."""
    lamps = [lamp for lamp in LAMPS if lamp in small]
    places = [each for each in room.receptacles if _type(each) in LAMPS_STAND_ON]
    if not lamps or not places:
        return False
    room.lamp = rng.choice(lamps)
    room.things = [each for each in room.things if each[0] not in LAMPS]
    room.things.append((room.lamp, f"{room.lamp}|+01.00|+01.00|+01.00", rng.choice(places)))
    return True


def _parented(room: _Room, holds: Mapping[str, Sequence[str]], at: str, rng: random.Random) -> bool:
    """Chooses where the thing has to be, and takes it away from there."""
    places = [each for each in room.receptacles if room.target in holds[each]]
    parents = sorted({_type(each) for each in places} - {at})
    if not parents:
        return False
    room.parent = rng.choice(parents)
    others = [each for each in places if _type(each) != room.parent]
    if not others:
        return False
    room.things = [
        (thing, id, rng.choice(others) if thing == room.target and _type(where) == room.parent else where)
        for thing, id, where in room.things
    ]
    return True


# --- the package ----------------------------------------------------------------------------------------------------


def _folder() -> Path:
    spec = importlib.util.find_spec("alfworld")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _constants() -> Any:
    return importlib.import_module("alfworld.gen.constants")


def _goals() -> Any:
    return importlib.import_module("alfworld.gen.goal_library").gdict


@functools.cache
def _files() -> tuple[str, str]:
    return (_folder() / "data/alfred.pddl").read_text(), (_folder() / "data/alfred.twl2").read_text()


@functools.cache
def _scene(number: int) -> str:
    return next(str(kind) for kind, numbers in _constants().SCENE_TYPE.items() if number in numbers)


@functools.cache
def _layout(number: int) -> tuple[dict[str, Sequence[float]], list[str]]:
    """The receptacles of a room, and the kinds of things that were seen in it."""
    known, layouts = _constants(), _folder() / "gen/layouts"
    stands = json.loads((layouts / f"FloorPlan{number}-openable.json").read_text())
    small = json.loads((layouts / f"FloorPlan{number}-objects.json").read_text())
    kinds = {*known.RECEPTACLES, "Sink", "Bathtub"} - {*known.MOVABLE_RECEPTACLES}
    found = {_basin(id): stands[id] for id in sorted(stands) if id.split("|")[0] in kinds}
    return found, small


def _basin(id: str) -> str:
    """Things lie in the basin of a sink or a bathtub."""
    kind = id.split("|")[0]
    basin = f"{kind}Basin"
    return f"{id}|{basin}" if kind in ("Sink", "Bathtub") and basin not in id else id


def _type(receptacle: str) -> str:
    parts = receptacle.split("|")
    return parts[-1] if receptacle.endswith("Basin") else parts[0]


def _named(thing: str, rng: random.Random) -> str:
    """An id as those of AI2-THOR, with a position."""
    x, y, z = rng.uniform(-3, 3), rng.uniform(0, 2), rng.uniform(-3, 3)
    return f"{thing}|{x:+06.2f}|{y:+06.2f}|{z:+06.2f}"


# --- the problem ----------------------------------------------------------------------------------------------------


def _problem(room: _Room, goal: str) -> str:
    """PDDL: objects, first state and goal, in this order, with ids that PDDL can read."""
    known = _constants()
    where = {each: _location(stand) for each, stand in room.receptacles.items()}
    types = sorted({_type(each) for each in room.receptacles})
    kinds = sorted({thing for thing, _, _ in room.things})
    objects = [
        ("agent1", "agent"),
        *((f"{kind}Type", "otype") for kind in kinds),
        *((f"{kind}Type", "rtype") for kind in types),
        *((id, "object") for _, id, _ in room.things),
        *((each, "receptacle") for each in room.receptacles),
        *((each, "location") for each in [*sorted({*where.values()}), START]),
    ]
    facts = [f"atLocation agent1 {START}"]
    facts += [f"receptacleType {each} {_type(each)}Type" for each in room.receptacles]
    facts += [f"openable {each}" for each in room.receptacles if _type(each) in known.OPENABLE_CLASS_SET]
    facts += [f"objectType {id} {thing}Type" for thing, id, _ in room.things]
    may = known.VAL_RECEPTACLE_OBJECTS
    facts += [f"canContain {kind}Type {thing}Type" for kind in types for thing in kinds if thing in may.get(kind, ())]
    facts += [f"pickupable {id}" for thing, id, _ in room.things if thing not in LAMPS]
    facts += [f"isReceptacleObject {id}" for thing, id, _ in room.things if thing in known.MOVABLE_RECEPTACLES]
    for able in ("Cleanable", "Heatable", "Coolable", "Sliceable", "Toggleable"):
        facts += [f"{able.lower()} {id}" for thing, id, _ in room.things if thing in known.VAL_ACTION_OBJECTS[able]]
    facts += [f"inReceptacle {id} {each}" for _, id, each in room.things]
    facts += [f"receptacleAtLocation {each} {where[each]}" for each in room.receptacles]
    facts += [f"objectAtLocation {id} {where[each]}" for _, id, each in room.things]
    declared = "\n".join(f"{_mangled(name)} - {kind}" for name, kind in objects)
    state = "\n".join(f"({_mangled(fact)})" for fact in facts)
    return (
        f"(define (problem plan)\n(:domain alfred)\n(:objects\n{declared}\n)\n"
        f"(:init\n(= (total-cost) 0)\n{state}\n)\n{goal}"
    )


def _location(stand: Sequence[float]) -> str:
    x, z, turned, tilted = stand
    return f"loc|{round(x * 4)}|{round(z * 4)}|{max(int(turned) // 90, 0)}|{int(tilted)}"


def _mangled(text: str) -> str:
    for sign, word in (("|", "_bar_"), ("+", "_plus_"), ("-", "_minus_"), (".", "_dot_"), (",", "_comma_")):
        text = text.replace(sign, word)
    return text
