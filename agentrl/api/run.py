"""A run directory as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from agentrl.api.tables import Table
from agentrl.config.recipe import Recipe, recipe_from_run
from agentrl.store.codec import StoredCredit
from agentrl.store.index import EpisodeRow
from agentrl.store.reader import RunReader
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode
from agentrl.view.summary import Summary, summarise


class TurnRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model turn.

    Attributes:
        index: number of the turn in its episode.
        advantage: of the latest credit; None if the episode has no credit.
        calls: number of tool calls.
        queue_s, decode_s: of `generate_s`, in the queue of the engine and in its computation; None: not recorded.
    """

    episode: str
    index: int
    iteration: int
    split: str
    agent: str
    text: str
    finish: str
    state: str | None
    reward: float | None
    advantage: float | None
    calls: int
    valid: bool
    sampled_tokens: int
    generate_s: float
    queue_s: float | None
    decode_s: float | None
    tools_s: float


class CallRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call, with the fields of `CallRecord`."""

    episode: str
    turn: int
    index: int
    name: str
    arguments: dict[str, Any]
    outcome: str
    result: str
    raised: str
    duration_s: float


class RewardRow(msgspec.Struct, frozen=True, kw_only=True):
    """Reward component of an episode or of a turn, before weights and gates.

    Attributes:
        turn: None for the component of the whole episode.
        value: None if the component was not scored.
        note: the reason for the value, if the component gave one.
    """

    episode: str
    turn: int | None
    component: str
    value: float | None
    note: str


class Run:
    """A run directory. It may still be written to: every access reads the current data.

    `rollout`, `train`, `eval` and `open_run` return it. Keep a table that you use twice (`turns = run.turns`):
    every access reads it from disk.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @cached_property
    def _opened(self) -> RunReader:
        return RunDir.read(self.path)

    @property
    def dir(self) -> RunReader:
        """The store's view of the run, for data that this class does not offer: credit, blobs, failures.

        Raises:
            StoreError: the folder is not a run.
        """
        self._opened.refresh()
        return self._opened

    @property
    def info(self) -> dict[str, Any]:
        """`run.json`."""
        return self.dir.info

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe."""
        return recipe_from_run(self.info)

    def summary(self) -> Summary:
        """Counts and means."""
        return summarise(self.dir)

    @property
    def episodes(self) -> Table[EpisodeRow]:
        """One row per episode, from the index; `episode(id)` returns the whole episode."""
        return episode_table(self.dir.rows)

    @property
    def turns(self) -> Table[TurnRow]:
        """One row per turn."""
        return Table(lambda: (row for episode in self.whole_episodes() for row in self._turns(episode)), TurnRow)

    @property
    def calls(self) -> Table[CallRow]:
        """One row per tool call."""
        return Table(lambda: (row for episode in self.whole_episodes() for row in _calls(episode)), CallRow)

    @property
    def rewards(self) -> Table[RewardRow]:
        """One row per reward component of each episode and of each turn."""
        return Table(lambda: (row for episode in self.whole_episodes() for row in _rewards(episode)), RewardRow)

    @property
    def metrics(self) -> Table[dict[str, Any]]:
        """One row per line of `metrics.jsonl`: an iteration, or an evaluation."""
        return Table(self.dir.metrics)

    def episode(self, name: str) -> Episode:
        """Returns a whole episode: messages, tokens, calls, rewards.

        Args:
            name: its id, or a unique part of it.

        Raises:
            StoreError: no episode matches, or several do.
        """
        run = self.dir
        return run.get(run.resolve(name))

    def credit(self, name: str) -> StoredCredit | None:
        """The latest credit of an episode; None if it has no credit."""
        run = self.dir
        return run.credit(run.resolve(name))

    def whole_episodes(self, *, split: str | None = None, iteration: int | None = None) -> Iterator[Episode]:
        """Iterates over whole episodes."""
        return self.dir.episodes(split=split, iteration=iteration)

    def close(self) -> None:
        """Closes the files. The next access opens them again."""
        if "_opened" in vars(self):
            vars(self).pop("_opened").close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _turns(self, episode: Episode) -> Iterator[TurnRow]:
        credit = self._opened.credit(episode.id)
        for turn in episode.turns:
            yield TurnRow(
                episode=episode.id,
                index=turn.index,
                iteration=episode.iteration,
                split=episode.split,
                agent=turn.agent,
                text=turn.text,
                finish=turn.finish,
                state=turn.state,
                reward=turn.reward,
                advantage=credit.turn_advantages[turn.index] if credit is not None else None,
                calls=len(turn.calls),
                valid=turn.valid,
                sampled_tokens=episode.trained(turn),
                generate_s=turn.generate_s,
                queue_s=turn.queue_s,
                decode_s=turn.decode_s,
                tools_s=turn.tools_s,
            )


def folder_of(run: str | Path | Run) -> Path:
    """Returns the folder of a run or of a path."""
    return run.path if isinstance(run, Run) else Path(run)


def episode_table(read: Callable[[], Iterable[EpisodeRow]]) -> Table[EpisodeRow]:
    """Rows of the index, without where the records lie."""
    return Table(read, EpisodeRow, leave_out=("shard", "offset", "length"))


def _calls(episode: Episode) -> Iterator[CallRow]:
    for turn in episode.turns:
        for index, call in enumerate(turn.calls):
            yield CallRow(
                episode=episode.id,
                turn=turn.index,
                index=index,
                name=call.name,
                arguments=call.arguments,
                outcome=call.outcome,
                result=call.result,
                raised=call.raised,
                duration_s=call.duration_s,
            )


def _rewards(episode: Episode) -> Iterator[RewardRow]:
    for name, value in episode.components.items():
        note = episode.notes.get(name, "")
        yield RewardRow(episode=episode.id, turn=None, component=name, value=value, note=note)
    for turn in episode.turns:
        for name, value in turn.rewards.items():
            yield RewardRow(episode=episode.id, turn=turn.index, component=name, value=value, note="")


def open_run(path: str | Path) -> Run:
    """Opens a stored run.

    Raises:
        StoreError: the folder is not a run.
    """
    run = Run(path)
    run.dir  # noqa: B018  (opens it)
    return run
