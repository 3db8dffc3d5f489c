"""`agentrl program`: agent programs of others that train unmodified."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.table import Table
from rich.text import Text

from agentrl.commands.output import Json, write, write_json, write_line

app = typer.Typer(no_args_is_help=True, help="List agent programs that train unmodified.")


@app.callback()
def program() -> None:
    """List agent programs that train unmodified."""


@app.command("list")
def list_command(as_json: Json = False) -> None:
    """List the agent programs that were trained unmodified: version, API, drift, the command that trains with each."""
    from agentrl.rollouts.programs.tried import TRIED

    if as_json:
        write_json([{**asdict(each), "command": each.command} for each in TRIED])
        return
    table = Table("program", "version", "of", "API", "drift", "note", box=None)
    for each in TRIED:
        drift = Text(", ".join(each.drift), "yellow") if each.drift else Text("none", "green")
        table.add_row(each.name, each.version, each.registry, each.api, drift, Text(each.note))
    write(table)
    for command in dict.fromkeys(each.command for each in TRIED):
        names = ", ".join(each.name for each in TRIED if each.command == command)
        write_line(f"\n{names}\n  {command}")
