"""Settings of the `mcp` tool."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentrl.types.errors import RecipeError, TaskError
from agentrl.types.paths import neighbours
from agentrl.types.task import Task
from agentrl.types.task_fields import fill, names, of_task

FOLDER = "{folder}"
"""Placeholder of the folder that an episode has of its own."""


class McpSettings(BaseModel):
    """Settings of the `mcp` tool: the server and the selection of its tools."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Starts a server that speaks over stdio. {id}, {instruction} and {data.KEY} are the task's, here "
        "and in url, env, headers and files. {folder} is a new folder of the episode, here and in env.",
    )
    url: str | None = Field(None, pattern=r"^https?://", description="Of a server that speaks streamable HTTP.")
    env: dict[str, str] = Field({}, description="Environment of the command; $NAME is a variable of this process.")
    headers: dict[str, str] = Field({}, description="Sent to the URL; $NAME is a variable of this process.")
    files: dict[str, str] = Field(
        {}, description="Files and folders that are copied into {folder} before the server starts. NAME: PATH."
    )
    include: tuple[str, ...] | None = Field(None, description="The tools that are offered; default: all.")
    exclude: tuple[str, ...] = Field((), description="Tools that are not offered.")
    prefix: str = Field("", description="Stands before the name of each tool.")
    timeout_s: float = Field(60.0, gt=0, description="Seconds for the start, and for each call.")
    shared: bool | Annotated[int, Field(ge=1)] = Field(
        False,
        description="One connection for all episodes of a worker, or at most so many, in place of one for each: for "
        "servers that keep no state.",
    )
    max_bytes: int = Field(10_000_000, gt=0, description="Bytes of one message of the server.")

    @model_validator(mode="after")
    def _one_server(self) -> McpSettings:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either command: [program, argument, ...] or url: http://...")
        if self.shared and self.places:
            raise ValueError(f"a shared server is told nothing of one task: remove 'shared', or {{{min(self.places)}}}")
        if self.shared and self.own_folder:
            raise ValueError("a shared server has no folder of one episode: remove 'shared', or {folder} and files")
        if self.files and self.url:
            raise ValueError("files belong to command: a server at a url has its own")
        if self.files and not self._names_folder:
            raise ValueError("files are copied to {folder}: name it in command or env")
        if wrong := _misplaced(self.files):
            raise ValueError(f"files: {wrong}")
        if (self.env and self.url) or (self.headers and self.command):
            raise ValueError("env belongs to command, and headers to url")
        return self

    @property
    def places(self) -> set[str]:
        """Placeholders of the task: `id`, `instruction`, `data.KEY`."""
        named = [*self.env.values(), *self.headers.values(), *self.files, *self.files.values()]
        return names(" ".join([*(self.command or ()), self.url or "", *named]))

    @property
    def own_folder(self) -> bool:
        """True if each episode needs a folder of its own."""
        return bool(self.files) or self._names_folder

    @property
    def _names_folder(self) -> bool:
        return any(FOLDER in text for text in (*(self.command or ()), *self.env.values()))

    def of(self, task: Task, folder: Path | None = None) -> McpSettings:
        """Returns the settings with placeholders and variables of this process filled in.

        Args:
            folder: replaces `{folder}`; None: `{folder}` stays.

        Raises:
            RecipeError: a variable is not set.
            TaskError: the task lacks a key of `{data.KEY}`, or one of `files` does not exist or has a wrong name.
        """
        known = of_task(task) if self.places else {}
        files = {fill(name, known): fill(path, known) for name, path in self.files.items()}
        if len(files) < len(self.files):
            raise TaskError("mcp: files: two copies have the same name", place=f"task {task.id}")
        if wrong := _misplaced(files):
            raise TaskError(f"mcp: files: {wrong}", place=f"task {task.id}")
        if missing := next((path for path in files.values() if not os.path.exists(path)), None):
            looked = "" if os.path.isabs(missing) else f" in {os.getcwd()}"
            remedy = neighbours(Path(missing)) or "in the recipe, ./ is the recipe's folder"
            raise TaskError(f"mcp: files: there is no {missing}{looked}", place=f"task {task.id}", remedy=remedy)
        if folder is not None:
            known = {**known, "folder": str(folder)}
        command, url = self.command, self.url
        if command is not None:
            command = tuple(fill(part, known) for part in command)
        if url is not None:
            url = fill(url, known)
        self.check_variables()
        env, headers = _values(self.env, known), _values(self.headers, known)
        return self.model_copy(update={"command": command, "url": url, "env": env, "headers": headers, "files": files})

    def check_variables(self) -> None:
        """Checks that the variables `$NAME` are set, in whose place recipes contain no secrets.

        Raises:
            RecipeError: one is not.
        """
        for key, given in (("env", self.env), ("headers", self.headers)):
            for value in given.values():
                if value[:1] == "$" and (name := value[1:]) not in os.environ:
                    raise RecipeError(
                        f"the variable {name} is not set", place=f"mcp: {key}", remedy=f"export {name}=..."
                    )

    @property
    def server(self) -> str:
        """Label of the server in messages."""
        return f"MCP server {self.url or ' '.join(self.command or ())}"


def _misplaced(names: Collection[str]) -> str:
    """Describes a name of a copy that lies outside of the folder, or inside of another copy; "": there is none."""
    paths = [PurePosixPath(name) for name in names]
    for name, path in zip(names, paths, strict=True):
        if not path.parts or path.is_absolute() or ".." in path.parts or FOLDER in name:
            return f"{name!r} is not a name in {{folder}}"
        if set(path.parents) & set(paths) or paths.count(path) > 1:
            return f"{name!r} lies in another copy, or has its name"
    return ""


def _values(given: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """A `$NAME` that a task brings stays as it is: tasks get no secrets."""
    return {name: os.environ[value[1:]] if value[:1] == "$" else fill(value, known) for name, value in given.items()}
