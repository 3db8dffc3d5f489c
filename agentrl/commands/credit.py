"""`agentrl credit`: credits a stored run again, and lists the estimators."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.config.credit import CreditSettings
from agentrl.config.loader import settings_of
from agentrl.config.recipe import recipe_from_run
from agentrl.credit.registry import CreditAssigner, EpisodeCredit, load_credit
from agentrl.store.rescored import load, rescored
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode, Turn
from agentrl.types.errors import StoreError
from agentrl.view.show import signed_bar
from agentrl.view.terminal import Visible


@dataclass(frozen=True)
class Recredit:
    """What an estimator says about a stored run.

    Attributes:
        episodes: the credited ones, by id.
        batches: metrics of each batch that was credited together: one iteration of one split.
    """

    credit: CreditAssigner
    episodes: dict[str, Episode]
    credits: list[EpisodeCredit]
    batches: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "estimator": self.credit.estimator.name,
            "settings": self.credit.settings.model_dump(mode="json"),
            "batches": self.batches,
            "episodes": [msgspec.to_builtins(credit) for credit in self.credits],
        }


def recredit(
    path: Path, estimator: str | None, settings: list[str], *, rewards: str | None = None, save: bool = False
) -> Recredit:
    """Credits the scored episodes of a run, one iteration of one split at a time, as training does.

    Args:
        estimator: a name, or code relative to the folder of the run's recipe, as in the recipe; default: the run's own,
            whose settings `settings` then change.
        rewards: use the scores that `agentrl reward --name` gave instead of the recorded ones.
        save: store the credit; it takes the place of earlier credit wherever a run is looked at.

    Raises:
        CreditError: no such estimator or setting, or the episodes lack what it needs.
        StoreError: there is no such run, or nothing in it was scored.
    """
    with RunDir.open(path) if save else RunDir.read(path) as run:
        credit = _chosen(run, estimator, settings_of(settings))
        episodes = [episode for episode in run.episodes() if episode.split != "demo"]
        if rewards is not None:
            episodes = list(rescored(episodes, load(path, rewards)))
        scored = sorted(
            (e for e in episodes if e.scored), key=lambda e: (e.split == "eval", e.split, e.iteration, e.id)
        )
        if not scored:
            raise StoreError("holds no scored episode", place=str(path), remedy="agentrl show RUN lists what it holds")
        credits: list[EpisodeCredit] = []
        batches = []
        note = "agentrl credit --save" + (f", rewards {rewards!r}" if rewards is not None else "")
        for (split, iteration), members in itertools.groupby(scored, key=lambda e: (e.split, e.iteration)):
            given, metrics = credit.assign(list(members))
            credits += given
            batches.append({"split": split, "iteration": iteration, **metrics})
            for one in given if save else ():
                run.add_credit(
                    one.episode_id, one.estimator, one.turn_advantages, one.parts, iteration=iteration, note=note
                )
    return Recredit(credit, {episode.id: episode for episode in scored}, credits, batches)


def _chosen(run: RunDir, estimator: str | None, settings: dict[str, Any]) -> CreditAssigner:
    """The estimator that was asked for, or that of the run."""
    if estimator is not None:
        return load_credit(CreditSettings(use=estimator, **settings), Path(run.info.get("base", "")))
    if "recipe" not in run.info:
        raise StoreError("names no recipe", place=str(run.path), remedy="say which: --estimator NAME")
    recipe = recipe_from_run(run.info)
    return load_credit(CreditSettings(**{**recipe.credit.model_dump(), **settings}), recipe.base)


def print_credit(result: Recredit, episode: str | None, limit: int) -> None:
    """Prints a line per turn: its credit, what that is made of, and what the turn did; and which groups teach nothing.

    Raises:
        StoreError: no credited episode is called `episode`.
    """
    chosen = [credit for credit in result.credits if episode is None or episode in credit.episode_id]
    if not chosen:
        raise StoreError(f"no credited episode has {episode!r} in its id")
    name, settings = result.credit.estimator.name, result.credit.settings.model_dump(mode="json")
    print(f"{name}  {'  '.join(f'{key}={value}' for key, value in settings.items())}")
    parts = list(chosen[0].parts) if len(chosen[0].parts) > 1 else []
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("episode", "reward", "turn", "credit", *parts, "did"):
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("reward", "turn", *parts) else "left")
    scale = max((abs(value) for credit in chosen for value in credit.turn_advantages), default=0.0)
    for credit in chosen[:limit]:
        record = result.episodes[credit.episode_id]
        for turn, value in zip(record.turns, credit.turn_advantages, strict=True):
            first = turn.index == 0
            table.add_row(
                Text(credit.episode_id if first else ""),
                f"{record.reward:.3g}" if first else "",
                str(turn.index),
                signed_bar(value, scale),
                *(f"{credit.parts[part][turn.index]:+.3f}" for part in parts),
                Text(_did(turn)[:48]),
            )
    console = _wide()
    console.print(Visible(table))
    if len(chosen) > limit:
        print(f"({limit} of {len(chosen)} episodes; --limit shows more, --json all)")
    if result.credit.needs_members:
        # Evaluations try every task once: nobody learns from them.
        _print_groups_without_signal([b for b in result.batches if b["split"] != "eval"])


def _did(turn: Turn) -> str:
    """The calls of a turn, else what it said, in a line."""
    calls = [
        f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"
        if call.outcome != "malformed"
        else "(malformed)"
        for call in turn.calls
    ]
    return " ".join((" ".join(calls) or turn.text).split())


def _print_groups_without_signal(batches: list[dict[str, Any]]) -> None:
    """Prints how many groups have nothing to compare."""
    groups = sum(round(batch["groups"]) for batch in batches)
    equal, single = (
        sum(round(b[f"{kind}_groups"] * b["groups"]) for b in batches) for kind in ("zero_variance", "single")
    )
    if equal:
        print(
            f"zero-variance groups: {equal} of {groups}; their episodes have equal rewards, so none gets an advantage"
        )
    if single:
        print(
            f"groups of one episode: {single} of {groups}; it has nothing to be compared with\n"
            "  -> agentrl rollout --group-size 4, or train.group_size, plays several episodes of each task"
        )


def _wide() -> Console:
    """Where there is no terminal rich takes 80 columns, which would fold every line."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 160)
    return console
