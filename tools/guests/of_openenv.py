"""OpenEnv environments: a class in this process (`env: package.module:Class`), or a server (`url`).

An action with one required text is the model's reply; other actions, and the tools of an MCP environment, are tool
calls. The reward is the sum over steps. SPEC: env or url, args (of the class), resets (list of `reset` arguments, one
per task; default: seeds 0 to `n` - 1), instruction, action (`package.module:Class`, if the class does not declare it),
show (fields of an observation shown to the model), wait_s (timeout for a slot on a full server).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import json
import math
import random
import sys
import time
import typing
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from guest import Away, Model, Played, Row, Spec, Unusable, calls_of, inlined, share, text_of

share("openenv.core.env_server.mcp_environment", "openenv.core.generic_client")

Fields = dict[str, Any]
Result = dict[str, Any]
"""`observation` (Fields), `reward` (float) and `done` (bool)."""
Actions = tuple[list[Fields] | None, str | None]
"""Tools; or the name of the field that the reply fills."""

WAIT_S = 300.0
"""Timeout of an episode for a slot on a full server."""


def tasks(spec: Spec) -> Iterator[Row]:
    """Yields one task per reset. Refuses unusable classes before any episode."""
    if not (spec.get("env") or spec.get("url")):
        raise Unusable("OpenEnv needs spec: {env: package.module:Class}, or {url: http://...}")
    if not spec.get("url"):
        _action_class(spec)
        _refuse_unknown(_object(spec["env"]), spec)
    for index, reset in enumerate(_resets(spec)):
        name = (spec.get("env") or spec["url"]).rpartition(":")[2].strip("/").rpartition("/")[2]
        about = spec.get("instruction") or f"Play {name}."
        yield {"id": f"{name}-{index}", "instruction": about, "data": {"reset": reset}}


def play(spec: Spec, index: int, model: Model) -> Played:
    """Plays one episode; returns the sum of its rewards."""
    return asyncio.run(_play(spec, index, model))


async def _play(spec: Spec, index: int, model: Model) -> Played:
    async with contextlib.AsyncExitStack() as stack:
        reset = _resets(spec)[index]
        if not spec.get("url"):
            _object(spec["env"])  # imports numpy, if used, before seeding
        _draw_from(index)  # else a `reset` without a seed would give each episode of a group another task
        env = await (_Served if spec.get("url") else _Here).open(spec, stack)
        result = await env.reset(reset)
        _draw_from(None)  # reseed for each episode
        if result["done"]:
            raise Unusable(f"the episode is over before its first turn: reset({reset}) says done")
        tools, field = await env.actions()
        messages = [{"role": "user", "content": _shown(result, spec, first=True)}]
        total, last = result["reward"], ""
        while not result["done"]:
            reply = await asyncio.to_thread(model.reply, messages, tools, {"reward": total})
            if reply is None:
                break
            messages.append(reply)
            last = reply.get("content") or last
            calls = list(calls_of(reply))
            if tools and not calls:
                break  # final answer
            steps: list[tuple[str | None, Fields]] = [(id, env.action(name, given)) for id, name, given in calls]
            steps = steps or [(None, {str(field): last})]
            for id, action in steps:
                try:
                    result = await env.step(action)
                    total += result["reward"]
                    said = _shown(result, spec)
                except Refused as error:
                    said = str(error)[:2000]
                answer = {"role": "user", "content": said}
                messages.append(answer if id is None else {"role": "tool", "tool_call_id": id, "content": said})
                if result["done"]:
                    break
        return {"reward": total}, last


def _draw_from(seed: int | None) -> None:
    """Seeds the global generators of `random` and numpy; None: randomly."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)


def _resets(spec: Spec) -> list[Fields]:
    return spec.get("resets") or [{"seed": seed} for seed in range(int(spec.get("n", 1)))]


