"""`agentrl quickstart`: the main job in miniature, and the comparison of credits on it."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agentrl.api.run_dirs import require_whole
from agentrl.api.train import train
from agentrl.commands.output import write_json
from agentrl.config.loader import load_recipe
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode
from agentrl.types.errors import AgentRLError

INTRO = """[b]agentrl quickstart[/b]: a tiny policy, built on the spot, learns to find a flag in mazes of real folders.
A real shell in a sandbox without network runs its tool calls ([b]cd[/b], [b]look[/b]); the reward is 1 in the flag's
room, else 0. Demonstrations teach it the format only (almost all their moves are random); the way it learns by
reinforcement, with GiGPO credit per turn. It learns a FIXED set of eight mazes: learning, not generalisation."""

CREDITS = {
    "GRPO": ["credit={use: grpo}"],
    "GRPO, discounted outcome": ["credit={use: grpo, gamma: 0.95}"],
    "GiGPO": [],
}


def quickstart(seed: int, out: Path | None, overrides: list[str], *, as_json: bool = False) -> None:
    """Trains the shipped recipe and shows what came of it. An interrupted quickstart continues."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    console.print(INTRO)
    path = out or _unfinished_or_free(Path("runs/quickstart"))
    recipe = load_recipe("quickstart", [f"seed={seed}", f"tasks.args.seed={seed}", *overrides])
    started = time.perf_counter()
    train(recipe, out=path)
    run = RunDir.read(path)
    try:
        _before_and_after(console, run)
        before, after = (_evaluation(run, last) for last in (False, True))
        console.print(
            f"\n[b]Solved at temperature 1, fresh samples: {_told(before, 'success', '.0%')} -> "
            f"{_told(after, 'success', '.0%')}[/b], turns {_told(before, 'turns', '.1f')} -> "
            f"{_told(after, 'turns', '.1f')}, {time.perf_counter() - started:.0f} s. "
            f"Curve: {path / 'curve.png'}"
        )
    finally:
        run.close()
    if as_json:
        write_json({"run": path, "before": before, "after": after})
        return require_whole(path)
    console.print(
        f"\nNext:\n  agentrl view {path}                  one page: curves, episodes, credit turn by turn\n"
        f"  agentrl eval {path} --n 256           measure the newest checkpoint\n"
        "  agentrl recipe show quickstart        the recipe, every key; docs/your-first-task.md for your own"
    )
    require_whole(path)


