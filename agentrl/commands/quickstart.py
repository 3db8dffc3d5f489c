"""`agentrl quickstart`: prints a training of the shipped recipe, or the comparison of credit estimators on it."""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agentrl.api import quickstart as api
from agentrl.api.run_dirs import require_whole
from agentrl.commands.output import progress, write_json
from agentrl.store.reader import RunReader
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode
from agentrl.types.figures.of_episodes import earned, turns_of

INTRO = """[b]agentrl quickstart[/b]: a tiny policy, built on the spot, learns to find a flag in mazes of real folders.
A real shell in a sandbox without network runs its tool calls ([b]cd[/b], [b]look[/b]); the reward is 1 in the flag's
room, else 0. Demonstrations teach it the format only (almost all their moves are random); the way it learns by
reinforcement, with GiGPO credit per turn. It learns a FIXED set of eight mazes: learning, not generalisation."""


def quickstart(seed: int, out: Path | None, overrides: list[str], *, as_json: bool = False) -> None:
    """Trains the shipped recipe and prints the result. An interrupted quickstart continues."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    console.print(INTRO)
    started = time.perf_counter()
    path = api.quickstart(seed, out, overrides)
    with RunDir.read(path) as run:
        if (pair := api.before_and_after(run)) is not None:
            panels = [_panel(run, episode, when) for episode, when in zip(pair, ("before", "after"), strict=True)]
            console.print()
            console.print(Columns(panels, padding=(0, 2)))
        evaluations = [line for line in run.metrics() if line["split"] == "eval"]
    before, after = evaluations[0], evaluations[-1]
    console.print(
        f"\n[b]Solved at temperature 1, fresh samples: {_formatted(before, 'success', '.0%')} -> "
        f"{_formatted(after, 'success', '.0%')}[/b], turns {_formatted(before, 'turns', '.1f')} -> "
        f"{_formatted(after, 'turns', '.1f')}, {time.perf_counter() - started:.0f} s. Curve: {path / 'curve.png'}"
    )
    if as_json:
        write_json({"run": path, "before": before, "after": after})
        return require_whole(path)
    agentrl = "agentrl" if shutil.which("agentrl") else sys.argv[0]  # of an environment that is not activated
    following = {
        f"view {path}": "in a browser: curves, episodes, credit turn by turn",
        f"credit {path} --limit 0": "the turns with the highest and the lowest credit; --limit 5 lists turns",
        f"eval {path} --n 256": "measure the newest checkpoint",
        "recipe show quickstart": "the recipe, every key; docs/your-first-task.md for your own",
    }
    wide = max(map(len, following))
    lines = [f"  {agentrl} {command:<{wide}}  {what}" for command, what in following.items()]
    console.print("\nNext:", *lines, sep="\n", highlight=False, soft_wrap=True)
    require_whole(path)


def compare(seeds: int, jobs: int, out: Path, overrides: list[str], *, as_json: bool = False) -> None:
    """Trains every estimator on every seed and prints a table."""
    console = Console()
    with progress():
        found = api.compare(seeds, jobs, out, overrides, note=console.print)
    if as_json:
        return write_json([{"credit": name, **figures} for name, figures in found.items()])
    table = Table(
        "credit", "solved at start", "solved at the end, by seed", "mean", "iterations to .9", "turns at the end"
    )
    for name, figures in found.items():
        table.add_row(name, *_cells(figures))
    console.print(table)


def _cells(figures: dict[str, list[Any]]) -> list[str]:
    reached = [k for k in figures["iterations_to_90"] if k is not None]
    end = figures["solved_at_end"]
    return [
        f"{statistics.mean(figures['solved_at_start']):.2f}",
        " ".join(f"{value:.2f}" for value in end),
        f"{statistics.mean(end):.2f}",
        f"{len(reached)} of {len(end)}" + (f" ({min(reached)}-{max(reached)})" if reached else ""),
        f"{statistics.mean(figures['turns_at_end']):.1f}",
    ]


def _formatted(metrics: dict[str, Any], name: str, form: str) -> str:
    return "none" if metrics[name] is None else format(metrics[name], form)


def _panel(run: RunReader, episode: Episode, when: str) -> Panel:
    """An episode, a line per turn, with the credit of each."""
    advantages = api.turn_credit(run, episode.id)
    scale = max(map(abs, advantages), default=0.0) or 1.0
    table = Table("", "call", "saw", "credit", box=None, padding=(0, 1, 0, 0))
    for turn, advantage in zip(episode.turns, advantages, strict=True):
        call = turn.calls[0] if turn.calls else None
        did = f"{call.name} {' '.join(map(str, call.arguments.values()))}" if call and call.name else turn.text
        bar = "█" * round(8 * abs(advantage) / scale)
        credit = Text(f"{advantage:+.2f} {bar}", "green" if advantage > 0 else "red")
        table.add_row(str(turn.index + 1), did[:9], call.result[:14] if call else "", credit)
    title = f"{when}: {episode.task.id}, reward {earned(episode):g}, {turns_of(episode)} turns"
    return Panel(table, title=title, subtitle=f"iteration {episode.iteration + 1}", width=50)