def _shown(result: Result, spec: Spec, first: bool = False) -> str:
    """Formats an observation: the text of a single field, else JSON without reward and done.

    MCP environments put the output of `reset` into `metadata`, which elsewhere may hold the solution: it is shown only
    without other fields.
    """
    seen = {k: v for k, v in dict(result["observation"]).items() if k not in ("reward", "done") and v is not None}
    about = seen.pop("metadata", None)
    if spec.get("show"):
        seen = {k: v for k, v in seen.items() if k in spec["show"]}
    elif not seen and about and not result["done"]:
        seen = about
    seen = _without_images(_of_tool(seen))
    text = text_of(next(iter(seen.values()))) if len(seen) == 1 else text_of(seen)
    return f"{spec['instruction']}\n\n{text}" if first and spec.get("instruction") else text


def _of_tool(seen: Fields) -> Fields:
    """Unwraps the result of an MCP tool; returns other observations unchanged."""
    if "tool_name" not in seen or not ("result" in seen or "error" in seen):
        return seen
    said = {k: v for k, v in seen.items() if k != "tool_name"}
    if isinstance(error := said.get("error"), dict):
        said["error"] = f"{text_of(error.get('error_type'))}: {error.get('message')}"
    result = said.get("result")
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        said["result"] = "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in result["content"])
    return said


