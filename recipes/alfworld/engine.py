"""ALFWorld's engine: a game in PDDL, played by TextWorld and Fast Downward, with ALFWorld's names for things."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from agentrl.tools.builtin.games.libraries import require
from agentrl.tools.builtin.games.play import Play, Step

LIST = "\nMoves: "
LOCK = threading.RLock()
"""Held while the engine works: its parsers and its translator are globals."""


def require_engine() -> None:
    """Raises RecipeError: a package is not installed."""
    for modules, package in (
        ("alfworld", "--no-deps alfworld"),
        (
            "textworld jericho tatsu hashids mementos more_itertools termcolor networkx prompt_toolkit tqdm",
            "--no-deps textworld jericho && pip install "
            "tatsu hashids mementos more-itertools termcolor networkx prompt_toolkit tqdm",
        ),
        ("fast_downward", "--no-deps fast-downward-textworld  # it is compiled: apt-get install cmake g++"),
    ):
        require(modules, package)


class House(Play):
    """One game.

    Args:
        game: as ALFWorld stores it (`game.tw-pddl`).
        moves: whether every observation lists the moves that are possible.
    """

    def __init__(self, game: Callable[[int], Mapping[str, Any]], moves: bool = True) -> None:
        self.game, self.moves = game, moves
        self.world: Any = None

    @property
    def env(self) -> House:
        """This object, whose `key` is the state."""
        return self

    def reset(self, seed: int) -> str:
        """The room, and what is to be done."""
        with LOCK:
            self.world = _IDLE.pop() if _IDLE else _world()
            self.world.load(self.game(seed))
            _remember_commands(self.world.unwrapped._logic)
            self.state = self.world.reset()
        return self._shown()

    def step(self, action: str) -> Step:
        """Makes a move. `Nothing happens.` if it is none."""
        with LOCK:
            self.state, score, done = self.world.step(action)
        return Step(self._shown(), float(score), bool(done), bool(self.state["won"]))

    def key(self) -> str:
        """All facts, but for what was looked at: nothing depends on that."""
        return str(sorted(fact for fact in self.facts if fact[0] != "checked"))

    @property
    def facts(self) -> list[tuple[str, ...]]:
        """What holds: predicates, and the ids of their arguments."""
        return [(fact.name, *(each.name for each in fact.arguments)) for fact in self.state["_facts"]]

    @property
    def problem(self) -> str:
        """In PDDL."""
        return str(self.world.unwrapped._game_data["pddl_problem"])

    @property
    def names(self) -> dict[str, str]:
        """What is shown of an id."""
        return {id: str(each.name) for id, each in self.world.unwrapped._entity_infos.items()}

    def close(self) -> None:
        """Leaves the engine to the next game. A copy of Fast Downward cannot be unloaded: the process would crash."""
        if self.world is not None:
            _IDLE.append(self.world)

    def _shown(self) -> str:
        listed = f"{LIST}{'; '.join(self.state['admissible_commands'])}" if self.moves else ""
        return f"{self.state.feedback.strip()}{listed}"


_IDLE: list[Any] = []


def _world() -> Any:
    """A player of games with a copy of Fast Downward of its own."""
    translator = _translator()
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs import PddlEnv

    importlib.import_module("fast_downward").pddl2sas = translator
    return AlfredDemangler(PddlEnv(textworld.EnvInfos()), shuffle=False)


@functools.cache
def _translator() -> Callable[..., Any]:
    """Fast Downward's translator, which takes most of the time of a reset.

    It remembers what it translated, prints nothing, and leaves `sys.argv` and `sys.stdout` alone. The
    second translation, for planning, is left out: nothing here plans.
    """
    with _own_arguments():
        interface = importlib.import_module("fast_downward.interface")
        importlib.import_module("fast_downward.translate.translate")
    vars(interface)["CapturingStdout"] = contextlib.nullcontext
    for name, module in [*sys.modules.items()]:
        if name.startswith("fast_downward.translate."):
            vars(module)["print"] = _print_to_files
    translate = interface.pddl2sas

    @functools.lru_cache(maxsize=32)
    def once(domain: str, problem: str) -> Any:
        with _own_arguments():
            return translate(domain, problem)

    return lambda domain, problem, **settings: once(domain, problem)


@contextlib.contextmanager
def _own_arguments() -> Any:
    ours, sys.argv = sys.argv, ["translate", "domain", "task"]
    try:
        yield
    finally:
        sys.argv = ours


def _print_to_files(*words: object, file: Any = None, **how: Any) -> None:
    if file is not None:
        print(*words, file=file, **how)


def _remember_commands(logic: Any) -> None:
    """Writes each command once a game: it depends on the action and on what never changes."""
    templates = {action.template for action in logic.actions.values()}
    derive, known = logic.grammar.derive, {}

    def remembered(start: str, context: Mapping[str, Any]) -> str:
        if start not in templates:
            return str(derive(start, context))
        key = (start, *map(str, context["mapping"].values()))
        if key not in known:
            known[key] = str(derive(start, context))
        return known[key]

    logic.grammar.derive = remembered
