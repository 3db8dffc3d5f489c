"""Self-play: the policy takes every seat of a game of textarena."""

from __future__ import annotations

import random
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

from agentrl import Agent, Episode, Message, Say, Task
from agentrl.registry.references import load_object
from agentrl.tools.builtin.games.textarena import TextArena
from agentrl.types.clocks.threads import in_thread


class Table(Agent):
    """A game of several players. Each seat has a conversation and a role of its own; a reply is a move.

    `info` holds textarena's `scores`, of each seat. The outcome of the episode is that of the first one; each of the
    others is credited with its own.

    Args:
        others: who takes the seats behind the first one: `policy`, which trains on them, too, or a voice of the section
            `policies`, such as an earlier self.
    """

    seats = True

    def __init__(self, others: str = "policy") -> None:
        self.others = others
        self.shown = ""

    def opening(self, session: Any, system: str | None) -> list[Message]:
        """The system message alone: each turn is opened by what the seat is shown."""
        self.head: list[Message] = [{"role": "system", "content": system}] if system else []
        return [*self.head]

    async def run(self, session: Any) -> None:
        """Plays to the end."""
        game = session.task.data["game"]
        kwargs = dict(game.get("kwargs", {}))
        players = int(kwargs.pop("players", 2))
        match = await in_thread(partial(TextArena, game["id"], kwargs, players))
        await in_thread(partial(match.reset, session.task.seed))
        names = [f"player {seat}" for seat in range(players)]
        others = [session.context(name, self.head, role=name, policy=self.others) for name in names[1:]]
        seats = [session, *others]
        while not match.done:
            turn = match.turn
            self.shown = match.seen(turn)
            seats[turn].say(self.shown)
            reply = await seats[turn].generate(agent=names[turn])
            await in_thread(partial(match.step, reply.text))
        session.info["scores"] = [*match.scores]
        for player, its in zip(others, match.scores[1:], strict=True):
            player.score(its)
        session.finish("answer", f"{match.scores[0]}")

    def state_key(self) -> str:
        """What the seat was shown last, without how it came to that: the moves before are lines of the players."""
        return self.shown.rpartition("\nPlayer ")[2].partition("\n")[2] or self.shown


def score(episode: Episode) -> float:
    """The score of the first seat."""
    return float(episode.info.get("scores", [0.0])[0])


def success(episode: Episode) -> float:
    """1 if the first seat has won."""
    return float(score(episode) >= 1)


# --- scripts of Nim, for every seat ---------------------------------------------------------------------------------

_HERE = Path(__file__).parent


def oracle(task: Task, rng: random.Random, messages: list[Message]) -> Generator[Say, list[Message], None]:
    """Leaves a nim-sum of 0: with piles of 3, 4 and 5 whoever begins wins."""
    player = load_object("./task.py:PLAYERS", _HERE)["nim"](str(messages[-1]["content"]))
    move = next(player)
    while True:
        yield Say(move)
        move = player.send(str(messages[-1]["content"]))


def wild(task: Task, rng: random.Random, messages: list[Message]) -> Generator[Say, list[Message], None]:
    """Takes any number of stones from any pile."""
    take = load_object("./task.py:opponent", _HERE)
    while True:
        yield Say(take(str(messages[-1]["content"]), (), rng))
