"""Credit of each estimator beside what turns were worth: `python -m benchmarks.credit_truth [--seeds 3] [--n 8]`.

Two worlds: the maze (benchmarks/maze) and a kitchen in words (benchmarks/kitchen). In each a policy is trained for a
few iterations and plays groups of episodes. Every turn of some of them is then probed: what it was worth is the mean
reward of `n` episodes that go on after it, minus that of `n` that go on before it. Each estimator credits the same
groups. Reported are the rank correlation (Spearman) of credit and worth over the turns, and how often their signs agree
where the worth is more than its standard error. `ceiling` is the correlation that a perfect estimator could reach: half
of the resumed episodes against the other half, extended to all of them (Spearman-Brown). The same command again goes on
where it was stopped. The last line is JSON.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import agentrl
from agentrl.api.forks.probe import TurnValue, values_of
from agentrl.api.run import Run
from agentrl.api.run_dirs import kept_checkpoint
from agentrl.config.credit import CreditSettings, Hindsight, InformationGain
from agentrl.config.recipe import Recipe
from agentrl.estimators.registry import load_credit
from agentrl.types.episode import Episode
from benchmarks.harness import Benchmark, Report, Row
from benchmarks.trainings import TINY

HERE = Path(__file__).parent
GAIN, HINDSIGHT = InformationGain(answer="goal", lead=""), Hindsight(outcome_tokens=24)
WORLDS: dict[str, dict[str, Any]] = {
    "maze": {"warm_start.steps": 300, "train.iterations": 10, "train.checkpoint_every": 10},
    "kitchen": {},
}
PLAIN = [
    "grpo", "dr_grpo", "rloo", "opo", "reinforce_pp", "reinforce_pp_baseline", "gpg", "bnpo", "unlikeliness",
    "returns", "gigpo", "gagpo", "step_grpo", "salt", "treepo", "tempo", "mt_grpo", "igpo", "hcapo",
]  # fmt: skip
ESTIMATORS: dict[str, dict[str, Any]] = {
    **{name: {"use": name} for name in PLAIN},
    "gagpo, episode 1": {"use": "gagpo", "episode": 1.0},
    "gagpo, decay 0.5": {"use": "gagpo", "decay": 0.5},
}
"""Credit by the name in the table. Credit that remembers begins with what the training met."""

Probed = dict[tuple[str, int], tuple[TurnValue, float, float]]
"""By episode and turn: its worth, and that of either half of the resumed episodes."""


class Agreement(Row):
    """An estimator's credit beside the worth of turns: rank correlation, and the share of equal signs (None: of no turn
    the worth is sure)."""

    spearman: float
    sign: float | None


class World(Row):
    """One world and seed. `ceiling` is the correlation that a perfect estimator could reach."""

    world: str
    seed: int
    success: float
    turns: int
    ceiling: float
    estimators: dict[str, Agreement]


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=World,
    kind="curve",
    beside="episodes resumed before and after each turn",
    smoke={
        "seeds": 1, "n": 2, "episodes": 2, "worlds": ["kitchen"], "played": 8,
        "set": [*TINY, "train.iterations=1", "train.checkpoint_every=1"],
    },
)  # fmt: skip


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n", type=int, default=8, help="episodes resumed before each turn")
    parser.add_argument("--episodes", type=int, default=16, help="episodes whose turns are probed, per seed and world")
    parser.add_argument("--out", type=Path, default=Path("runs/credit-truth"))
    parser.add_argument("--worlds", nargs="*", default=[*WORLDS], choices=[*WORLDS], metavar="WORLD")
    parser.add_argument("--played", type=int, default=64, help="episodes that are played and credited")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the recipes")
    return BENCHMARK.run(parser, measure)


def measure(given: argparse.Namespace, report: Report) -> None:
    report.plan(len(given.worlds) * given.seeds * (2 + given.episodes))
    found: dict[str, list[World]] = {}
    for world in given.worlds:
        for seed in range(given.seeds):
            found.setdefault(world, []).append(measured(world, seed, given, report))
    for world, seeds in found.items():
        Console(width=120).print(table(world, seeds))
        for each in seeds:
            report.row(each)


def measured(world: str, seed: int, given: argparse.Namespace, report: Report) -> World:
    """One world and seed: every estimator against the worth of the turns."""
    out = given.out / f"{world}-{seed}"
    overrides = [f"seed={seed}", *(f"{key}={value}" for key, value in WORLDS[world].items()), *given.set]
    trained = agentrl.train(HERE / world, overrides=overrides, out=out / "train", reporters=())
    report.done(f"{world}, seed {seed}: trained")
    assert trained is not None
    recipe: Recipe = trained.recipe
    recipe = recipe.with_model(recipe.required_model.at(kept_checkpoint(trained.path)))
    recipe = recipe.with_sections(information_gain=GAIN, hindsight=HINDSIGHT)
    played = agentrl.rollout(recipe, given.played, group_size=min(8, given.played), out=out / "played", reporters=())
    report.done(f"{world}, seed {seed}: played")
    rewards = [row.reward or 0.0 for row in played.episodes]
    probed = probe_all(played, given.n, given.episodes, out, report)
    first, second = (np.array([each[k] for each in probed.values()]) for k in (1, 2))
    half = spearman(first, second)
    found = World(
        world=world,
        seed=seed,
        success=statistics.fmean(rewards),
        turns=len(probed),
        ceiling=math.sqrt(2 * half / (1 + half)) if half > 0 else 0.0,
        estimators={name: agreement(played, name, probed, trained) for name in ESTIMATORS},
    )
    report.say(f"{world}, seed {seed}: success {found.success:.2f}, {len(probed)} turns")
    return found


def probe_all(played: Run, n: int, count: int, out: Path, report: Report | None = None) -> Probed:
    """Resumes some episodes before every turn: the first two of each group, groups with both rewards first."""
    groups: dict[str, list[Episode]] = {}
    for episode in sorted(played.whole_episodes(), key=lambda each: each.id):
        groups.setdefault(episode.group_id, []).append(episode)
    mixed = sorted(groups.values(), key=lambda group: len({each.reward for each in group}) < 2)
    chosen = [episode for group in mixed for episode in group[:2]][:count]
    probed: Probed = {}
    for k, episode in enumerate(chosen):
        run = agentrl.fork(played, episode.id, range(len(episode.turns)), n, out=out / f"probe-{k}", reporters=())
        rewards: dict[int, list[float]] = {turn.index: [] for turn in episode.turns}
        for each in sorted(run.whole_episodes(), key=lambda each: each.id):
            if each.parent is not None and each.reward is not None:
                rewards[each.parent.turn].append(each.reward)
        parts = [rewards, *({turn: found[half::2] for turn, found in rewards.items()} for half in (0, 1))]
        whole, first, second = (values_of(episode, part) for part in parts)
        for a, b, c in zip(whole, first, second, strict=True):
            probed[episode.id, a.turn] = a, b.worth, c.worth
        run.close()
        if report:
            report.done(f"{episode.id}: probed")
    return probed


def agreement(played: Run, name: str, probed: Probed, trained: Run | None = None) -> Agreement:
    """Rank correlation of an estimator's credit with the worth of turns, and the share of equal signs.

    Args:
        trained: the training of the policy that played; the states that it met are remembered.
    """
    credit = credit_of(played, name, trained)
    given = np.array([credit[episode][turn] for episode, turn in probed])
    worth = np.array([value.worth for value, _, _ in probed.values()])
    error = np.array([value.worth_error for value, _, _ in probed.values()])
    sure = (np.abs(worth) > error) & (worth != 0)
    agree = np.sign(given[sure]) == np.sign(worth[sure])
    return Agreement(spearman=spearman(given, worth), sign=float(agree.mean()) if sure.any() else None)


def credit_of(played: Run, name: str, trained: Run | None) -> dict[str, list[float]]:
    """The advantages of the turns, by episode."""
    credit = load_credit(CreditSettings.model_validate(ESTIMATORS[name]))
    memory, iterations = credit.memory(), dict[int, list[Episode]]()
    for episode in () if memory is None or trained is None else trained.whole_episodes():
        if episode.split == "train":
            iterations.setdefault(episode.iteration, []).append(episode)
    for iteration in sorted(iterations):
        credit.assign(iterations[iteration], memory=memory, iteration=iteration)
    credits, _ = credit.assign(played.whole_episodes(), memory=memory, iteration=max(iterations, default=-1) + 1)
    return {each.episode_id: each.turn_advantages for each in credits}


def spearman(a: Any, b: Any) -> float:
    """Rank correlation; equal values share their mean rank. 0 if one of them is constant."""
    x, y = ranks(a), ranks(b)
    if not x.std() or not y.std():
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])


def ranks(values: Any) -> Any:
    """Ranks of values; equal ones share their mean rank."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def table(world: str, seeds: Sequence[World]) -> Table:
    """Mean over seeds, with the range; the best rank correlation first."""
    turns, success = sum(each.turns for each in seeds), [each.success for each in seeds]
    ceiling = statistics.fmean(each.ceiling for each in seeds)
    out = Table(
        "credit", "Spearman", "sign agreement",
        title=f"{world}: {turns} turns, success {min(success):.2f} to {max(success):.2f}, ceiling {ceiling:.2f}",
    )  # fmt: skip
    columns = {name: [each.estimators[name] for each in seeds] for name in ESTIMATORS}
    for name, found in sorted(columns.items(), key=lambda item: -statistics.fmean(each.spearman for each in item[1])):
        signs = [each.sign for each in found if each.sign is not None]
        out.add_row(name, spread([each.spearman for each in found]), spread(signs) if signs else "-")
    return out


def spread(values: Sequence[float]) -> str:
    """Mean (least to most)."""
    return f"{statistics.fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    sys.exit(main())
