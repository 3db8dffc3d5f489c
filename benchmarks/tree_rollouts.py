"""Groups with a signal among trees and independent episodes: `python -m benchmarks.tree_rollouts [--seeds 3]`.

A policy is trained in the maze (benchmarks/maze), and stops at a few iterations on the way. There it plays groups of
independent episodes, and groups of trees (`tree_agent`) of the same tasks. A group of trees is cut where it has used as
many sampled tokens as the independent group of its task, so that it never has more of them. Reported is the share of
groups with a signal: their rewards differ, so that a group's baseline leaves something to learn from.

Before anything is counted, every fork is compared with its parent: the tokens of its prompt, the state that it was
restored to, and the state that its first own turn acts on must be equal, byte for byte. The same command again goes on
where it was stopped. The last line is JSON.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

import agentrl
from agentrl.config.recipe import Recipe
from agentrl.types.episode import Episode, in_order
from agentrl.types.trajectory import Trajectory
from benchmarks.harness import Benchmark, Report, Row
from benchmarks.trainings import TINY

HERE = Path(__file__).parent
SIZE = 8
"""Episodes of an independent group."""

TRAIN: dict[str, Any] = {"warm_start.steps": 300, "train.checkpoint_every": 100}  # and at the end
SAVES: dict[str, Any] = {"tools": ["./maze.py:SavedMaze"]}
TREES: dict[str, dict[str, Any]] = {
    f"{roots} trees, by {by}": {"roots": roots, "by": by} for roots, by in ((4, "surprise"), (2, "surprise"))
}
"""A group of trees: its episodes from the beginning, and how turns are chosen."""


class Groups(Row):
    """Means over the groups of an arm at a stop of the training; `signal`: share of groups that have one."""

    stop: str
    seed: int
    arm: str
    signal: float
    episodes: float
    tokens: float
    success: float


class More(Row):
    """Groups of trees with a signal, more than independent ones of the same tasks, over all seeds and stops."""

    arm: str
    more: float
    standard_error: float


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Groups | More,
    kind="curve",
    beside="groups of independent episodes",
    smoke={
        "seeds": 1, "groups": 2, "iterations": [1],
        "set": [*TINY, "agent.max_turns=6"],
    },
)  # fmt: skip


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--groups", type=int, default=32, help="groups of each kind, per seed and stop")
    parser.add_argument("--iterations", type=int, nargs="*", default=[1, 8], help="where the training stops")
    parser.add_argument("--out", type=Path, default=Path("runs/tree-rollouts"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the recipe")
    return BENCHMARK.run(parser, measure)


def measure(given: argparse.Namespace, report: Report) -> None:
    report.plan(given.seeds * len(given.iterations) * (2 + len(TREES)))
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in range(given.seeds):
        for stop, cell in measured(seed, given, report).items():
            found.setdefault(stop, []).append(cell)
            for arm, figures_ in cell.items():
                means = {name: value for name, value in figures_.items() if name != "signals"}
                report.row(Groups(stop=stop, seed=seed, arm=arm, **means))
    for name, seeds in found.items():
        Console(width=120).print(table(name, seeds))
    for arm, (gap, error) in differences(found).items():
        print(f"{arm}: {gap:+.3f} groups with a signal, standard error {error:.3f}")
        report.row(More(arm=arm, more=gap, standard_error=error))


def measured(seed: int, given: argparse.Namespace, report: Report) -> dict[str, dict[str, Any]]:
    """All arms at each stop of one seed."""
    found, out = {}, given.out / str(seed)
    for stop in given.iterations:
        checkpoint = out / "train" / "checkpoints" / f"it-{stop:05d}"
        if not checkpoint.exists():
            settings = {"seed": seed, "train.iterations": stop, **TRAIN}
            overrides = [*(f"{key}={value}" for key, value in settings.items()), *given.set]
            agentrl.train(HERE / "maze", overrides=overrides, out=out / "train", reporters=())
        report.done(f"seed {seed}: trained for {stop} iterations")
        recipe: Recipe = agentrl.open_run(out / "train").recipe
        recipe = recipe.model_copy(update={"model": recipe.required_model.at(checkpoint)})
        found[f"after {stop} iterations"] = arms(recipe, given.groups, out / str(stop), report)
    return found


def arms(recipe: Recipe, count: int, out: Path, report: Report) -> dict[str, Any]:
    """Independent groups, and trees at no more sampled tokens."""
    alone = played(recipe, count * SIZE, SIZE, out / "independent", {})
    report.done(f"{count} independent groups")
    bound = {name: sum(each.sampled_tokens for each in group) for name, group in alone.items()}
    most = statistics.fmean(bound.values())
    found = {"independent": figures(alone.values())}
    for name, arm in TREES.items():
        roots = arm["roots"]
        tree = {"use": "tree_agent", "by": arm["by"], "forks": 8 * SIZE, "tokens": int(1.4 * most / roots)}
        agent = {f"agent.{key}": value for key, value in tree.items()}
        grown = played(recipe, count * roots, roots, out / name.replace(" ", "-"), {**agent, **SAVES})
        for group in grown.values():
            must_equal_their_parents(group)
        found[name] = figures([cut(group, bound[id]) for id, group in grown.items()])
        report.done(name)
    return found


def differences(found: dict[str, list[dict[str, Any]]]) -> dict[str, tuple[float, float]]:
    """By kind of tree: how much larger the share with a signal is than that of independent groups of the same tasks.

    Over all seeds and stops, with its standard error.
    """
    cells = [cell for seeds in found.values() for cell in seeds]
    result = {}
    for arm in TREES:
        pairs = [zip(cell[arm]["signals"], cell["independent"]["signals"], strict=True) for cell in cells]
        gaps = [int(tree) - int(alone) for pair in pairs for tree, alone in pair]
        result[arm] = statistics.fmean(gaps), statistics.stdev(gaps) / len(gaps) ** 0.5
    return result


def played(recipe: Recipe, n: int, size: int, out: Path, overrides: dict[str, Any]) -> dict[str, list[Episode]]:
    """Groups of rollouts by id, their members in order."""
    run = agentrl.rollout(recipe, n, group_size=size, overrides=overrides, out=out, reporters=())
    groups: dict[str, list[Episode]] = {}
    for episode in run.whole_episodes():
        groups.setdefault(episode.group_id, []).append(episode)
    run.close()
    return {name: in_order(groups[name]) for name in sorted(groups)}


def cut(group: Sequence[Episode], tokens: int) -> list[Episode]:
    """The roots, and then forks of one root after the other's, as long as they fit."""
    kept, used = [], 0
    for episode in sorted(group, key=lambda each: number_of(each)[::-1]):
        used += episode.sampled_tokens
        if episode.forked and used > tokens:
            break
        kept.append(episode)
    return kept


