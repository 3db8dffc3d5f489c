"""Tools, user and reward of a task of recipe NAME: `TASK=3 SCORE_SECRET=... PLAY_SECRET=... python server.py`.

An agent plays the task over MCP, at /mcp. /score is for the verifier and /play for the solution: each has a secret.
"""

import argparse
import base64
import functools
import hmac
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import CallToolResult, ImageContent, ListToolsResult, TextContent, Tool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agentrl import Say
from agentrl.api.from_outside import Driven, Observed
from agentrl.engines.scripted import start_script
from agentrl.registry.references import load_object
from agentrl.types.episode import MAIN
from agentrl.types.errors import AgentRLError
from agentrl.types.parts.content import parts_of
from agentrl.types.task import Message

RECIPE = Path(__file__).parent / "recipe" / "FILE"
OVERRIDES: list[str] = []
SHOW, REPLY = "show_task", "reply"
SHOWS = "Shows how the task begins."
REPLIES = "Says something in place of a call. Where nothing answers it, it is the final answer, and ends the task."
ENDED = "The task has ended."


class Play:
    """The one episode of this server. It begins when somebody first looks, and a lock lets one turn pass at a time."""

    def __init__(self, position: int) -> None:
        self.driven, self.position = Driven(RECIPE, OVERRIDES), position
        self.session, self.lock = self.driven.session(), threading.Lock()
        self._opening: Observed | None = None
        self._seen: Observed | None = None

    @property
    def opening(self) -> Observed:
        """The first observation."""
        if self._opening is None:
            self._opening = self.session.reset(self.position)
        return self._opening

    @property
    def seen(self) -> Observed:
        """The last observation."""
        return self._seen or self.opening

    def tools(self) -> list[dict[str, Any]]:
        """Returns the definitions of the tools that can be called now."""
        with self.lock:
            return [tool["function"] for tool in self.seen.tools]

    def show(self) -> list[Message]:
        """Returns the messages with which the episode opened."""
        with self.lock:
            return self.opening.messages

    def step(self, said: Say) -> list[Message]:
        """Plays a turn. Returns the messages that answer it."""
        with self.lock:
            if self.seen.done:
                return [{"role": "user", "content": ENDED}]
            self._seen = self.session.step(said)
            return [*self._seen.messages, *([{"role": "user", "content": ENDED}] if self._seen.done else [])]

    def play(self, name: str) -> None:
        """Plays a script of the recipe to its end."""
        recipe, messages = self.driven.recipe, [*self.show()]
        script = start_script(
            load_object(recipe.scripts[name], recipe.base), self.driven.parts.tasks.at(self.position), 0,
            tools=self.seen.tools, messages=messages, context=MAIN,
        )  # fmt: skip
        said = next(script, None)
        while said is not None:
            seen = self.step(said)
            if self.seen.done:
                return
            messages += [{"role": "assistant", "content": said.text}, *seen]
            try:
                said = script.send(seen)
            except StopIteration:
                return

    def score(self) -> dict[str, Any]:
        """Returns the reward. An agent that is gone replies nothing, until the episode ends.

        Raises:
            AgentRLError: the environment broke, or nothing scores the episode.
        """
        while not self.seen.done:
            self.step(Say(""))
        episode = self.seen.episode
        if episode is None or episode.reward is None:
            raise AgentRLError("the episode has no reward", place=RECIPE.name)
        return {"reward": self.seen.reward, "status": episode.status, "components": dict(episode.components)}

    def content(self, messages: list[Message]) -> list[Any]:
        """Returns messages as content of MCP."""
        return [self._part(part) for message in messages for part in parts_of(message["content"])]

    def _part(self, part: dict[str, Any]) -> Any:
        if part["type"] == "text":
            return TextContent(type="text", text=part["text"])
        data = base64.b64encode(self.session.image(part)).decode()
        return ImageContent(type="image", data=data, mime_type=f"image/{part['format']}")


def mcp_server(play: Play) -> Any:
    """Makes the server that an agent calls."""

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        tools = await anyio.to_thread.run_sync(play.tools)
        own = [
            Tool(name=each["name"], description=each.get("description"), input_schema=each["parameters"])
            for each in tools
        ]
        text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        own.append(Tool(name=SHOW, description=SHOWS, input_schema={"type": "object", "properties": {}}))
        return ListToolsResult(tools=[*own, Tool(name=REPLY, description=REPLIES, input_schema=text)])

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        given = params.arguments or {}
        said = Say(str(given.get("text", ""))) if params.name == REPLY else Say(calls=[(params.name, given)])
        does = play.show if params.name == SHOW else functools.partial(play.step, said)
        try:
            seen = await anyio.to_thread.run_sync(does)
        except AgentRLError as error:
            return CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True)
        return CallToolResult(content=play.content(seen))

    return Server("NAME", on_list_tools=list_tools, on_call_tool=call_tool)


def make_app(play: Play, secrets: Mapping[str, str], host: str) -> Any:
    """Makes the application: MCP, and what needs a secret."""

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def score(request: Request) -> JSONResponse:
        return await guarded(request, "SCORE_SECRET", play.score)

    async def solve(request: Request) -> JSONResponse:
        return await guarded(request, "PLAY_SECRET", lambda: play.play("oracle"))

    async def guarded(request: Request, secret: str, does: Any) -> JSONResponse:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {secrets[secret]}".encode()):
            return JSONResponse({"error": "the secret is wrong"}, status_code=403)
        try:
            return JSONResponse(await anyio.to_thread.run_sync(does))
        except AgentRLError as error:  # the environment broke: no reward, which is not a reward of 0
            return JSONResponse({"error": str(error)}, status_code=500)

    routes = [
        Route("/health", health), Route("/score", score, methods=["POST"]), Route("/play", solve, methods=["POST"])
    ]  # fmt: skip
    names = [f"{name}:*" for name in ("127.0.0.1", "localhost", "recipe")]
    return mcp_server(play).streamable_http_app(
        host=host, custom_starlette_routes=routes, transport_security=TransportSecuritySettings(allowed_hosts=names)
    )


def main(host: str, port: int) -> None:
    """Serves until interrupted."""
    secrets = {name: os.environ.get(name, "") for name in ("SCORE_SECRET", "PLAY_SECRET")}
    task = os.environ.get("TASK", "")
    if not all(secrets.values()) or not task.isdecimal():
        sys.exit("set SCORE_SECRET, PLAY_SECRET, and TASK to the position of a task")
    play = Play(int(task))
    try:
        uvicorn.run(make_app(play, secrets, host), host=host, port=port)
    finally:
        play.driven.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0: reachable from outside, as a container needs it")
    parser.add_argument("--port", type=int, default=8000)
    main(**vars(parser.parse_args()))
