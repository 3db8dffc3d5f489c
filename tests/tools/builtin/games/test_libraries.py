"""Games of four libraries through the `game` tool: the same texts and rewards as in a loop of the library's own.

The fifth is gem: `test_gem.py`.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tools.builtin.games.test_game import played, shown

pytestmark = pytest.mark.slow

SEEDS = range(4)


@dataclass
class Own:
    """A game in the library's own loop: the policy's moves, what it saw after each, and the rewards of each."""

    moves: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    ended: bool = False


def gymnasium(id: str, kwargs: dict[str, Any], seed: int) -> Own:
    """Random moves."""
    env = importlib.import_module("gymnasium").make(id, **kwargs)
    env.reset(seed=seed)
    rng, own = random.Random(seed), Own()
    while not own.ended and len(own.moves) < 60:
        own.moves.append(str(rng.randrange(int(env.action_space.n))))
        seen, reward, terminated, truncated, _ = env.step(int(own.moves[-1]))
        own.texts.append(str(seen))
        own.rewards.append(float(reward))
        own.ended = terminated or truncated
    return own


FORMS: dict[str, Callable[[random.Random], str]] = {
    "GuessTheNumber-v0": lambda rng: f"[{rng.randint(1, 20)}]",
    "Mastermind-v0": lambda rng: f"[{' '.join(map(str, rng.sample(range(1, 7), 4)))}]",
    "TowerOfHanoi-v0": lambda rng: f"[{' '.join(rng.sample('ABC', 2))}]",
    "FrozenLake-v0-random": lambda rng: f"[{rng.choice(['up', 'down', 'left', 'right'])}]",
}


def textarena(id: str, kwargs: dict[str, Any], seed: int) -> Own:
    """Random moves of a single player."""
    env = importlib.import_module("textarena").make(id, **kwargs)
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    env.reset(num_players=1, seed=seed)
    env.get_observation()
    rng, own = random.Random(seed), Own()
    while not own.ended and len(own.moves) < 60:
        own.moves.append(FORMS[id](rng))
        own.ended, _ = env.step(own.moves[-1])
        told = [text for sender, text, _ in env.state.observations[0] if sender != 0]
        own.texts.append(str(told[-1]) if told else "")
        own.rewards.append(float((env.state.rewards or {}).get(0, 0.0)))
        env.state.observations[0] = []
    random.setstate(before[0])
    np.random.set_state(before[1])
    return own


def openspiel(id: str, kwargs: dict[str, Any], seed: int) -> Own:
    """Random moves against one who makes the last move that it has."""
    state = importlib.import_module("pyspiel").load_game(id, kwargs).new_initial_state()
    rng, own = random.Random(seed), Own()
    while not own.ended:
        own.moves.append(state.action_to_string(rng.choice(state.legal_actions())))
        state.apply_action(state.string_to_action(own.moves[-1]))
        while not state.is_terminal() and state.current_player() != 0:
            state.apply_action(state.legal_actions()[-1])
        own.ended = state.is_terminal()
        own.texts.append(str(state))
        own.rewards.append(state.returns()[0] if own.ended else 0.0)
    return own


def legal_in(env: Any) -> list[int]:
    """The moves of the player whose turn it is."""
    return [*map(int, np.flatnonzero(env.observe(env.agent_selection)["action_mask"]))]


def pettingzoo(id: str, kwargs: dict[str, Any], seed: int) -> Own:
    """Random moves against one who makes the last move that it has."""
    env = importlib.import_module(f"pettingzoo.{id}").env(**kwargs)
    env.reset(seed=seed)
    rng, own = random.Random(seed), Own()
    me = env.possible_agents[0]
    while not own.ended:
        own.moves.append(str(rng.choice(legal_in(env))))
        env.step(int(own.moves[-1]))
        reward = float(env.rewards[me])
        if not (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(legal_in(env)[-1])
            reward += float(env.rewards[me])
        own.ended = env.terminations[me] or env.truncations[me]
        own.texts.append(str(env.observe(me)["observation"]))
        own.rewards.append(reward)
    return own


GAMES: dict[str, tuple[Callable[[str, dict[str, Any], int], Own], dict[str, dict[str, Any]]]] = {
    "gymnasium": (gymnasium, {"CliffWalking-v1": {}, "Taxi-v4": {}, "Blackjack-v1": {}, "CartPole-v1": {}}),
    "textarena": (textarena, {id: {} for id in FORMS}),
    "openspiel": (openspiel, {"tic_tac_toe": {}, "connect_four": {}, "breakthrough": {"rows": 5, "columns": 5}}),
    "pettingzoo": (
        pettingzoo,
        {"classic.tictactoe_v3": {}, "classic.connect_four_v3": {}, "classic.go_v5": {"board_size": 5}},
    ),
}
"""Games of each library, and their arguments."""


@pytest.mark.parametrize(("library", "id"), [(library, id) for library, (_, ids) in GAMES.items() for id in ids])
def test_a_game_goes_as_in_its_own_library(tmp_path: Path, library: str, id: str) -> None:
    loop, ids = GAMES[library]
    games = [loop(id, ids[id], seed) for seed in SEEDS]
    settings = {"library": library, "id": id, "kwargs": ids[id], "turn_rewards": True, "opponent": "./task.py:second"}
    for episode, own in zip(played(tmp_path, settings, *[own.moves for own in games]), games, strict=True):
        assert episode.status in ("done", "truncated"), episode.error
        turns = episode.turns[: len(own.moves)]  # a script that has no more moves says nothing
        assert [turn.reward for turn in turns] == pytest.approx(own.rewards)
        assert episode.info["ended"] == own.ended
        for text, seen in zip(shown(episode), own.texts, strict=False):
            assert seen.strip() in text
