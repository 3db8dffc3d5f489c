"""`agentrl check` and `show`: looking at a run directory in a terminal."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Unpack

import msgspec

from agentrl.api.run import episode_table
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.commands.output import progress, write, write_all, write_json
from agentrl.store.check import check as check_run
from agentrl.store.checkpoints import checkpoints
from agentrl.store.reader import RunReader
from agentrl.store.rescored import of_episode
from agentrl.store.run_dir import RunDir
from agentrl.view.show import Choice, chosen, show_by_task, show_episode, show_run, show_summary
from agentrl.view.summary import summarise
from agentrl.view.terminal import visible


def token_text(run: RunReader) -> Callable[[int], str] | None:
    """Returns a decoder of single tokens of this run; None if the tokenizer is not available."""
    if run.info.get("script") is not None:
        return lambda token: _unless_image(token, ByteTokenizer().decode)
    if not _tokenizers(run.path) or find_spec("tokenizers") is None:
        return None

    @cache
    def tokenizer() -> Any:
        from tokenizers import Tokenizer  # a tenth of what transformers takes, and it imports no code of a model

        return Tokenizer.from_file(str(_tokenizers(run.path)[-1]))  # of now: a training deletes old checkpoints

    return lambda token: _unless_image(token, lambda ids: tokenizer().decode(ids, skip_special_tokens=False))


def _tokenizers(run: Path) -> list[Path]:
    """Returns the tokenizers of the run's checkpoints, the newest last."""
    return [file for folder in checkpoints(run / "checkpoints") if (file := folder / "tokenizer.json").exists()]


def check(path: Path, *, as_json: bool) -> int:
    """Prints which invariants of a run hold. Returns the exit code."""
    with progress() as reporter:
        report = check_run(path, reporter)
    write_json(report.as_dict()) if as_json else print(visible(report.as_text()))
    return report.exit_code


def print_summary(path: Path, *, as_json: bool) -> None:
    """Prints the summary of a run, and for people the commands that show more."""
    with RunDir.read(path) as run:
        if as_json:
            write_json({"run": path, "summary": summarise(run)})
            return
        write(show_summary(run))
    print("\n".join(f"  agentrl {command} {path}" for command in ("show", "check", "view")))


def _unless_image(token: int, decode: Callable[[list[int]], Any]) -> str:
    return "[image]" if token < 0 else str(decode([token]))


def show(path: Path, as_json: bool, tasks: bool, **choice: Unpack[Choice]) -> None:
    """Prints the summary of a run, and those of its episodes, or their tasks, that are asked for."""
    with RunDir.read(path) as run:
        if as_json:
            rows = episode_table(lambda: chosen(run, choice)).to_dicts()
            write_json({"run": path, "summary": summarise(run), "episodes": rows})
        else:
            write_all(show_by_task(run, **choice) if tasks else show_run(run, **choice))


def show_one(path: Path, name: str, *, tokens: bool, whole: bool, as_json: bool) -> None:
    """Prints an episode."""
    with RunDir.read(path) as run:
        if not as_json:
            decode = token_text(run) if tokens else None
            write_all(show_episode(run, name, tokens=tokens, decode=decode, whole=whole))
            return
        episode = run.get(run.resolve(name))
        shown = episode if tokens else msgspec.structs.replace(episode, nodes=[])
        again = of_episode(run.path, episode.id)
        write_json({"run": path, "episode": shown, "credit": run.credit(episode.id), "rewards": again})
