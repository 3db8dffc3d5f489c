"""`agentrl export`: a checkpoint as a plain model, or the episodes of a run in the format of another tool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from agentrl.api.export.episodes import export_episodes
from agentrl.api.export.export import export
from agentrl.commands.output import write_json, write_line
from agentrl.integrations.exchange.formats import FORMATS


def export_run(
    run: Path, to: str, of_model: Mapping[str, Any], of_episodes: Mapping[str, Any], *, as_json: bool
) -> None:
    """Exports episodes if `to` is a format, else a checkpoint, and prints what was written and what was lost.

    Args:
        of_model, of_episodes: the options of either kind by name; only those of the chosen one may be given.

    Raises:
        typer.BadParameter: an option is of the other kind, or `--out` is missing.
    """
    is_format = to in FORMATS
    wrong = next((name for name, value in (of_model if is_format else of_episodes).items() if value), None)
    if wrong is not None:
        kind = "a checkpoint" if is_format else f"episodes (--to {' | '.join(FORMATS)})"
        raise typer.BadParameter(f"--to {to} does not take {wrong}, which is of {kind}", param_hint=wrong)
    write = _episodes if is_format else _checkpoint
    write(run, to, **{name.lstrip("-"): value for name, value in (of_episodes if is_format else of_model).items()},
          as_json=as_json)  # fmt: skip


def _episodes(run: Path, to: str, *, out: Path | None, stage: str | None, split: str | None, as_json: bool) -> None:
    if out is None:
        raise typer.BadParameter(f"--to {to} needs a new file (of atif, a new folder)", param_hint="--out")
    done = export_episodes(run, to, out, stage=stage, split=split)
    if as_json:
        write_json(done)
        return
    write_line(f"{done.episodes} episodes in {done.place}")
    write_line(f"  {to} does not hold: {', '.join(done.lost)}")
    for what, count in done.changed.items():
        write_line(f"  lost: {count} {what}")


def _checkpoint(run: Path, to: str, *, checkpoint: str | None, adapter: bool, public: bool, as_json: bool) -> None:
    done = export(run, to, checkpoint=checkpoint or "last", adapter=adapter, public=public)
    if as_json:
        write_json(done)
    else:
        write_line(f"{done.checkpoint} in {done.place}" + (f", commit {done.commit}" if done.commit else ""))
