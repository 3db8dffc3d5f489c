"""`agentrl rescore`: output of the new scores of a stored run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def print_comparison(result: dict[str, Any], path: Path, name: str) -> None:
    """The result of `rescore` for people."""
    table = Table("component", "recorded", "new", "unscored", box=None)
    for component, line in result["components"].items():
        means = ["-" if line[key] is None else f"{line[key]:.4f}" for key in ("recorded", "new")]
        table.add_row(component, *means, str(line["unscored"] or "-"))
    console = Console()
    console.print(f"{result['scored']} of {result['episodes']} episodes scored as {name!r} (means; turns summed)")
    console.print(table)
    if result["left_out"]:
        counts = ", ".join(f"{count} {status}" for status, count in sorted(result["left_out"].items()))
        console.print(f"left out: {counts}; only done and truncated episodes are scored")
    console.print(f"agentrl show {path} EPISODE shows them beside the recorded ones", markup=False)
