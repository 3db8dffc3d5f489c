"""`agentrl credit`: the credit of a stored run, a line per turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.api.credit import CreditedRun
from agentrl.types.episode import Turn
from agentrl.types.figures.of_episodes import earned
from agentrl.view.show import signed_bar
from agentrl.view.terminal import Visible


def print_credit(result: CreditedRun, limit: int) -> None:
    """Prints a line per turn with its credit, the parts of the credit and its calls; and the groups without signal."""
    chosen = result.credits
    name, settings = result.credit.estimator.name, result.credit.settings.model_dump(mode="json")
    print(f"{name}  {'  '.join(f'{key}={value}' for key, value in settings.items())}")
    parts = list(chosen[0].parts) if len(chosen[0].parts) > 1 else []
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    chosen = sorted(result.credits, key=lambda credit: not any(credit.turn_advantages))  # first episodes with signal
    for heading in ("episode", "reward", "turn", "role", "credit", *parts, "did"):
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("reward", "turn", *parts) else "left")
    scale = max((abs(value) for credit in chosen for value in credit.turn_advantages), default=0.0)
    for credit in chosen[:limit]:
        record = result.episodes[credit.episode_id]
        own = record.own_turns
        for turn in own:
            value, first = credit.turn_advantages[turn.index], turn.index == own[0].index
            table.add_row(
                Text(credit.episode_id if first else ""),
                f"{earned(record):.3g}" if first else "",
                str(turn.index),
                Text(turn.agent),
                signed_bar(value, scale),
                *(f"{credit.parts[part][turn.index]:+.3f}" for part in parts),
                Text(_did(turn)[:48]),
            )
    console = _wide()
    console.print(Visible(table))
    if len(chosen) > limit:
        print(f"({limit} of {len(chosen)} episodes; --limit shows more, --json all)")
    if result.credit.needs_members:
        # Evaluations run every task once and are not trained on.
        _print_groups_without_signal([b for b in result.batches if b["split"] != "eval"])


def print_side_by_side(results: Sequence[CreditedRun], limit: int) -> None:
    """Prints a line per turn of the policy, with a column for the credit of each estimator."""
    names = [result.credit.estimator.name for result in results]
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("episode", "reward", "turn", "role", *names, "did"):
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("reward", "turn", *names) else "left")
    given = [{credit.episode_id: credit.turn_advantages for credit in result.credits} for result in results]
    silent = {id: not any(any(each[id]) for each in given) for id in given[0]}
    ids = sorted(given[0], key=silent.__getitem__)  # first episodes with signal
    for id in ids[:limit]:
        record = results[0].episodes[id]
        own = record.own_turns
        for turn in own:
            first = turn.index == own[0].index
            table.add_row(
                Text(id if first else ""),
                f"{earned(record):.3g}" if first else "",
                str(turn.index),
                Text(turn.agent),
                *(f"{each[id][turn.index]:+.3f}" for each in given),
                Text(_did(turn)[:48]),
            )
    _wide().print(Visible(table))
    if len(ids) > limit:
        print(f"({limit} of {len(ids)} episodes; --limit shows more, --json all)")


def _did(turn: Turn) -> str:
    """Formats the calls of a turn, or else its text, in one line."""
    calls = [
        f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"
        if call.outcome != "malformed"
        else "(malformed)"
        for call in turn.calls
    ]
    return " ".join((" ".join(calls) or turn.text).split())


def _print_groups_without_signal(batches: list[dict[str, Any]]) -> None:
    """Prints the number of groups without signal."""
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
    """Returns a console of at least 160 columns without a terminal: rich's 80 would fold every line."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 160)
    return console
