"""Environments that share Java processes: each has a world of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.tools.games import java
from tests.environments.packages import needs


@pytest.fixture
def games(monkeypatch: pytest.MonkeyPatch) -> Iterator[java.JavaGames]:
    needs("textworld_express")
    from textworld_express import TextWorldExpressEnv, textworld_express

    monkeypatch.setattr(textworld_express, "launch_gateway", textworld_express.launch_gateway)  # as it was, at the end
    games = java.JavaGames(TextWorldExpressEnv, "textworld_express.textworld_express")
    yield games
    for process in games._processes:
        process.java.kill()


def begun(env: Any, seed: int) -> str:
    env.load("sorting", "")
    return str(env.reset(seed=seed, gameFold="train")[0])


def test_a_game_that_begins_leaves_those_of_its_process_alone(games: java.JavaGames) -> None:
    """The worlds of `sorting` are made of what is static in Java."""
    envs = [games.take() for _ in range(3)]
    shown = [begun(env, seed) for seed, env in enumerate(envs)]
    assert len(set(shown)) == 3
    assert len(games._processes) == 1
    for env, first in zip(envs, shown, strict=True):
        assert env.step("look around")[0].strip() in first


def test_processes_are_filled_and_environments_kept(games: java.JavaGames, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "GAMES", 2)
    first, *others = [games.take() for _ in range(3)]
    assert [process.games for process in games._processes] == [2, 1]
    games.give(first)
    assert games.take() is first
    first.close()  # as when it is dropped: the process lives on for the other
    assert begun(others[0], 0)


def test_a_process_that_died_is_replaced(games: java.JavaGames) -> None:
    with games.lent() as env:
        env._gateway.java_process.poll.__self__.kill()
        games._processes[0].java.wait()
    with games.lent() as another:
        assert another is not env
        assert begun(another, 0)
    assert len(games._processes) == 1