def _without_images(value: Any) -> Any:
    """Replaces images in base64 by `[image]`, because models cannot read them as text."""
    if isinstance(value, dict):
        return {k: _without_images(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_images(each) for each in value]
    if isinstance(value, bytes) or (isinstance(value, str) and len(value) > 200 and value.startswith(IMAGES)):
        return "[image]"
    return value


IMAGES = ("data:image/", "iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR")  # PNG, JPEG, GIF, WebP in base64


def _tool(name: str, about: str | None, schema: Fields) -> Fields:
    return {"type": "function", "function": {"name": name, "description": about or "", "parameters": inlined(schema)}}


def _of_schema(schema: Fields) -> Actions:
    """Returns the tools, or the name of an action's only required field if it is free text, filled by the reply."""
    own = {k: v for k, v in schema.get("properties", {}).items() if k not in ("metadata",)}
    needed = [name for name in schema.get("required", ()) if name in own] or list(own)
    if len(needed) == 1 and _is_text(own[needed[0]]):
        return None, needed[0]
    return [_tool("act", schema.get("description"), {**schema, "properties": own})], None


def _is_text(schema: Fields) -> bool:
    if {"enum", "const", "$ref", "allOf", "oneOf"} & set(schema):
        return False
    kinds = [each.get("type") for each in schema.get("anyOf", [schema])]
    return kinds[:1] in (["string"], [None]) and set(kinds[1:]) <= {"null"}


def _of_mcp(schema: Fields) -> bool:
    """Returns True if an action is a call of an MCP tool, or unspecified, as in MCP environments."""
    calls = schema.get("properties", {}).get("type", {}).get("const") in ("call_tool", "list_tools")
    return calls or schema.get("title") in ("Action", "CallToolAction", "ListToolsAction")


def _mcp_tools(listed: Iterable[Fields]) -> Actions:
    tools = [
        _tool(t["name"], t.get("description"), t.get("input_schema") or t.get("inputSchema") or {}) for t in listed
    ]
    if not tools:
        raise Unusable("the MCP environment offers no tools")
    return tools, None


class Refused(Exception):
    """The model's action is invalid; the error is shown to the model and the episode continues."""


def _result(observation: Fields, reward: Any, done: Any) -> Result:
    total = float(reward or 0.0)
    if not math.isfinite(total):
        raise ValueError(f"the environment's reward is {reward}")
    return {"observation": observation, "reward": total, "done": bool(done)}


class _Env:
    of_mcp = False

    def action(self, name: str, given: Fields) -> Fields:
        return {"type": "call_tool", "tool_name": name, "arguments": given} if self.of_mcp else given


class _Here(_Env):
    """Environment class in this process. Synchronous methods run in a separate thread, as on OpenEnv's servers."""

    thread: ThreadPoolExecutor
    action_class: Any
    env: Any

    @classmethod
    async def open(cls, spec: Spec, stack: contextlib.AsyncExitStack) -> _Here:
        self = cls()
        self.thread = stack.enter_context(ThreadPoolExecutor(1))
        self.action_class = _action_class(spec)
        self.of_mcp = _of_mcp(self.action_class.model_json_schema())
        self.env = await self._run(_object(spec["env"]), **spec.get("args", {}))
        stack.push_async_callback(self._run, getattr(self.env, "close", lambda: None))
        if self.of_mcp and hasattr(self.env, "mcp_session"):
            await stack.enter_async_context(self.env.mcp_session())
        return self

    async def reset(self, given: Fields) -> Result:
        call = _method(self.env, "reset")
        known = inspect.signature(call).parameters
        every = any(each.kind is each.VAR_KEYWORD for each in known.values())
        return self._seen(await self._run(call, **{k: v for k, v in given.items() if every or k in known}))

    async def actions(self) -> Actions:
        if not self.of_mcp:
            return _of_schema(self.action_class.model_json_schema())
        asked = importlib.import_module(self.action_class.__module__).ListToolsAction()
        seen = (await self._run(_method(self.env, "step"), asked)).model_dump()
        return _mcp_tools(seen.get("tools") or ())

    async def step(self, action: Fields) -> Result:
        try:
            made = self.action_class(**action)
        except (ValueError, TypeError) as error:
            raise Refused(f"{type(error).__name__}: {error}") from None
        return self._seen(await self._run(_method(self.env, "step"), made))

    async def _run(self, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        if inspect.iscoroutinefunction(call):
            return await call(*given, **named)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.thread, functools.partial(call, *given, **named))

    def _seen(self, observation: Any) -> Result:
        seen = observation.model_dump()
        return _result(seen, seen.get("reward"), seen.get("done"))


def _method(env: Any, name: str) -> Any:
    """Returns `reset` or `step`, or its async form if the class overrides it."""
    found = getattr(env, f"{name}_async", None)
    base = getattr(found, "__qualname__", "") == f"Environment.{name}_async"
    return getattr(env, name) if found is None or base else found


def _action_class(spec: Spec) -> Any:
    """Returns the action class of `step`; for MCP environments, calls of MCP tools.

    Raises:
        Unusable: the class does not declare it.
    """
    if spec.get("action"):
        return _object(spec["action"])
    env = _object(spec["env"])
    found = _annotated(env)
    vague = found is None or not hasattr(found, "model_json_schema") or _of_mcp(found.model_json_schema())
    if vague and (base := _mcp_base(env)) is not None:
        return importlib.import_module(base.__module__.rpartition(".")[0] + ".mcp_types").CallToolAction
    if vague:
        said = getattr(found, "__name__", found)
        raise Unusable(
            f"{env.__name__}.step does not say which action it takes ({said}): give spec.action: module:Class"
        )
    return found


def _annotated(env: Any) -> Any:
    """Returns the annotation of the first argument of `step`; resolves a type variable by the class's bases."""
    if isinstance(env, type(len)) or not hasattr(env, "step"):
        return None
    try:
        hints = inspect.get_annotations(env.step, eval_str=True)
    except NameError:
        return None
    name = [*inspect.signature(env.step).parameters][1:2]
    found = hints.get(name[0]) if name else None
    if isinstance(found, typing.TypeVar):
        given = [each for base in getattr(env, "__orig_bases__", ()) for each in typing.get_args(base)]
        return given[0] if given else None
    return found


def _mcp_base(env: Any) -> type | None:
    bases = getattr(env, "__mro__", ())
    return next((b for b in bases if b.__name__ == "MCPEnvironment" and ".env_server." in b.__module__), None)


def _refuse_unknown(env: Any, spec: Spec) -> None:
    """Refuses unknown arguments of `reset`: OpenEnv's servers ignore them, which would change the tasks."""
    if not hasattr(env, "reset"):
        return  # a factory function
    known = inspect.signature(_method(env, "reset")).parameters
    if any(each.kind is each.VAR_KEYWORD for each in known.values()):
        return
    strange = {name for reset in spec.get("resets") or () for name in reset if name not in known}
    if strange:
        raise Unusable(f"spec.resets: {env.__name__}.reset takes no {sorted(strange)[0]!r}: {[*known][1:]}")


def _object(reference: str) -> Any:
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        raise Unusable(f"{module} has no {name}") from None
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        raise Unusable(f"there is no module {error.name}: spec.path names the folder that holds it") from None


class _Served(_Env):
    """Environment on a server, over its WebSocket."""

    url: str
    wait_s: float
    client: Any
    connection: Any

    @classmethod
    async def open(cls, spec: Spec, stack: contextlib.AsyncExitStack) -> _Served:
        self = cls()
        self.url, self.wait_s = spec["url"], float(spec.get("wait_s", WAIT_S))
        with self._asked():
            self.client = _client()(base_url=self.url)
            stack.push_async_callback(self._close)
            await self.client.connect()
        return self

    async def reset(self, given: Fields) -> Result:
        """Begins an episode; waits for a slot on a full server."""
        until = time.monotonic() + self.wait_s
        with self._asked():
            while True:
                try:
                    result = self._seen(await self.client.reset(**given))
                    self.connection = getattr(self.client, "_ws", None)
                    return result
                except RuntimeError as error:
                    if "(code: CAPACITY_REACHED)" not in str(error) or time.monotonic() > until:
                        raise
                await self._close()
                await asyncio.sleep(1.0)
                await self.client.connect()

    async def actions(self) -> Actions:
        schema = (await self._json("/schema"))["action"]
        self.of_mcp = _of_mcp(schema)
        if not self.of_mcp:
            return _of_schema(schema)
        try:
            with self._asked():
                return _mcp_tools((await self.client.step({"type": "list_tools"})).observation["tools"])
        except Refused:  # the server accepts only tool calls as actions
            listed = await self._json("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
        with self._asked():
            return _mcp_tools(listed["result"]["tools"])

    async def step(self, action: Fields) -> Result:
        """Runs a step. Raises if the client reconnected, because it would get another environment."""
        with self._asked():
            result = self._seen(await self.client.step(action))
            if getattr(self.client, "_ws", None) is not self.connection:
                raise ConnectionError("the connection broke off, and the episode with it")
            return result

    async def _json(self, path: str, body: Fields | None = None) -> Any:
        with self._asked():
            return await asyncio.to_thread(self._http, path, body)

    def _http(self, path: str, body: Fields | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url.rstrip("/") + path, data, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request) as said:
            return json.loads(said.read())

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """Converts errors to `Away`, a server failure, including invalid answers; invalid actions are `Refused`."""
        try:
            yield
        except (Refused, Unusable, Away):
            raise
        except Exception as error:
            if str(error).endswith("(code: VALIDATION_ERROR)"):  # the protocol's code for an invalid action
                raise Refused("\n".join([str(error), *self._faults()])) from None
            said = f"the OpenEnv server {self.url} failed: {type(error).__name__}: {error}"
            raise Away(said) from None

    def _faults(self) -> Iterator[str]:
        """Yields the invalid fields of the action."""
        for each in getattr(self.client, "error", {}).get("errors") or ():
            yield f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg')}"

    def _seen(self, result: Any) -> Result:
        if not isinstance(result.observation, dict):
            raise ValueError(f"it answered {result.observation!r:.100}")
        return _result(result.observation, result.reward, result.done)

    async def _close(self) -> None:
        with contextlib.suppress(Exception):
            await self.client.disconnect()


def _client() -> Any:
    """Returns OpenEnv's client, extended: rejects answers without an observation, keeps the details of errors."""
    from openenv import GenericEnvClient

    class Client(GenericEnvClient):  # type: ignore[misc]  # the package is not there when types are checked
        async def _receive(self) -> Any:
            said = await super()._receive()
            data, failed = said.get("data"), said.get("type") == "error"
            if not isinstance(data, dict) or not (failed or "observation" in data):
                raise ValueError(f"it answered {said!r:.100}")
            self.error = data if failed else {}
            return said

    return Client
