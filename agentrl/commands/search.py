"""`agentrl search`: indexes of documents, built before a run needs them, and served to many processes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from agentrl.commands.output import Json, progress, write_json
from agentrl.types.errors import RecipeError

app = typer.Typer(no_args_is_help=True, help="Build and serve indexes of documents.")


@app.callback()
def search() -> None:
    """Build and serve indexes of documents."""


@app.command("build")
def build_command(
    recipe: Annotated[str, typer.Argument(help="A YAML file, a folder with recipe.yaml, or a shipped recipe's name.")],
    overrides: Annotated[
        list[str], typer.Option("--set", help="Override a key: --set tools.0.by=hybrid", metavar="KEY=VALUE")
    ] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Build and cache the indexes of a recipe's search tools. The same command again resumes an interrupted build."""
    from agentrl.tools.builtin.search.tool import cache_folder, open_index

    built = []
    for made in _with_corpus(recipe, overrides):
        with progress():
            index = open_index(made.corpus, made.by)
        built.append({"documents": len(index), "by": made.by})
        print(f"{len(index)} documents, by {made.by}; kept in {cache_folder()}")
    if as_json:
        write_json({"indexes": built, "folder": cache_folder()})


@app.command("serve")
def serve_command(
    recipe: Annotated[str, typer.Argument(help="A YAML file, a folder with recipe.yaml, or a shipped recipe's name.")],
    host: Annotated[str, typer.Option(help="Address to listen at. The server asks nobody for a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8077,
    overrides: Annotated[
        list[str], typer.Option("--set", help="Override a key: --set tools.0.by=hybrid", metavar="KEY=VALUE")
    ] = [],  # noqa: B006
) -> None:
    """Serve the index of a recipe's first search tool, until Ctrl-C: one index for all processes and machines."""
    from agentrl.tools.builtin.search.served import serve
    from agentrl.tools.builtin.search.tool import open_index

    made = _with_corpus(recipe, overrides)[0]
    with progress():
        index = open_index(made.corpus, made.by)
    serve(index, host, port, lambda url: print(f"{len(index)} documents, by {made.by}; at {url}", flush=True))


def _with_corpus(recipe: str, overrides: list[str]) -> list[Any]:
    """The search tools of a recipe that have a corpus."""
    from agentrl.api.recipes import given_recipe
    from agentrl.tools.builtin.search.bases import Bases
    from agentrl.tools.builtin.search.tool import Search
    from agentrl.tools.registry import TOOLS

    loaded = given_recipe(recipe, overrides)
    entries = [TOOLS.chosen(entry, loaded.base, f"tools.{place}") for place, entry in enumerate(loaded.tools)]
    made = [each.make() for each in entries]
    found = [each for tool in made for each in (tool.bases.values() if isinstance(tool, Bases) else [tool])]
    tools = [each for each in found if isinstance(each, Search) and each.corpus is not None]
    if not tools:
        raise RecipeError(
            f"{loaded.name} has no tool search with a corpus", remedy="tools: [{search: {corpus: ./library.jsonl}}]"
        )
    return tools
