"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from agentrl.types.paths import data_path


def _shipped(typed: str) -> list[str]:
    """Returns the shipped recipes and methods whose names begin with what was typed, for the shell to complete it."""
    from agentrl.config.files import method_files, method_name

    names = [path.parent.name for path in data_path("recipes").glob("*/recipe.yaml")]
    names += [method_name(path) for path in method_files()]
    return sorted(name for name in names if name.startswith(typed))


RecipeName = Annotated[
    str,
    typer.Argument(help="A YAML file, a folder with recipe.yaml, or a shipped recipe's name.", autocompletion=_shipped),
]
Set = Annotated[list[str], typer.Option("--set", help="Override a key: --set train.lr=1e-5", metavar="KEY=VALUE")]
Profile = Annotated[
    str | None, typer.Option(help="What differs on a machine: laptop, gpu, node, or a YAML file; applied before --set.")
]
