"""`agentrl recipe`: checks, shows and lists recipes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from agentrl.commands.arguments import Profile, RecipeName, Set
from agentrl.commands.output import Json, write, write_json

if TYPE_CHECKING:
    from agentrl.api.recipe_check import CheckedRecipe
    from agentrl.api.shipped import ShippedMethod, ShippedRecipe

app = typer.Typer(no_args_is_help=True, help="Check, show and describe recipes.")


@app.command("check")
def recipe_check(
    recipe: RecipeName,
    as_json: Json = False,
    profile: Profile = None,
    overrides: Set = [],  # noqa: B006
) -> None:
    """Check a recipe without running it."""
    from agentrl.api.recipe_check import check as command

    found = command(recipe, overrides, profile)
    write_json(found) if as_json else print(described(found))


@app.command("show")
def recipe_show(
    recipe: RecipeName,
    as_json: Json = False,
    profile: Profile = None,
    overrides: Set = [],  # noqa: B006
) -> None:
    """Print the fully resolved recipe, and where each key was set: the file, the profile, or --set."""
    from agentrl.config.loader import explain_recipe, load_recipe

    if as_json:
        write_json(load_recipe(recipe, overrides, profile).model_dump(mode="json"))
    else:
        print(explain_recipe(recipe, overrides, profile), end="")


@app.command("list")
def recipe_list(
    as_json: Json = False,
    methods: Annotated[
        bool, typer.Option("--methods", help="List the methods of papers that are recipes on top of another.")
    ] = False,
) -> None:
    """List the built-in recipes, those that a policy has learned first: what each trains, its size, what it needs."""
    from agentrl.api.shipped import shipped_methods, shipped_recipes

    if methods:
        known = shipped_methods()
        write_json([asdict(each) for each in known]) if as_json else write(listed_methods(known))
        return
    found = shipped_recipes()
    write_json(
        [{**asdict(each), "lacks": each.lacks, "network": each.network} for each in found]
    ) if as_json else write(listed(found))


@app.command("schema")
def recipe_schema() -> None:
    """Print the JSON schema of recipes."""
    from agentrl.config.bases import recipe_schema

    write_json(recipe_schema())


def described(found: CheckedRecipe) -> str:
    """Formats the result for people."""
    rewards = [name + (f" ({', '.join(costs)})" if costs else "") for name, costs in found.rewards.items()]
    tools = ", ".join(found.tools) or "none before an episode opens"
    lines = {
        "tasks": str(found.tasks),
        "tools": tools + (" (in a sandbox)" if found.sandbox else ""),
        "rewards": ", ".join(rewards) or "none",
        "credit": f"{found.credit} {json.dumps(found.credit_settings, separators=(',', ':'))}",
        "model": found.model or "none (scripts only)",
        "scripts": ", ".join(found.scripts) or "none",
        "checked": found.certificate or "",
        "stages": ", ".join(f"{name} ({kind})" for name, kind in found.stages.items()),
    }
    told = [f"  {name:8} {line}" for name, line in lines.items() if line]
    return "\n".join([f"{found.name}: ok", *told, *(f"warning: {warning}" for warning in found.warnings)])


def listed(recipes: Iterable[ShippedRecipe]) -> Table:
    """A table of the built-in recipes. What is missing here has a colour, and the command that gets it."""
    table = Table("recipe", "what it trains", "size", "measured", "network", "needs", box=None, padding=(0, 1, 1, 0))
    for recipe in recipes:
        lacks = recipe.lacks
        commands = [
            Text(command, "yellow") if command in lacks else Text(", ".join(items))
            for command, items in recipe.needs.items()
        ]
        needs = Text("\n").join([*([Text("a sandbox")] if recipe.sandbox else []), *commands])
        measured = Text(recipe.measured or "not learned yet", "" if recipe.measured else "dim")
        trains = Text(recipe.trains or recipe.does)
        network = Text(recipe.network, "yellow" if recipe.network == "to install" else "")
        table.add_row(Text(recipe.name), trains, Text(recipe.size or ""), measured, network, needs)
    return table


def listed_methods(methods: Iterable[ShippedMethod]) -> Table:
    """A table of the built-in methods."""
    table = Table("method", "what it changes", "on top of", "paper", "certainty", box=None, padding=(0, 1, 1, 0))
    for each in methods:
        table.add_row(Text(each.name), Text(each.acts), Text(each.base), Text(each.paper), Text(each.certainty))
    return table
