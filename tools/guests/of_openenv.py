"""OpenEnv: an environment class in this process (`env: package.module:Class`), or a server (`url`).

An action with one required field is the model's text; one with more, and the tools of an MCP environment, are tool
calls. The rewards of the steps add up. SPEC: env or url, args (of the class), resets (a list of arguments of `reset`,
a task each; default: seeds 0 to `n` - 1), instruction, action (`package.module:Class`, where the class has no server).
"""

import asyncio
import contextlib
import importlib
import inspect
import json
import urllib.request

from guest import Away, Unusable, calls_of, text_of


def tasks(spec):
    """One for each reset."""
    if not (spec.get("env") or spec.get("url")):
        raise Unusable("OpenEnv needs spec: {env: package.module:Class}, or {url: http://...}")
    for index, reset in enumerate(_resets(spec)):
        name = (spec.get("env") or spec["url"]).rpartition(":")[2].strip("/").rpartition("/")[2]
        about = spec.get("instruction") or f"Play {name}."
        yield {"id": f"{name}-{index}", "instruction": about, "data": {"reset": reset}}


def play(spec, index, model):
    """Plays one episode; the sum of its rewards."""
    return asyncio.run(_play(spec, index, model))


async def _play(spec, index, model):
    env = await (_Served if spec.get("url") else _Here).open(spec)
    try:
        result = await env.reset(_resets(spec)[index])
        tools, field = await env.actions()
        messages = [{"role": "user", "content": _shown(result, spec, first=True)}]
        total, last = result["reward"], ""
        while not result["done"]:
            reply = await asyncio.to_thread(model.reply, messages, tools)
            if reply is None:
                break
            messages.append(reply)
            last = reply.get("content") or last
            calls = list(calls_of(reply))
            if tools and not calls:
                break  # the final answer
            steps = [(id, env.action(name, given)) for id, name, given in calls] or [(None, {field: last})]
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
    finally:
        await env.close()


def _resets(spec):
    return spec.get("resets") or [{"seed": seed} for seed in range(int(spec.get("n", 1)))]


def _shown(result, spec, first=False):
    """The observation: its one text where it has one, else JSON without what the loop itself reads."""
    seen = {
        k: v
        for k, v in dict(result["observation"]).items()
        if k not in ("reward", "done", "metadata") and v is not None
    }
    text = text_of(next(iter(seen.values()))) if len(seen) == 1 else text_of(seen)
    return f"{spec['instruction']}\n\n{text}" if first and spec.get("instruction") else text


def _tool(name, about, schema):
    return {"type": "function", "function": {"name": name, "description": about or "", "parameters": schema}}


def _of_schema(schema):
    """Tools, or the name of the only field that an action needs, which is then the model's text."""
    own = {k: v for k, v in schema.get("properties", {}).items() if k not in ("metadata",)}
    needed = [name for name in schema.get("required", ()) if name in own] or list(own)
    if len(needed) == 1 and own[needed[0]].get("type", "string") == "string":
        return None, needed[0]
    return [_tool("act", schema.get("description"), {**schema, "properties": own})], None


class Refused(Exception):
    """What the model said is no action: it is told why, and the episode goes on."""


def _result(observation, reward, done):
    return {"observation": observation, "reward": float(reward or 0.0), "done": bool(done)}


class _Env:
    of_mcp = False

    def action(self, name, given):
        return {"type": "call_tool", "tool_name": name, "arguments": given} if self.of_mcp else given


class _Here(_Env):
    """An environment class in this process."""

    @classmethod
    async def open(cls, spec):
        self = cls()
        env = _object(spec["env"])
        self.env = env(**spec.get("args", {}))
        self.action_class = _object(spec["action"]) if spec.get("action") else _action_class(env)
        return self

    async def reset(self, given):
        known = inspect.signature(self.env.reset).parameters
        every = any(each.kind is each.VAR_KEYWORD for each in known.values())
        return self._seen(self.env.reset(**{k: v for k, v in given.items() if every or k in known}))

    async def actions(self):
        return _of_schema(self.action_class.model_json_schema())

    async def step(self, action):
        try:
            made = self.action_class(**action)
        except (ValueError, TypeError) as error:
            raise Refused(f"{type(error).__name__}: {error}") from None
        return self._seen(self.env.step(made))

    def _seen(self, observation):
        seen = observation.model_dump()
        return _result(seen, seen.get("reward"), seen.get("done"))

    async def close(self):
        getattr(self.env, "close", lambda: None)()


def _action_class(env):
    hints = inspect.get_annotations(env.step, eval_str=True) if not isinstance(env, type(len)) else {}
    found = hints.get("action")
    if found is None or not hasattr(found, "model_json_schema"):
        raise Unusable(f"{env.__name__}.step does not say which action it takes: give spec.action: module:Class")
    return found


def _object(reference):
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        raise Unusable(f"{module} has no {name}") from None


class _Served(_Env):
    """A server, over its WebSocket."""

    @classmethod
    async def open(cls, spec):
        from openenv import GenericEnvClient

        self = cls()
        self.url = spec["url"]
        with self._asked():
            self.client = await GenericEnvClient(base_url=self.url).connect()
        return self

    async def reset(self, given):
        with self._asked():
            return self._seen(await self.client.reset(**given))

    async def actions(self):
        with self._asked():
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"{self.url.rstrip('/')}/schema") as said:
                schema = json.loads(said.read())["action"]
            if schema.get("title") not in ("Action", "CallToolAction", "ListToolsAction"):
                return _of_schema(schema)
            self.of_mcp = True
            listed = (await self.client.step({"type": "list_tools"})).observation["tools"]
            return [
                _tool(t["name"], t.get("description"), t.get("input_schema") or t.get("inputSchema") or {})
                for t in listed
            ], None

    async def step(self, action):
        with self._asked():
            return self._seen(await self.client.step(action))

    @contextlib.contextmanager
    def _asked(self):
        """Whatever fails here is the server's, an answer that is none included; only a wrong action is the model's."""
        try:
            yield
        except Exception as error:
            if str(error).endswith("(code: VALIDATION_ERROR)"):  # the protocol's name for an action that is none
                raise Refused(str(error)) from None
            said = f"the OpenEnv server {self.url} failed: {type(error).__name__}: {error}"
            raise Away(said) from None

    def _seen(self, result):
        if not isinstance(result.observation, dict):
            raise ValueError(f"it answered {result.observation!r:.100}")
        return _result(result.observation, result.reward, result.done)

    async def close(self):
        await self.client.disconnect()
