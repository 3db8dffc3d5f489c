"""Credit of each seat of a game that the policy plays with itself: `python -m benchmarks.seats [--games 256]`.

Random players play recipes/games/self-play.yaml, in groups of 4 games, and every estimator credits them. The figures
are mean advantages of the turns of a seat that won and of one that lost. Whoever won has to get more than whoever lost
at the same seat. An estimator that reads what exists for whole episodes only is refused, and BNPO for scores below 0.
What models would give (values, entropies) is drawn at random, alike for winners and losers. The last line is JSON.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Lines

from agentrl import rollout
from agentrl.config.credit import CreditSettings
from agentrl.estimators.registry import ESTIMATORS, EpisodeCredit, load_credit
from agentrl.estimators.table import OPTIONAL
from agentrl.types.episode import Episode
from agentrl.types.errors import CreditError
from agentrl.types.paths import data_path
from benchmarks.harness import Benchmark, Report, Row

GROUP = 4
OF_MODELS = ("behaviour_logprob", "ref_logprob", "entropy", "value", "process", "wrong")
"""Columns that a script does not give, and that say nothing of who won."""

Means = dict[str, dict[str, float]]
"""By seat and result."""


class Seated(Row):
    """Mean advantages by seat and result; none where the estimator is refused, and `refused` says why."""

    estimator: str
    means: dict[str, dict[str, float]]
    refused: str = ""


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Seated,
    kind="measure",
    beside="the result of the game",
    smoke={"games": 64},
)


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--games", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    return BENCHMARK.run(parser, measure)


def measure(options: argparse.Namespace, report: Report) -> None:
    report.plan(1 + len(ESTIMATORS.built_in))
    episodes = play(options.games, options.seed)
    report.done("games")
    columns = drawn(episodes, options.seed)
    for name in ESTIMATORS.built_in:
        row = credited(name, episodes, columns)
        report.row(row)
        report.done(name)
        for seat, by_result in row.means.items():
            if by_result["won"] <= by_result["lost"]:
                report.problem(f"{name}: {seat} gets {by_result['won']:.3f} if it wins, {by_result['lost']:.3f} if not")
    print_rows([row for row in report.rows if isinstance(row, Seated)])


def play(games: int, seed: int = 0, recipe: str | Path | None = None) -> list[Episode]:
    """Games of random players, in groups of 4. States are recorded."""
    with tempfile.TemporaryDirectory(prefix="agentrl-seats-") as folder:
        run = rollout(
            recipe or data_path("recipes", "games") / "self-play.yaml",
            games,
            overrides={"credit": "gigpo", "seed": seed},
            group_size=GROUP,
            script="random",
            out=Path(folder) / "run",
            reporters=(),
        )
        return [episode for episode in run.whole_episodes() if episode.scored]


def drawn(episodes: Sequence[Episode], seed: int) -> dict[str, dict[str, Any]]:
    """Columns that say nothing of who won, by name and id of the episode."""
    rng = np.random.default_rng(seed)
    found: dict[str, dict[str, Any]] = {name: {} for name in OF_MODELS}
    for episode in episodes:
        own = episode.own_turns
        sizes = {"turn": len(own), "token": sum(map(episode.trained, own))}
        for name, by_episode in found.items():
            value = 0.1 * rng.random(sizes[OPTIONAL[name][0]])
            by_episode[episode.id] = -value if name.endswith("logprob") else value
    return found


def credited(name: str, episodes: Sequence[Episode], columns: Mapping[str, Mapping[str, Any]]) -> Seated:
    """Mean advantages of an estimator, by seat and result."""
    assigner = load_credit(CreditSettings.model_validate({"use": name}))
    try:
        credits, _ = assigner.assign(episodes, columns)
    except CreditError as error:
        return Seated(estimator=name, means={}, refused=error.message)
    return Seated(estimator=name, means=by_seat(episodes, credits))


def by_seat(episodes: Sequence[Episode], credits: Sequence[EpisodeCredit]) -> Means:
    """The mean over the turns of each seat, of games that it won and of those that it lost. Draws are left out."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"won": [], "lost": []})
    for episode, credit in zip(episodes, credits, strict=True):
        scores = episode.info["scores"]
        for turn, advantage in zip(episode.turns, credit.turn_advantages, strict=True):
            seat = int(turn.agent.rpartition(" ")[2])
            if scores[seat]:
                found[f"seat {seat}"]["won" if scores[seat] > 0 else "lost"].append(advantage)
    return {
        seat: {result: float(np.mean(values)) if values else 0.0 for result, values in by_result.items()}
        for seat, by_result in sorted(found.items())
    }


def print_rows(rows: Sequence[Seated]) -> None:
    """A line for each estimator."""
    seats = [*next(row.means for row in rows if row.means)]
    lines = Lines("mean advantage", *(f"{seat} {result}" for seat in seats for result in ("won", "lost")), "", box=None)
    for row in rows:
        values = [f"{row.means[seat][result]:+.3f}" for seat in seats for result in ("won", "lost") if row.means]
        lines.add_row(row.estimator, *(values or [""] * 2 * len(seats)), row.refused and f"refused: {row.refused}")
    Console(width=200).print(lines)


if __name__ == "__main__":
    sys.exit(main())
