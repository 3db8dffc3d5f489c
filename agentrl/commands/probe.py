"""`agentrl probe`: a line per turn of an episode, or a line per estimator of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from agentrl.api.forks.agreement import Agreement
from agentrl.api.forks.probe import Probe
from agentrl.api.forks.probe import probe as values_of_turns
from agentrl.api.forks.truth import Cost, CreditTruth, credit_truth
from agentrl.commands.output import write, write_json
from agentrl.types.errors import CreditError
from agentrl.view.show import signed_bar


def probe(
    run: Path,
    episode: str | None,
    n: int,
    *,
    estimator: str | None,
    episodes: int,
    plot: Path | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Measures the turns of an episode, or, without one, estimators over several episodes; prints the result.

    Args:
        estimator: a name; without an episode, names separated by commas.
        how: as for `fork`.

    Raises:
        CreditError: several estimators of one episode, or a plot without an episode.
    """
    names = [] if estimator is None else [name.strip() for name in estimator.split(",")]
    if episode is not None and len(names) > 1:
        raise CreditError(
            "the turns of one episode are too few to compare estimators",
            place="--estimator",
            remedy=f"leave out the episode: agentrl probe RUN --estimator {','.join(names)}",
        )
    if episode is None and plot is not None:
        raise CreditError("it draws the values of one episode", place="--plot", remedy="name the episode")
    if episode is not None:
        one = values_of_turns(run, episode, n, estimator=estimator, plot=plot, **how)
        write_json(one) if as_json else print_probe(one)
    else:
        found = credit_truth(run, n, estimators=names, episodes=episodes, **how)
        write_json(found.as_dict()) if as_json else print_truth(found)


def print_probe(result: Probe) -> None:
    """Prints the value before each turn, its change by the turn, and the turn's credit."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("turn", "value before", "± se", "worth", "± se", result.estimator or "(no credit)", "did"):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "did" else "right")
    scale = max((abs(turn.worth) for turn in result.turns), default=0.0)
    most = max((abs(turn.credit or 0.0) for turn in result.turns), default=0.0)
    for turn in result.turns:
        credit = "-" if turn.credit is None else signed_bar(turn.credit, most)
        table.add_row(
            str(turn.turn),
            f"{turn.value:.3f}",
            f"{turn.value_error:.3f}",
            signed_bar(turn.worth, scale),
            f"{turn.worth_error:.3f}",
            credit,
            Text(turn.did[:48]),
        )
    write(table)
    print(f"outcome of the episode: {result.reward:g}")
    print(f"{result.n} episodes resumed before each turn are in {result.run}")
    if result.no_credit:
        print(f"no credit: {result.no_credit}")


def print_truth(result: CreditTruth) -> None:
    """Prints a line per estimator, the best first, with its agreement and its cost."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("credit", "Spearman", "95 %", "inner turns", "signs", "tokens a turn", "CPU ms / 1,000 turns"):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "credit" else "right")
    for name, agreement in result.estimators.items():
        own = " (as in the run)" if name == result.own else ""
        table.add_row(f"{name}{own}", *cells(agreement, result.costs[name]))
    write(table)
    best, told = next(iter(result.estimators)), [name for name, each in result.estimators.items() if not each.behind]
    print(
        f"{result.turns} turns of {result.episodes} episodes, {result.n} resumed before each ({result.tokens:,} tokens "
        f"sampled); ceiling {result.ceiling:.2f}"
    )
    others = [name for name in told if name != best]
    print(f"truest here: {best}" + (f"; not told apart from {', '.join(others)}" if others else ""))
    if others:
        print("  -> more episodes (--episodes) and more of each turn (--n) tell more apart")
    for name, why in result.left_out.items():
        print(f"left out: {name}: {why}")


def cells(agreement: Agreement, cost: Cost) -> list[str]:
    """Formats an estimator's agreement and cost."""
    return [
        f"{agreement.spearman:.2f}",
        "-" if agreement.interval is None else "{:.2f} to {:.2f}".format(*agreement.interval),
        "-" if agreement.inner is None else f"{agreement.inner:.2f}",
        "-" if agreement.sign is None else f"{agreement.sign:.2f}",
        "unknown" if cost.tokens is None else f"{cost.tokens:.3g}",
        f"{cost.cpu_ms:.2g}",
    ]
