"""Episodes over an OpenAI-compatible API: a real HTTP server that speaks its form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.rollout import rollout
from agentrl.api.train import train
from agentrl.config.loader import load_recipe
from agentrl.engines.http import HttpClient
from agentrl.engines.replicas import Replicas
from agentrl.preflight.plan import plan
from agentrl.rollouts.builder import build
from agentrl.rollouts.engines import open_engine
from agentrl.rollouts.summary import summary
from agentrl.store.check import check
from agentrl.store.run_dir import RunDir
from agentrl.types.engine import ContextOverflow, Sampling
from agentrl.types.errors import EngineError, RecipeError
from agentrl.types.task import Task
from tests.counting import CODE, RECIPE

from .http_server import serving, status


@pytest.fixture
def counting(tmp_path: Path) -> Path:
    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


class Api:
    """Counts on by one until it may stop; remembers what it was sent."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, path: str, body: Any) -> Any:
        if path == "/v1/models":
            return {"data": [{"id": "clever"}]}
        assert path == "/v1/chat/completions"
        self.asked.append(body)
        if "tools" in body:
            call = {"id": f"call_{len(self.asked)}", "type": "function", "function": {"name": "add", "arguments": "{}"}}
            message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
        else:
            message = {"role": "assistant", "content": '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'}
        usage = {"prompt_tokens": 1000, "completion_tokens": 100}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


def settings(url: str, *more: str) -> list[str]:
    given = {"use": "openai", "urls": [f"{url}/v1"], "model": "clever", "input_price": 2.0, "output_price": 10.0}
    return [f"engine={json.dumps(given)}", *more]


@pytest.mark.parametrize("native", [True, False])
async def test_an_api_plays_with_tools_and_tokens_and_cost_are_recorded(counting: Path, native: bool) -> None:
    import asyncio

    api = Api()
    async with serving(api) as url:
        overrides = settings(url, f"engine.native_tools={str(native).lower()}")
        path = (await asyncio.to_thread(rollout, counting, 5, overrides=overrides, out=counting / "run")).path
    with RunDir.read(path) as run:
        episodes = sorted(run.episodes(), key=lambda e: e.id)
    assert [len(e.turns) for e in episodes] == [1, 2, 3, 4, 5]
    assert all(e.reward == 1.0 and not e.trainable for e in episodes)
    usage = episodes[0].turns[0].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (1000, 100)
    assert usage.cost == pytest.approx(0.003)
    assert check(path).ok
    metrics = summary(episodes)
    assert (metrics["prompt_tokens"], metrics["completion_tokens"]) == (15_000, 1500)
    assert metrics["cost"] == pytest.approx(0.045)
    longest = max(api.asked, key=lambda body: len(body["messages"]))
    roles = [message["role"] for message in longest["messages"]]
    if native:
        assert roles == ["user", *["assistant", "tool"] * 4]
        calls = [m["tool_calls"][0]["id"] for m in longest["messages"] if m["role"] == "assistant"]
        assert calls == [m["tool_call_id"] for m in longest["messages"] if m["role"] == "tool"]
        assert longest["tools"][0]["function"]["name"] == "add"
    else:
        assert roles == ["system", "user", *["assistant", "user"] * 4]
        assert "add" in longest["messages"][0]["content"]
        assert longest["messages"][3]["content"] == "<tool_response>\n1\n</tool_response>"


async def test_training_refuses_it_by_name(counting: Path) -> None:
    import asyncio

    api = Api()
    async with serving(api) as url:
        recipe = load_recipe(str(counting), [*settings(url), "model={path: nowhere}", "train={iterations: 1}"])
        with pytest.raises(RecipeError, match=r"engine\.use is openai, which gives text only"):
            plan(recipe)
        path = (await asyncio.to_thread(rollout, counting, 2, overrides=settings(url), out=counting / "run")).path
    with pytest.raises(RecipeError, match="its tokens have no log-probabilities to train on"):
        train(
            counting,
            overrides=["model={path: nowhere}", "train={iterations: 1}"],
            out=counting / "t",
            replay=path,
        )