def compare(seeds: int, jobs: int, out: Path, overrides: list[str], *, as_json: bool = False) -> None:
    """Trains every credit on every seed, each run a process of its own, and prints the table."""
    console = Console()
    todo = [(name, seed) for seed in range(seeds) for name in CREDITS]

    def train(job: tuple[str, int]) -> list[dict[str, Any]]:
        name, seed = job
        path = out / f"{name.split(',')[0].lower()}{'-discounted' if ',' in name else ''}-{seed}"
        sets = [f"seed={seed}", f"tasks.args.seed={seed}", *CREDITS[name], *overrides]
        command = [sys.executable, "-m", "agentrl.cli", "train", "quickstart", "--out", str(path)]
        done = subprocess.run(
            [*command, *(part for text in sets for part in ("--set", text))],
            capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        if done.returncode:
            raise AgentRLError(f"{name}, seed {seed} failed:\n{done.stderr}", place=str(path))
        run = RunDir.read(path)
        try:
            metrics: list[dict[str, Any]] = run.metrics()
        finally:
            run.close()
        final = [m for m in metrics if m["split"] == "eval"][-1]
        console.print(f"{name}, seed {seed}: solved {final['success']:.2f}, turns {final['turns']:.1f}")
        return metrics

    with ThreadPoolExecutor(jobs) as pool:
        found = dict(zip(todo, pool.map(train, todo), strict=True))
    figures = {name: _figures([found[name, seed] for seed in range(seeds)]) for name in CREDITS}
    if as_json:
        return write_json([{"credit": name, **told} for name, told in figures.items()])
    table = Table(
        "credit", "solved at start", "solved at the end, by seed", "mean", "iterations to .9", "turns at the end"
    )
    for name, told in figures.items():
        table.add_row(name, *_cells(told))
    console.print(table)


def _figures(runs: list[list[dict[str, Any]]]) -> dict[str, list[Any]]:
    """What came of each seed: success at the start and at the end, turns at the end, iterations to 90%."""
    evals = [[m for m in run if m["split"] == "eval"] for run in runs]
    return {
        "solved_at_start": [each[0]["success"] for each in evals],
        "solved_at_end": [each[-1]["success"] for each in evals],
        "iterations_to_90": [_iterations_to(0.9, run) for run in runs],
        "turns_at_end": [each[-1]["turns"] for each in evals],
    }


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


def _iterations_to(level: float, metrics: list[dict[str, Any]]) -> int | None:
    """First iteration whose mean over three iterations reaches `level`."""
    solved = [m["success"] for m in metrics if m["split"] == "train"]
    return next((k for k in range(3, len(solved) + 1) if sum(solved[k - 3 : k]) / 3 >= level), None)


def _unfinished_or_free(path: Path) -> Path:
    """The newest of `path`, path-2, ... if that run is unfinished, else the next free folder."""
    newest, number = path, 2
    while path.with_name(f"{path.name}-{number}").exists():
        newest, number = path.with_name(f"{path.name}-{number}"), number + 1
    if not (newest / "run.json").exists():
        return newest
    run = RunDir.read(newest)
    finished = bool(run.info.get("finished"))
    run.close()
    return path.with_name(f"{path.name}-{number}") if finished else newest


def _evaluation(run: RunDir, last: bool) -> dict[str, Any]:
    evaluations = [m for m in run.metrics() if m["split"] == "eval"]
    return dict(evaluations[-1 if last else 0])


def _told(metrics: dict[str, Any], name: str, form: str) -> str:
    return "none" if metrics[name] is None else format(metrics[name], form)


def _before_and_after(console: Console, run: RunDir) -> None:
    """One episode of the first iteration and one of a late one, of the same maze, with the credit of every turn."""
    last = max(m["iteration"] for m in run.metrics() if m["split"] == "train") - 1
    solved = [row.id for row in run.rows(split="train", iteration=last) if row.reward]
    if not solved:
        return
    # Where all of a group did equally well there is no credit to show.
    after = run.get(max(solved, key=lambda id: max(map(abs, _credit(run, id)))))
    early = [row for row in run.rows(split="train", iteration=0, order="turns") if row.task_id == after.task.id]
    before = run.get(early[len(early) // 2].id)
    console.print()
    console.print(Columns([_panel(run, before, "before"), _panel(run, after, "after")], padding=(0, 2)))


def _panel(run: RunDir, episode: Episode, when: str) -> Panel:
    advantages = _credit(run, episode.id)
    scale = max(map(abs, advantages), default=0.0) or 1.0
    table = Table("", "call", "saw", "credit", box=None, padding=(0, 1, 0, 0))
    for turn, advantage in zip(episode.turns, advantages, strict=True):
        call = turn.calls[0] if turn.calls else None
        said = f"{call.name} {' '.join(map(str, call.arguments.values()))}" if call and call.name else turn.text
        bar = "█" * round(8 * abs(advantage) / scale)
        credit = Text(f"{advantage:+.2f} {bar}", "green" if advantage > 0 else "red")
        table.add_row(str(turn.index + 1), said[:9], call.result[:14] if call else "", credit)
    title = f"{when}: {episode.task.id}, reward {episode.reward:g}, {len(episode.turns)} turns"
    return Panel(table, title=title, subtitle=f"iteration {episode.iteration + 1}", width=50)


def _credit(run: RunDir, episode_id: str) -> list[float]:
    credit = run.credit(episode_id)
    return credit.turn_advantages if credit is not None else []
