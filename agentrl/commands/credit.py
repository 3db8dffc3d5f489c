"""`agentrl credit`: the credit of a stored run, a line per turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.api.credit import CreditedRun
from agentrl.types.episode import Turn
from agentrl.types.figures.of_episodes import earned
from agentrl.view.show import signed_bar
from agentrl.view.terminal import Visible, visible


def print_credit(results: Sequence[CreditedRun], limit: int) -> None:
    """Prints a line per turn with its calls, groups with signal first; and the number of groups without signal.

    Of one estimator: the credit as a bar, and its parts. Of several: a column for each.

    Args:
        limit: maximum number of episodes.
    """
    columns = _with_parts(results[0]) if len(results) == 1 else _one_each(results)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("episode", "reward", "turn", "role", *columns, "did"):
        left = heading in ("episode", "role", "credit", "did")
        table.add_column(heading, no_wrap=True, justify="left" if left else "right")
    ids, evaluated = _informative_first(results)
    for id in ids[:limit]:
        record = results[0].episodes[id]
        for turn in (own := record.own_turns):
            first = turn.index == own[0].index
            table.add_row(
                Text(id if first else ""),
                f"{earned(record):.3g}" if first else "",
                str(turn.index),
                Text(turn.agent),
                *(cell(id, turn.index) for cell in columns.values()),
                Text(_did(turn)[:48]),
            )
    if ids[:limit]:
        _wide().print(Visible(table))
    if len(ids) > limit:
        print(f"({limit} of {len(ids)} episodes; --limit shows more, --json all)")
    if evaluated:
        print(f"({evaluated} episodes of evaluations, which are not trained on, are not listed; --json has them)")
    for result in results:
        _print_extremes(result)
    _print_shared_states([b for b in results[0].batches if b["split"] != "eval"])
    if (comparing := next((each for each in results if each.credit.needs_members), None)) is not None:
        _print_groups_without_signal([b for b in comparing.batches if b["split"] != "eval"])


Cell = Callable[[str, int], str | Text]
"""Formats the value of an estimator for a turn of an episode."""


def _with_parts(result: CreditedRun) -> dict[str, Cell]:
    """Returns the columns of one estimator: its credit, and the parts of it. Prints its name and settings."""
    name, settings = result.credit.estimator.name, result.credit.settings.model_dump(mode="json")
    print(f"{name}  {'  '.join(f'{key}={value}' for key, value in settings.items())}")
    of = {credit.episode_id: credit for credit in result.credits}
    parts = list(result.credits[0].parts)
    scale = max((abs(value) for credit in result.credits for value in credit.turn_advantages), default=0.0)
    columns: dict[str, Cell] = {"credit": lambda id, turn: signed_bar(of[id].turn_advantages[turn], scale)}
    for part in parts if len(parts) > 1 else []:
        columns[part] = lambda id, turn, part=part: f"{of[id].parts[part][turn]:+.3f}"  # type: ignore[misc]
    return columns


def _one_each(results: Sequence[CreditedRun]) -> dict[str, Cell]:
    """Returns a column for each of several estimators."""
    given = {
        result.credit.estimator.name: {credit.episode_id: credit.turn_advantages for credit in result.credits}
        for result in results
    }
    return {name: lambda id, turn, of=of: f"{of[id][turn]:+.3f}" for name, of in given.items()}  # type: ignore[misc]


def _informative_first(results: Sequence[CreditedRun]) -> tuple[list[str], int]:
    """Returns the ids of the credited episodes, and the number of those of evaluations, which are left out.

    First come the groups in which an estimator gives some turn credit. Of a run with evaluations only, they are listed.
    """
    telling = {
        results[0].episodes[credit.episode_id].group_id
        for result in results
        for credit in result.credits
        if any(credit.turn_advantages)
    }
    credited = [credit.episode_id for credit in results[0].credits]
    ids = [id for id in credited if results[0].episodes[id].split != "eval"] or credited
    return sorted(ids, key=lambda id: results[0].episodes[id].group_id not in telling), len(credited) - len(ids)


def _did(turn: Turn) -> str:
    """Formats the calls of a turn, or else its text, in one line."""
    calls = [
        f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"
        if call.outcome != "malformed"
        else "(malformed)"
        for call in turn.calls
    ]
    return " ".join((" ".join(calls) or turn.text).split())


def _print_extremes(result: CreditedRun) -> None:
    """Prints the turns with the highest and the lowest credit, evaluations aside."""
    turns = [
        (credit.turn_advantages[turn.index], credit.episode_id, turn.index)
        for credit in result.credits
        if (episode := result.episodes[credit.episode_id]).split != "eval"
        for turn in episode.own_turns
    ]
    if not turns:
        return
    for what, (value, id, turn) in (("highest", max(turns)), ("lowest", min(turns))):
        did = _did(result.episodes[id].turns[turn])[:48]
        print(visible(f"{result.credit.estimator.name}, {what} credit: {value:+.3f}  {id} turn {turn}  {did}"))


def _print_groups_without_signal(batches: list[dict[str, Any]]) -> None:
    """Prints the number of groups without signal."""
    groups = sum(round(batch["groups"]) for batch in batches)
    equal, single = (
        sum(round(b[f"{kind}_groups"] * b["groups"]) for b in batches) for kind in ("zero_variance", "single")
    )
    if equal:
        print(f"zero-variance groups: {equal} of {groups}; equal rewards, so only credit of turns can differ")
    if single:
        print(
            f"groups of one episode: {single} of {groups}; it has nothing to be compared with\n"
            "  -> agentrl rollout --group-size 4, or train.group_size, plays several episodes of each task"
        )


def _print_shared_states(batches: list[dict[str, Any]]) -> None:
    """Prints the range over batches of the share of turns whose state another episode of the task met."""
    shares = [batch["shared_states"] for batch in batches if "shared_states" in batch]
    if not shares:
        return
    least, most = min(shares), max(shares)
    told = f"{most:.0%}" if least == most else f"{least:.0%} to {most:.0%}"
    print(f"states: {told} of the turns acted on a state that another episode of the task met")
    if not most:
        print(
            "  -> no two episodes can be compared by state: a coarser state_key(), agent.state: tools, or an estimator "
            "without states"
        )


def _wide() -> Console:
    """Returns a console of at least 160 columns without a terminal: rich's 80 would fold every line."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 160)
    return console