async def test_what_the_api_refuses_is_named(counting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(path: str, body: Any) -> Any:
        if path == "/v1/models":
            return status(401, "bad key")
        return status(400, "This model's maximum context length is 8192 tokens")

    async with serving(refuses) as url:
        engine, _ = open_engine(build(load_recipe(str(counting), settings(url))))
        with pytest.raises(EngineError, match=r"bad key\n  -> check \$OPENAI_API_KEY"):
            await engine.start()
        engine.begin_session("e", Task.of("t", "go"), [{"role": "user", "content": "go"}], 0)
        with pytest.raises(ContextOverflow):
            await engine.generate([1], Sampling(), "e")
        await engine.close()
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(RecipeError, match="OPENAI_API_KEY is not set"):
        open_engine(build(load_recipe(str(counting), settings("https://api.example.org"))))


DESK = """
from agentrl import Environment, Task

def tasks():
    for k, name in enumerate(["left", "right"]):
        yield Task.of(name, "Go.", tools=[{"name": name, "description": f"Go {name}."}])

class Desk(Environment):
    def open(self, task, sandbox):
        self.went, self.rounds = [], ["Go on."]
    def call_tool(self, name, arguments):
        self.went.append(name)
    def respond(self, reply):
        return self.rounds.pop() if self.rounds else None

def went(task, env):
    return float(env.went == [task.id])
"""


@pytest.mark.parametrize("form", ["native", "hermes", "tags"])
async def test_an_api_is_shown_the_tools_of_each_task(tmp_path: Path, form: str) -> None:
    import asyncio

    native = form == "native"

    asked: list[dict[str, Any]] = []

    async def api(path: str, body: Any) -> Any:
        if path == "/v1/models":
            return {"data": [{"id": "clever"}]}
        asked.append(body)
        said = sum(message["role"] == "assistant" for message in body["messages"])
        shown = json.dumps([body.get("tools"), body["messages"][0]])
        name = "left" if "Go left." in shown else "right"
        message: dict[str, Any] = {"role": "assistant", "content": "So."}
        if said == 1 and native:
            function = {"name": name, "arguments": "{}"}
            message |= {"tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
        elif said == 1 and form == "tags":
            assert body["stop"] == [f"</{name}>"]
            message["content"] = f"<{name}>{{}}"  # the API cuts the stop string off
        elif said == 1:
            message["content"] = f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'
        return {"choices": [{"message": message, "finish_reason": "stop"}]}

    (tmp_path / "task.py").write_text(DESK)
    recipe = "name: desk\ntasks: ./task.py:tasks\ntools: [./task.py:Desk]\nrewards: {went: ./task.py:went}\n"
    agent = f"agent: {{format: {'tags' if form == 'tags' else 'hermes'}}}\n"
    (tmp_path / "recipe.yaml").write_text(recipe + agent)
    async with serving(api) as url:
        overrides = settings(url, f"engine.native_tools={str(native).lower()}")
        path = (await asyncio.to_thread(rollout, tmp_path, 4, overrides=overrides, out=tmp_path / "run")).path
    with RunDir.read(path) as run:
        assert [(e.reward, len(e.turns)) for e in run.episodes()] == [(1.0, 3)] * 4
    assert check(path).ok
    for body in asked:
        names = [tool["function"]["name"] for tool in body.get("tools") or []]
        assert names in ([["left"], ["right"]] if native else [[]])


@pytest.mark.parametrize("health", [401, 403, 404, 405])
async def test_an_api_that_was_busy_once_is_asked_again_whatever_it_says_of_its_health(health: int) -> None:
    posts: list[str] = []

    async def api(path: str, body: Any) -> Any:
        if path == "/health":
            return status(health, "Missing Authentication Token")
        posts.append(path)
        return status(429, "slow down") if len(posts) == 1 else {"choices": []}

    async with serving(api) as url:
        client = HttpClient(timeout_s=30.0)
        replicas = Replicas([url], client, retries=1)
        replicas.all[0].record_failure = lambda: setattr(replicas.all[0], "failures", 1)  # type: ignore[method-assign]
        assert await replicas.post("/chat/completions", {}, dict) == {"choices": []}
        await client.close()


@pytest.mark.parametrize("health", [500, 501])
async def test_a_server_that_reports_a_failure_is_not_asked(health: int) -> None:
    async def api(path: str, body: Any) -> Any:
        return status(health, "broken")

    async with serving(api) as url:
        client = HttpClient(timeout_s=30.0)
        replicas = Replicas([url], client, retries=1)
        with pytest.raises(EngineError):
            await replicas.check_health(replicas.all[0])
        await client.close()


@pytest.mark.parametrize(
    ("changes", "usage", "told"),
    [
        ({"finish_reason": "error"}, {}, "'error': it broke off"),
        ({"finish_reason": "content_filter"}, {}, "'content_filter'"),
        ({}, {"prompt_tokens": -5}, "usage"),
        ({}, {"completion_tokens": -5}, "usage"),
    ],
)
@pytest.mark.parametrize("text", ["", "half of"])
async def test_what_the_model_did_not_finish_is_no_reply_of_it(
    counting: Path, changes: dict[str, Any], usage: dict[str, Any], told: str, text: str
) -> None:
    import asyncio

    async def api(path: str, body: Any) -> Any:
        if path == "/v1/models":
            return {"data": []}
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {"choices": [choice | changes], "usage": usage}

    async with serving(api) as url:
        more = settings(url, "limits={backoff_s: 0, retries: 0}")
        done = await asyncio.to_thread(rollout, counting, 2, overrides=more, out=counting / "run")
    with RunDir.read(done.path) as run:
        found = [*run.episodes()]
    assert {(each.status, each.reward) for each in found} == {("infra_error", None)}
    assert all(each.error is not None and told in each.error.message for each in found)
    assert check(done.path).ok