def number_of(episode: Episode) -> tuple[int, int]:
    """(root, fork) of an episode's id; fork 0 is the root itself."""
    root, _, fork = episode.id.rpartition("#")[2].partition(".")
    return int(root), int(fork or 0)


def must_equal_their_parents(group: Iterable[Episode]) -> None:
    """Whether every fork begins where its parent stood, byte for byte."""
    known = {episode.id: episode for episode in group}
    for fork in known.values():
        if fork.parent is None:
            continue
        parent, at = known[fork.parent.episode], fork.parent.turn
        mine, its = fork.turns[at], parent.turns[at]
        prompts = [Trajectory(each.nodes).before(each.turns[at].node) for each in (fork, parent)]
        states = [msgspec.json.encode((turn.saved, turn.state)) for turn in (mine, its)]
        assert prompts[0] == prompts[1], f"{fork.id}: another prompt than {parent.id}"
        assert states[0] == states[1], f"{fork.id}: {states[0]!r}, and {parent.id} had {states[1]!r}"


def figures(groups: Iterable[Sequence[Episode]]) -> dict[str, Any]:
    """Means over groups, and which of them have a signal."""
    played = [[(each.reward or 0.0, each.sampled_tokens) for each in group] for group in groups]
    return {
        "signal": statistics.fmean(len({reward for reward, _ in group}) > 1 for group in played),
        "signals": [len({reward for reward, _ in group}) > 1 for group in played],
        "episodes": statistics.fmean(len(group) for group in played),
        "tokens": statistics.fmean(sum(tokens for _, tokens in group) for group in played),
        "success": statistics.fmean(statistics.fmean(reward for reward, _ in group) for group in played),
    }


def table(name: str, seeds: Sequence[dict[str, Any]]) -> Table:
    """Means over seeds, with the range of the share that has a signal."""
    out = Table("groups of", "with a signal", "episodes", "sampled tokens", "success", title=f"maze, {name}")
    for arm in seeds[0]:
        signal, *others = ([each[arm][key] for each in seeds] for key in ("signal", "episodes", "tokens", "success"))
        means = [f"{statistics.fmean(values):.{digits}f}" for values, digits in zip(others, (1, 0, 2), strict=True)]
        share = f"{statistics.fmean(signal):.2f} ({min(signal):.2f} to {max(signal):.2f})"
        out.add_row(arm if "tree" in arm else f"{SIZE} {arm}", share, *means)
    return out


if __name__ == "__main__":
    sys.exit(main())
