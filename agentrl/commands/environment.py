"""`agentrl env`: environments, checked before they train."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from agentrl.commands.arguments import RecipeName, Set
from agentrl.commands.output import Json, progress, write, write_json

if TYPE_CHECKING:
    from agentrl.api.certify.findings import Finding

app = typer.Typer(no_args_is_help=True, help="Check environments before they train.")

_COLOURS = {"pass": "green", "fail": "red", "unknown": "yellow", "not applicable": "dim"}
_SHOWN = 3  # failing tasks of a check


@app.command("check")
def check_command(
    recipe: RecipeName,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Tasks; all of them if there are fewer.")] = 50,
    threshold: Annotated[
        float, typer.Option(help="Reward, or value of the component 'success', from which an episode is a success.")
    ] = 1.0,
    policy: Annotated[bool, typer.Option("--policy", help="Play groups of the recipe's policy, too.")] = False,
    store: Annotated[bool, typer.Option("--store", help="Store the certificate beside the recipe.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the runs.")] = None,
    as_json: Json = False,
    overrides: Set = [],  # noqa: B006
) -> None:
    """Check whether an environment can be trained on. Exit code 1 if a check fails."""
    from agentrl.api.certify.check import check_environment, runs_folder
    from agentrl.api.recipes import given_recipe

    loaded = given_recipe(recipe, overrides)
    folder = runs_folder(loaded, out)
    note = (lambda finding: None) if as_json else _tell
    with progress() as told:
        certificate = check_environment(
            loaded, n, threshold=threshold, policy=policy, out=out, note=note, reporters=[told]
        )
    if store:
        certificate.store(loaded.base)
    if as_json:
        write_json({**asdict(certificate), "runs": folder})
    else:
        failed = sum(finding.state == "fail" for finding in certificate.findings)
        verdict = "certified" if certificate.certified else f"not certified, {failed} checks failed"
        print(f"{certificate.recipe}: {verdict}; {certificate.tasks} tasks")
        print(f"runs in {folder}: {', '.join(sorted(path.parent.name for path in folder.glob('*/run.json')))}")
        print(f"  agentrl show {folder}/oracle")
    sys.exit(0 if certificate.certified else 1)


@app.command("list")
def list_command(as_json: Json = False) -> None:
    """List environments, built-in ones and those of packages: what each is, its certificate, whether it runs here."""
    from agentrl.api.shipped import shipped_environments

    found = shipped_environments()
    if as_json:
        write_json(found)
        return
    table = Table("environment", "what it is", "of", "checked", "runs here", box=None)
    for each in found:
        here = Text("yes", "green") if each.why_not is None else Text(f"no: {each.why_not}", "yellow")
        table.add_row(Text(each.name), Text(each.does), Text(each.package or "agentrl"), Text(each.certificate), here)
    write(table)


@app.command("export")
def export_command(
    recipe: RecipeName,
    out: Annotated[Path, typer.Option("--out", help="The folder that is made.")],
    to: Annotated[Literal["harbor", "openenv"], typer.Option("--to", help="The format.")] = "harbor",
    n: Annotated[
        int | None, typer.Option("--n", "-n", min=1, help="harbor: the first tasks only; default: all.")
    ] = None,
    as_json: Json = False,
    overrides: Set = [],  # noqa: B006
) -> None:
    """Write a recipe in the format of another framework: its tasks (harbor), or a server that plays them (openenv)."""
    from agentrl.api import export_harbor as harbor
    from agentrl.api import export_openenv as openenv
    from agentrl.api.recipes import given_recipe
    from agentrl.types.errors import RecipeError

    if to == "openenv":
        if n is not None:
            raise RecipeError("a server has all tasks of its recipe", place="--n", remedy="--set tasks.limit=N")
        openenv.export(recipe, given_recipe(recipe, overrides), overrides, out)
        if as_json:
            write_json({"folder": str(out)})
        else:
            print(f"a server in {out}: {out / 'README.md'} says how to start it")
        return
    folders, reason = harbor.export(recipe, given_recipe(recipe, overrides), overrides, out, n)
    if as_json:
        write_json({"folder": str(out), "tasks": [folder.name for folder in folders], "server": reason})
    else:
        print(f"{len(folders)} tasks in {out}")
        if reason is not None:
            print(f"a server has their tools and rewards, as {reason}: {out / 'README.md'}")


def _tell(finding: Finding) -> None:
    write(Text.assemble((f"{finding.state:14} ", _COLOURS[finding.state]), f"{finding.check:40} {finding.says}"))
    for task, reason in [*finding.tasks.items()][:_SHOWN]:
        write(Text(f"{'':15}{task}: {reason}"))
    if len(finding.tasks) > _SHOWN:
        write(Text(f"{'':15}and {len(finding.tasks) - _SHOWN} more tasks"))
