"""Settings of the `mcp` tool."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentrl.types.errors import RecipeError

_PLACE = re.compile(r"\{(?:data\.\w+|instruction|id)\}")
"""Placeholders allowed in the command of an agent program but not of a server."""


class McpSettings(BaseModel):
    """Settings of the `mcp` tool: the server and the selection of its tools."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: tuple[str, ...] | None = Field(None, min_length=1, description="Starts a server that speaks over stdio.")
    url: str | None = Field(None, pattern=r"^https?://", description="Of a server that speaks streamable HTTP.")
    env: dict[str, str] = Field({}, description="Environment of the command; $NAME is a variable of this process.")
    headers: dict[str, str] = Field({}, description="Sent to the URL; $NAME is a variable of this process.")
    include: tuple[str, ...] | None = Field(None, description="The tools that are offered; default: all.")
    exclude: tuple[str, ...] = Field((), description="Tools that are not offered.")
    prefix: str = Field("", description="Stands before the name of each tool.")
    timeout_s: float = Field(60.0, gt=0, description="Seconds for the start, and for each call.")
    shared: bool = Field(False, description="One connection for all episodes, not one for each.")
    max_bytes: int = Field(10_000_000, gt=0, description="Bytes of one message of the server.")

    @model_validator(mode="after")
    def _one_server(self) -> McpSettings:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either command: [program, argument, ...] or url: http://...")
        texts = [*(self.command or ()), self.url or "", *self.env.values(), *self.headers.values()]
        if (place := next((found[0] for text in texts if (found := _PLACE.search(text))), None)) is not None:
            raise ValueError(
                f"{place} is not filled in here: the server is told nothing of the task; a class of your own that "
                "derives from agentrl.tools.builtin.mcp.tool.Mcp can start it with what its `open` is given"
            )
        if (self.env and self.url) or (self.headers and self.command):
            raise ValueError("env belongs to command, and headers to url")
        return self

    @property
    def server(self) -> str:
        """Label of the server in messages."""
        return f"MCP server {self.url or ' '.join(self.command or ())}"


def filled(given: Mapping[str, str], key: str) -> dict[str, str]:
    """Replaces `$NAME` by the environment variable of this process, so that recipes contain no secrets.

    Raises:
        RecipeError: the variable is not set.
    """
    names = {name: value[1:] for name, value in given.items() if value.startswith("$")}
    missing = next((name for name in names.values() if name not in os.environ), None)
    if missing is not None:
        raise RecipeError(f"the variable {missing} is not set", place=f"mcp: {key}", remedy=f"export {missing}=...")
    return {name: os.environ[names[name]] if name in names else value for name, value in given.items()}
