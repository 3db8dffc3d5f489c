"""Game libraries by name, and environments from functions (`library: ./task.py:make`)."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.registry.checks import not_installed
from agentrl.tools.builtin.games.play import Match, Opponent, Play, Seat, any_move
from agentrl.tools.builtin.games.reset_step import AsyncStep, ResetStep
from agentrl.types.errors import MissingExtra, RecipeError, nearest
from agentrl.types.packages import installed_package


@dataclass(frozen=True)
class Wanted:
    """Specification of a game.

    Attributes:
        id: id of the game in its library.
        kwargs: arguments of the library's `make`, or of the recipe's function.
        actions: names of discrete actions.
        player: seat of the policy, from 0.
        opponent: policy of the other seats.
    """

    id: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    actions: Sequence[str] | None = None
    player: int = 0
    opponent: Opponent = any_move


def _gymnasium(wanted: Wanted) -> Play:
    import gymnasium

    return ResetStep(gymnasium.make(str(wanted.id), **wanted.kwargs), wanted.actions)


def _gem(wanted: Wanted) -> Play:
    from agentrl.tools.builtin.games.gem import Gem

    return Gem(str(wanted.id), wanted.kwargs)


def _textarena(wanted: Wanted) -> Play:
    from agentrl.tools.builtin.games.textarena import TextArena

    kwargs = dict(wanted.kwargs)
    players = int(kwargs.pop("players", 1))
    return Seat(TextArena(str(wanted.id), kwargs, players), wanted.player, wanted.opponent)


def _openspiel(wanted: Wanted) -> Play:
    from agentrl.tools.builtin.games.openspiel import OpenSpiel

    return Seat(OpenSpiel(str(wanted.id), wanted.kwargs), wanted.player, wanted.opponent)


def _pettingzoo(wanted: Wanted) -> Play:
    from agentrl.tools.builtin.games.pettingzoo import PettingZoo

    return Seat(PettingZoo(str(wanted.id), wanted.kwargs), wanted.player, wanted.opponent)


@dataclass(frozen=True)
class Library:
    """Game library.

    Attributes:
        module: modules to import, separated by blanks.
        package: arguments of `pip install`.
        make: opens a game.
    """

    module: str
    package: str
    make: Callable[[Wanted], Play]


LIBRARIES = {
    "gymnasium": Library("gymnasium", "gymnasium", _gymnasium),
    "gem": Library(
        "gem reasoning_gym", "--no-deps --ignore-requires-python gem-llm && pip install reasoning-gym", _gem
    ),
    "textarena": Library("textarena", "textarena", _textarena),
    "openspiel": Library("pyspiel", "open-spiel", _openspiel),
    "pettingzoo": Library("pettingzoo", "pettingzoo pygame-ce", _pettingzoo),
}


def maker(library: Any) -> Callable[[Wanted], Play]:
    """Returns the opener of a library's games, or of a function that returns an environment, a `Play` or a `Match`.

    Raises:
        RecipeError: the library is unknown or not installed.
    """
    if callable(library):
        return lambda wanted: _own(library, wanted)
    found = LIBRARIES.get(library)
    if found is None:
        raise RecipeError(
            f"game: library is {library!r}",
            place="tools",
            remedy=f"{nearest(str(library), LIBRARIES)}, or ./task.py:NAME",
        )
    require(found.module, found.package)
    return found.make


def require(modules: str, package: str) -> None:
    """Checks that packages are installed.

    Args:
        modules: modules to import, separated by blanks.
        package: arguments of `pip install`.

    Raises:
        RecipeError: a module is not installed.
        MissingExtra: a package of one of agentrl's extras is too old.
    """
    for module in modules.split():
        if importlib.util.find_spec(module) is None:
            raise not_installed(module, f"pip install {package}")
    for name in package.split():
        found = installed_package(name)
        if found is not None and found.too_old:
            raise MissingExtra(found.name, found.extra, found=found.version)


def _own(make: Callable[..., Any], wanted: Wanted) -> Play:
    made = make(**({} if wanted.id is None else {"id": wanted.id}), **wanted.kwargs)
    if isinstance(made, Play):
        return made
    if isinstance(made, Match):
        return Seat(made, wanted.player, wanted.opponent)
    waits = inspect.iscoroutinefunction(made.step) if hasattr(made, "step") else False
    return (AsyncStep if waits else ResetStep)(made, wanted.actions)
