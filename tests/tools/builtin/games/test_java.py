"""Environments that share Java processes: each has a world of its own."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.tools.builtin.games import java
from agentrl.types.clocks.threads import in_thread
from tests.environments.packages import needs
from tests.waiting import stop

pytestmark = [pytest.mark.slow, pytest.mark.family("environments")]

MODULE = "textworld_express.textworld_express"


@pytest.fixture(scope="module")
def own_launcher() -> Iterator[None]:
    """Starts processes of these tests, whatever was played before. One of them serves test after test."""
    needs("textworld_express")
    from py4j.java_gateway import launch_gateway
    from textworld_express import textworld_express

    with pytest.MonkeyPatch.context() as patch:
        started: list[Any] = []

        def launch(*args: Any, **settings: Any) -> Any:
            port, process = launch_gateway(*args, **settings)
            started.append(process)
            return port, process

        patch.setattr(textworld_express, "launch_gateway", launch)
        yield
        for process in started:
            process.kill()


@pytest.fixture
def games(own_launcher: None) -> Iterator[java.JavaGames]:
    """With one process at most, which has no game."""
    from textworld_express import TextWorldExpressEnv

    gc.collect()
    yield java.JavaGames(TextWorldExpressEnv, MODULE)
    launcher = java.launcher_of(MODULE)
    for process in launcher.running[1:]:
        process.java.kill()
        process.java.wait()
    del launcher.running[1:]


def begun(env: Any, seed: int) -> str:
    env.load("sorting", "")
    return str(env.reset(seed=seed, gameFold="train")[0])


def held() -> list[int]:
    """How many games each process has."""
    gc.collect()
    return [len(process.handles) for process in java.launcher_of(MODULE).running]


@pytest.mark.slow
def test_a_game_that_begins_leaves_those_of_its_process_alone(games: java.JavaGames) -> None:
    """The worlds of `sorting` are made of what is static in Java."""
    envs = [games.take() for _ in range(3)]
    shown = [begun(env, seed) for seed, env in enumerate(envs)]
    assert len(set(shown)) == 3
    assert held() == [3]
    for env, first in zip(envs, shown, strict=True):
        assert env.step("look around")[0].strip() in first


@pytest.mark.slow
def test_processes_are_filled_and_environments_kept(games: java.JavaGames, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "GAMES", 2)
    first, second, third = (games.take() for _ in range(3))
    assert held() == [2, 1]
    games.give(first)
    assert games.take() is first
    del first  # its place is free; the process lives on for the other
    assert held() == [1, 1]
    assert begun(second, 0)
    assert begun(third, 1)


@pytest.mark.slow
async def test_games_that_begin_at_once_share_a_process(games: java.JavaGames) -> None:
    envs = await asyncio.gather(*(in_thread(games.take) for _ in range(8)))
    assert held() == [len(envs)]


@pytest.mark.slow
def test_what_does_not_answer_is_not_lent_again(games: java.JavaGames) -> None:
    with games.lent() as env:
        env.close()
    with games.lent() as another:
        assert another is not env
        assert begun(another, 0)


@pytest.mark.slow
def test_a_process_that_died_is_replaced(games: java.JavaGames) -> None:
    with pytest.raises(ZeroDivisionError), games.lent() as env:
        begun(env, 0)
        raise ZeroDivisionError
    (process,) = java.launcher_of(MODULE).running
    process.java.kill()
    process.java.wait()
    with games.lent() as another:
        assert another is not env
        assert begun(another, 0)
    assert process not in java.launcher_of(MODULE).running


async def test_an_answer_is_waited_for_only_so_long(games: java.JavaGames, monkeypatch: pytest.MonkeyPatch) -> None:
    from py4j.protocol import Py4JError

    java.launcher_of(MODULE).running.clear()  # in a process that others have used, Python may free objects of theirs
    env = games.take()
    begun(env, 0)
    (process,) = java.launcher_of(MODULE).running
    stop(process.java.pid)
    try:
        with monkeypatch.context() as patch, pytest.raises(Py4JError):
            patch.setattr(java, "ANSWER_S", 0.3)
            java._limit_waits(env._gateway)  # of connections that it has
            env.step("look around")
        assert env._gateway._gateway_client.lost
    finally:
        process.java.send_signal(signal.SIGCONT)
    games.give(env)
    other = games.take()
    assert other is not env, "Java may still be at the move"
    assert begun(other, 1)


class Connection:
    """Its server sends a part of a line, and nothing more."""

    def __init__(self) -> None:
        self.socket, self.server = socket.socketpair()
        self.stream = self.socket.makefile("rb")
        self.server.sendall(b"ysThe door is cl")


def test_a_part_of_an_answer_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """And neither is nothing, upon which py4j would send the move again."""
    monkeypatch.setattr(java, "ANSWER_S", 0.1)
    connection, client = Connection(), SimpleNamespace()
    java._limit_wait(connection, client)
    for _ in range(2):
        with pytest.raises(TimeoutError, match="no answer"):
            connection.stream.readline()
    connection.server.sendall(b"osed.\n")
    assert client.lost
