"""`agentrl check`, `show` and `view`: looking at a run directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.commands.output import write, write_all
from agentrl.store.check import check as check_run
from agentrl.store.checkpoints import checkpoints
from agentrl.store.run_dir import RunDir
from agentrl.view.html import export_html
from agentrl.view.show import show_episode, show_run, show_summary
from agentrl.view.terminal import visible


def token_text(run: RunDir) -> Callable[[int], str] | None:
    """What a token of this run's episodes reads as; None where the tokenizer is not at hand."""
    if run.info.get("agent") is not None:
        return lambda token: ByteTokenizer().decode([token])
    folders = [folder for folder in checkpoints(run.path / "checkpoints") if (folder / "tokenizer.json").exists()]
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError:
        return None
    if not folders:
        return None
    tokenizer = AutoTokenizer.from_pretrained(folders[-1])
    return lambda token: str(tokenizer.decode([token]))


def check(path: Path, *, as_json: bool) -> int:
    """Prints which invariants of a run hold; the exit code."""
    report = check_run(path)
    print(json.dumps(report.as_dict(), indent=1) if as_json else visible(report.as_text()))
    return report.exit_code


def print_summary(path: Path) -> None:
    """Prints what a run came to, and how to look closer."""
    with RunDir.read(path) as run:
        write(show_summary(run))
    print(f"agentrl show {path} | agentrl check {path} | agentrl view {path}")


def show(
    path: Path,
    episode: str | None,
    *,
    tokens: bool,
    status: str | None,
    split: str | None,
    min_reward: float | None,
    sort: str,
    limit: int,
) -> None:
    """Prints a run, or one of its episodes."""
    with RunDir.read(path) as run:
        if episode is None:
            write_all(show_run(run, status=status, split=split, min_reward=min_reward, sort=sort, limit=limit))
        else:
            write_all(show_episode(run, episode, tokens=tokens, decode=token_text(run) if tokens else None))


def view(path: Path, export: Path | None, episodes: int) -> None:
    """Writes the page of a run."""
    with RunDir.read(path) as run:
        print(export_html(run, export or path / "view.html", episodes=episodes, decode=token_text(run)))
