"""A recipe as Harbor task folders: `agentrl env export RECIPE --to harbor --out DIR`.

What Harbor's own form can express becomes files, and a verifier that needs only Python (integrations/harbor/export.py).
Every other recipe is played by a server in a second container, with its tools (over MCP) and its reward.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

from ruamel.yaml import YAML

from agentrl.api.export_openenv import check_alone, copy_recipe, name_recipe
from agentrl.api.shipped import installs
from agentrl.config.recipe import Recipe
from agentrl.integrations.harbor import export as files
from agentrl.rollouts.builder import Parts, build
from agentrl.types.errors import RecipeError
from agentrl.types.parts.content import text_of
from agentrl.types.paths import data_path

TEMPLATE = data_path("tools", "harbor_server")
SERVER = "recipe"
"""Name of the server among the containers of a task, and among the MCP servers of its agent."""
OWN = {"show_task", "reply"}
"""Tools of the server that the recipe need not have."""

_INSTRUCTION = """\
{said}

The tools of this task are those of the MCP server `{server}`. Call `show_task` first. `reply` says something in
place of a call: give your final answer with it, too.
"""
_TOML = """\
schema_version = "1.0"

[environment]
network_mode = "public"

[[environment.mcp_servers]]
name = "{server}"
transport = "streamable-http"
url = "http://{server}:8000/mcp"
"""


def export(
    name: str, recipe: Recipe, overrides: Sequence[str], out: Path, n: int | None = None
) -> tuple[list[Path], str | None]:
    """Writes one folder per task.

    Args:
        name: path or name of the recipe.
        recipe: the same, loaded.
        overrides: of its keys, which a server applies as well.
        n: maximum number of tasks.

    Returns:
        The folders; and what Harbor's own form could not express, if tools and reward are those of a server.

    Raises:
        RecipeError: `out` exists; or the recipe needs a server, and is not self-contained, or its agent is a program.
    """
    reason = files.inexpressible(recipe, n)
    if reason is None:
        return files.export(recipe, out, n), None
    if recipe.agent.is_program:
        raise RecipeError("no other agent can take the place of a program", place="agent", remedy="leave agent.use out")
    file, parts = check_alone(name, recipe, out), build(recipe)
    if taken := OWN.intersection(tool["function"]["name"] for tool in parts.definitions):
        raise RecipeError(f"the server has a tool {min(taken)} of its own", place="tools", remedy="rename the recipe's")
    if parts.needs_sandbox and recipe.sandbox.spec.image is not None:
        raise RecipeError(
            "the server has no container engine", place="sandbox.spec.image", remedy="--set sandbox.spec.image=null"
        )
    count = len(parts.tasks) if n is None else min(n, len(parts.tasks))
    with TemporaryDirectory() as made:
        server = _server(recipe, parts.needs_sandbox, file, overrides, Path(made) / SERVER)
        folders = [_write(recipe, parts, position, server, out) for position in range(count)]
    readme = (TEMPLATE / "README.md").read_text()
    (out / "README.md").write_text(readme.replace("NAME", recipe.name))
    return folders, reason


def _server(recipe: Recipe, sandboxed: bool, file: Path, overrides: Sequence[str], folder: Path) -> Path:
    """Writes the folder of the server's image, which all tasks share."""
    folder.mkdir()
    program = folder / "server.py"
    program.write_text((TEMPLATE / "server.py").read_text().replace("NAME", recipe.name))
    name_recipe(program, file, overrides)
    copy_recipe(recipe, file, overrides, folder / "recipe", folder)
    more = ["RUN apt-get update && apt-get install -y bubblewrap"] if sandboxed else []
    more += [f"RUN {command}" for command in installs(recipe.base / "README.md")]
    image = (TEMPLATE / "Dockerfile").read_text()
    (folder / "Dockerfile").write_text(image.replace("COPY", "\n".join([*more, "COPY"])))
    return folder


def _write(recipe: Recipe, parts: Parts, position: int, server: Path, out: Path) -> Path:
    """Writes the folder of a task. Who may score it cannot have it solved: each has a secret of its own."""
    task = parts.tasks.at(position)
    folder, secrets = out / files.folder_name(task.id), {what: token_hex(16) for what in ("score", "play")}
    shutil.copytree(server, folder / "environment" / SERVER)
    _compose(position, secrets, parts.needs_sandbox, folder / "environment")
    (folder / "environment" / "Dockerfile").write_text("FROM python:3.11-slim\nWORKDIR /workspace\n")
    (folder / "task.toml").write_text(_TOML.format(server=SERVER))
    said = [recipe.agent.system or "", *(text_of(message["content"]) for message in task.instruction)]
    text = "\n\n".join(filter(None, said))
    (folder / "instruction.md").write_text(_INSTRUCTION.format(said=text, server=SERVER))
    asks = [("tests", "test.sh", "score")] + [("solution", "solve.sh", "play")] * ("oracle" in recipe.scripts)
    for room, script, what in asks:
        (folder / room).mkdir()
        shutil.copy(TEMPLATE / "ask.py", folder / room)
        (folder / room / "secret").write_text(secrets[what])
        (folder / room / script).write_text(f"#!/bin/sh\nexec python3 /{room}/ask.py {what}\n")
    return folder


def _compose(position: int, secrets: Mapping[str, str], sandboxed: bool, folder: Path) -> None:
    yaml = YAML()
    compose = yaml.load(TEMPLATE / "docker-compose.yaml")
    service = compose["services"][SERVER]
    service["environment"].update({f"{what.upper()}_SECRET": secret for what, secret in secrets.items()})
    service["environment"]["TASK"] = str(position)
    if sandboxed:
        service["privileged"] = True  # its sandboxes are namespaces within the container
    yaml.dump(compose, folder / "docker-compose.yaml")
