"""Later scores of a stored run, apart from its records: `rewards/NAME.jsonl` in the run directory.

An episode is scored again, never rewritten. The first line of a file holds the rewards that scored it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentrl.store.lines import append_line, cut_torn_line, read_lines
from agentrl.types.episode import Episode, GateVerdict, SpanReward
from agentrl.types.errors import StoreError, nearest
from agentrl.types.figures.of_episodes import earned


class Rescore(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The new score of one episode; the fields are those of `Episode`.

    Attributes:
        turns: the reward components of each turn; `turn_rewards` holds their totals.
        spans: the rewards of parts of each turn's text; empty if no turn has any.
        total: the reward with those of the policy's turns.
    """

    episode_id: str
    components: dict[str, float | None] = {}
    reward: float | None = None
    success: str = ""
    total: float | None = None
    turns: list[dict[str, float | None]] = []
    turn_rewards: list[float | None] = []
    spans: list[list[SpanReward]] = []
    gates: list[GateVerdict] = []
    notes: dict[str, str] = {}

    @classmethod
    def of(cls, episode: Episode) -> Rescore:
        """The score of a scored episode."""
        return cls(
            episode_id=episode.id,
            components=episode.components,
            reward=episode.reward,
            success=episode.success,
            total=earned(episode),
            turns=[turn.rewards for turn in episode.turns],
            turn_rewards=[turn.reward for turn in episode.turns],
            spans=[turn.spans for turn in episode.turns] if any(turn.spans for turn in episode.turns) else [],
            gates=episode.gates,
            notes=episode.notes,
        )

    def onto(self, episode: Episode) -> Episode:
        """The episode with this score instead of the recorded one."""
        turns = [
            msgspec.structs.replace(turn, rewards=rewards, reward=reward, spans=spans)
            for turn, rewards, reward, spans in zip(
                episode.turns, self.turns, self.turn_rewards, self.spans or [[] for _ in self.turns], strict=True
            )
        ]
        return msgspec.structs.replace(
            episode,
            components=self.components,
            reward=self.reward,
            success=self.success,
            turns=turns,
            gates=self.gates,
            notes=self.notes,
            pending=[],
        )


def names(run: Path) -> list[str]:
    """The names of a run's later scores."""
    return sorted(path.stem for path in (run / "rewards").glob("*.jsonl"))


def begin(run: Path, name: str, by: Mapping[str, Any]) -> dict[str, Rescore]:
    """Starts or continues the scores of a name. Returns the scores stored so far.

    Args:
        by: the resolved `rewards` and `gate` of the recipe that scores.

    Raises:
        StoreError: the name belongs to the scores of other rewards, or is not a file name.
    """
    path = _path(run, name)
    cut_torn_line(path)
    lines = read_lines(path)
    if len(lines) < 2:  # without any score the name is free for other rewards
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        append_line(path, {"by": dict(by)})
        return {}
    if lines[0].get("by") != msgspec.json.decode(msgspec.json.encode(dict(by))):
        raise StoreError(
            f"the run was re-scored as {name!r} by other rewards", place=str(path), remedy="give another --name"
        )
    return _scores(lines)


def add(run: Path, name: str, score: Rescore) -> None:
    """Stores one score."""
    append_line(_path(run, name), msgspec.to_builtins(score))


def load(run: Path, name: str) -> dict[str, Rescore]:
    """The scores of a name, by episode.

    Raises:
        StoreError: the run has no scores of this name.
    """
    if name not in names(run):
        known = names(run)
        remedy = nearest(name, known) if known else "agentrl rescore RUN --recipe R --name NAME makes one"
        raise StoreError(f"the run has no rewards {name!r}", place=str(run), remedy=remedy)
    return _scores(read_lines(_path(run, name)))


def of_episode(run: Path, episode_id: str) -> dict[str, Rescore]:
    """The later scores of one episode, by name."""
    found = {name: load(run, name).get(episode_id) for name in names(run)}
    return {name: score for name, score in found.items() if score is not None}


def rescored(episodes: Iterable[Episode], scores: Mapping[str, Rescore]) -> Iterator[Episode]:
    """The episodes with their new scores, without episodes that have none."""
    return (scores[episode.id].onto(episode) for episode in episodes if episode.id in scores)


def _scores(lines: list[dict[str, Any]]) -> dict[str, Rescore]:
    scores = (msgspec.convert(line, Rescore) for line in lines[1:])
    return {score.episode_id: score for score in scores}


def _path(run: Path, name: str) -> Path:
    if not name or name != Path(name).name or name.startswith("."):
        raise StoreError(f"{name!r} cannot be a file name", remedy="letters, digits, - and _")
    return run / "rewards" / f"{name}.jsonl"
