"""The `mcp` tool: offers the tools of an MCP server."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.tools.base import Environment, ToolResult
from agentrl.tools.builtin.mcp.connection import Connection, ServerEnded, ServerLost, connect, leave
from agentrl.tools.builtin.mcp.copies import copy_files
from agentrl.tools.builtin.mcp.settings import McpSettings
from agentrl.tools.schema import SchemaTool, schema_tool
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.errors import ScoringPrevented, ToolError, needs
from agentrl.types.parts.image import ImageRefused
from agentrl.types.parts.schemas import complaint
from agentrl.types.task import Task
from agentrl.types.task_fields import names

if TYPE_CHECKING:
    from agentrl.types.sandbox import Sandbox
from agentrl.types.paths import check_program


class Mcp(Environment):
    """Offers the tools of an MCP server, listed when an episode opens and again whenever they change.

    A server that dies or does not start is an infrastructure failure; a tool error, an oversized or invalid result is
    shown to the model.
    """

    forkable = False

    def __init__(self, settings: McpSettings) -> None:
        with needs("mcp"):
            import mcp  # noqa: F401
        settings.check_variables()
        if settings.command is not None and not names(settings.command[0]):
            check_program(settings.command[0], "mcp: command")
        self.settings, self.timeout_s = settings, settings.timeout_s
        self._connection: Connection | None = None
        self._folder: Path | None = None
        self._copying: asyncio.Future[None] | None = None
        self._closing, self._asking, self._asked_s = threading.Event(), asyncio.Lock(), 0.0
        self._listed: list[Any] | None = None
        self._first: list[Any] = []  # the agent's calls may change the list later
        self._offered: list[SchemaTool] = []

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Connects to the server or starts it, with copies of its files in a new folder.

        Raises:
            TaskError: the task lacks data that the settings name, or a file of theirs does not exist.
            ServerLost: the server does not start, or does not answer.
        """
        if self.settings.own_folder:
            self._folder = Path(tempfile.mkdtemp(prefix="agentrl-mcp-"))
        settings = self.settings.of(task, self._folder)
        if self._folder is not None:
            copying = asyncio.to_thread(copy_files, settings.files, self._folder, self._closing)
            self._copying = asyncio.ensure_future(copying)
            await asyncio.shield(self._copying)
        self._connection = await connect(settings)
        self._first = self._connection.tools

    def check_task(self, task: Task) -> None:
        """Checks that the task has the data that the settings name, and that the files to copy exist."""
        self.settings.of(task)

    async def close(self) -> None:
        """Closes the session unless it is shared by all episodes. Removes the episode's folder."""
        try:
            if self._connection is not None:
                await leave(self._connection)
        finally:
            await self._remove_folder()

    async def _remove_folder(self) -> None:
        """Removes the episode's folder, after its copies have ended if a deadline came first."""
        if self._copying is not None:
            self._closing.set()
            await asyncio.wait([self._copying])
            self._copying.exception()  # the episode has it already, or was closed
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def ask(self, name: str, /, **arguments: Any) -> str:
        """Calls a tool of the server for a reward and returns its text.

        The recipe may hide the tool from the model (`exclude`). `name` is the server's, without `prefix`. All calls of
        an episode have `timeout_s` together.

        Raises:
            ValueError: the server has no such tool, the arguments do not fit its schema, or episodes share the server.
            ScoringPrevented: the call failed, or the time is up. The state that the agent left may be the cause.
            ServerEnded: the server has ended, perhaps because of the agent. It is started again in a fresh attempt.
            ServerLost: the server has ended, and others use it too.
        """
        if self._connection is None or self._connection.shared:
            raise ValueError("a shared server has no state of one episode: remove 'shared'")
        known = {each.name: each for each in (*self._connection.tools, *self._first)}
        if name not in known and not self._connection.changes:
            raise ValueError(f"the server has no tool {name!r}, but {', '.join(known)}")
        if name in known and (wrong := complaint(known[name].input_schema, arguments)) is not None:
            raise ValueError(f"{name}: {wrong}")
        async with self._asking:  # one after the other: calls in flight are witnesses for each other
            try:
                return await self._answer(name, arguments)
            except ToolError as error:
                raise ScoringPrevented(f"{name}: {error}") from None
            except ServerEnded as error:
                if self.settings.url is None:
                    raise
                raise ServerLost(error.message, place=error.place, remedy=error.remedy) from None

    async def _answer(self, name: str, arguments: dict[str, Any]) -> str:
        began = time.monotonic()
        try:
            async with Deadline(max(0.0, self.timeout_s - self._asked_s)):
                return (await self._call(name, arguments)).text
        except TimeoutError:
            await self.check_answers()
            raise ToolError(f"no answer within {self.timeout_s:g} s") from None
        finally:
            self._asked_s += time.monotonic() - began

    async def check_answers(self) -> None:
        """Checks that the server is not frozen."""
        if self._connection is not None:
            await self._connection.check()

    def tools(self) -> Sequence[SchemaTool]:
        """Returns the tools that the server offers now, filtered by the settings."""
        if self._connection is not None and self._listed is not self._connection.tools:
            self._listed = self._connection.tools
            self._offered = [self._tool_prompt(each) for each in self._listed if self._lets(each)]
        return self._offered

    def _lets(self, told: Any) -> bool:
        """Returns True if the settings allow a tool. Excludes tools that require MCP tasks: their calls would fail."""
        include, name = self.settings.include, told.name
        if getattr(getattr(told, "execution", None), "task_support", None) == "required":
            return False
        return (include is None or name in include) and name not in self.settings.exclude

    def _tool_prompt(self, told: Any) -> SchemaTool:
        name = self.settings.prefix + told.name
        return schema_tool(name, told.description or "", told.input_schema, partial(self._call, told.name))

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        assert self._connection is not None
        return result_of(await self._connection.call(name, arguments))


def result_of(said: Any) -> ToolResult:
    """Converts a server's answer for the model: texts, images, and a note for any other content.

    Raises:
        ToolError: the server reports a failed call, or an image is damaged.
    """
    texts, images = [], []
    for part in said.content:
        resource = getattr(part, "resource", None)
        kind = getattr(resource or part, "mime_type", None) or "of no known type"
        data = getattr(part, "data", None) or getattr(resource, "blob", None)
        if data is not None and kind.startswith("image/"):
            images.append(_bytes(data))
        elif data is not None:
            texts.append(f"[{kind}, {len(data) * 3 // 4} bytes, not shown]")
        elif part.type == "resource_link":
            texts.append(f"[{part.name}: {part.uri}]")
        else:
            texts.append(part.text if resource is None else resource.text)
    if not texts and said.structured_content is not None:
        texts.append(json.dumps(said.structured_content, ensure_ascii=False))
    text = "\n".join(texts)
    if said.is_error:
        raise ToolError(text or "the call failed")
    try:
        return ToolResult(text, images=images)
    except ImageRefused as error:
        raise ToolError(f"an image of the server's answer cannot be shown: {error.message}") from None


def _bytes(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ToolError(f"an image of the server's answer is not base64: {error}") from None
