"""`agentrl search`: indexes of documents, built before a run needs them."""

from __future__ import annotations

from typing import Annotated

import typer

from agentrl.commands.output import Json, write_json
from agentrl.types.errors import RecipeError

app = typer.Typer(no_args_is_help=True, help="Build indexes of documents.")


@app.callback()
def search() -> None:
    """Build indexes of documents."""


@app.command("build")
def build_command(
    recipe: Annotated[str, typer.Argument(help="A YAML file, a folder with recipe.yaml, or a shipped recipe's name.")],
    overrides: Annotated[
        list[str], typer.Option("--set", help="Override a key: --set tools.0.by=hybrid", metavar="KEY=VALUE")
    ] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Build the indexes of a recipe's search tools, and keep them. The same command again goes on where it stopped."""
    from agentrl.api.recipes import given_recipe
    from agentrl.tools.registry import TOOLS
    from agentrl.tools.search import Search, cache_folder, open_index

    loaded = given_recipe(recipe, overrides)
    entries = [TOOLS.chosen(entry, loaded.base, f"tools.{place}") for place, entry in enumerate(loaded.tools)]
    tools = [made for made in (entry.make() for entry in entries) if isinstance(made, Search)]
    if not tools:
        raise RecipeError(f"{loaded.name} has no tool search", remedy="tools: [{search: {corpus: ./library.jsonl}}]")
    built = []
    for made in tools:
        index = open_index(made.corpus, made.by, lambda ready: print(f"{ready} documents encoded", flush=True))
        built.append({"documents": len(index), "by": made.by})
        print(f"{len(index)} documents, by {made.by}; kept in {cache_folder()}")
    if as_json:
        write_json({"indexes": built, "folder": cache_folder()})
