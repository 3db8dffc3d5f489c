"""Engines that read the live conversation, where agents rewrite it: what they are sent, and under which ids."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.rollout import rollout
from agentrl.chat.formats.native_calls import NO_RESULT
from agentrl.store.run_dir import RunDir

from .http_server import serving

CODE = """
import copy
from agentrl import Agent, Say, Tool, tool

class Box(Tool):
    def __init__(self): self.looked = 0
    @tool
    async def look(self, where: str = "") -> str:
        "Look."
        self.looked += 1
        return f"result {self.looked} of {where}"

SENT = []

def oracle(task, rng):
    for _ in range(4):
        SENT.append([message["content"] for message in (yield Say(calls=[("look", {"where": "here"})]))])
    yield Say("done")

class Recent(Agent):
    "Keeps the task and the newest round, as objects, as copies, or with a note before it."
    def __init__(self, how: str = "same"): self.how = how
    async def run(self, session):
        while session.outcome is None:
            reply = await session.generate()
            if not reply.calls and not reply.errors:
                return session.finish("answer", "done")
            await session.run_tools(reply)
            said = [k for k, message in enumerate(session.messages) if message["role"] == "assistant"]
            kept = [session.messages[0], *session.messages[said[-1]:]]
            if self.how == "copies":
                kept = copy.deepcopy(kept)
            if self.how == "note":
                kept.insert(1, {"role": "user", "content": "Earlier turns were dropped."})
            if self.how == "results":
                kept = [m for m in session.messages if m["role"] != "tool" or m is session.messages[-1]]
            if self.how == "edited":
                kept = [{**m, "content": "So."} if m["role"] == "assistant" else m for m in kept]
            session.rewrite(kept)

def one(episode): return 1.0
"""
HOWS = ["same", "copies", "note", "results", "edited"]


def recipe(folder: Path, agent: Any, **more: Any) -> Path:
    (folder / "task.py").write_text(CODE)
    (folder / "tasks.jsonl").write_text('{"n": 1}\n')
    says = {"name": "x", "tasks": {"jsonl": "tasks.jsonl", "prompt": "TASK {n}"}, "agent": agent | {"max_turns": 6}}
    says |= {"tools": ["./task.py:Box"], "rewards": {"one": "./task.py:one"}, "scripts": {"oracle": "./task.py:oracle"}}
    (folder / "recipe.yaml").write_text(json.dumps(says | more))
    return folder


def call(id: str, name: str = "look", arguments: str = '{"where": "here"}') -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def asked(folder: Path, agent: Any, replies: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """The messages of each request of an episode in which the API says `replies`, and then that it is done."""
    seen: list[list[dict[str, Any]]] = []

    async def api(path: str, body: Any) -> Any:
        if path.endswith("/models"):
            return {"data": []}
        seen.append(body["messages"])
        message: dict[str, Any] = {"content": "done"}
        if len(seen) <= len(replies):
            message = {"content": None, "tool_calls": replies[len(seen) - 1]}
        return {"choices": [{"message": message, "finish_reason": "tool_calls"}]}

    async with serving(api) as url:
        recipe(folder, agent, engine={"use": "openai", "urls": [url], "model": "m"})
        await asyncio.to_thread(rollout, folder, 1, out=folder / "run", reporters=())
    return seen


def results(messages: list[dict[str, Any]]) -> dict[str, str]:
    """The result of each call of a request, by its id. Every call has one, right behind its reply."""
    found: dict[str, str] = {}
    answered = 0
    for at, message in enumerate(messages):
        calls = [each["id"] for each in message.get("tool_calls", ())]
        behind = messages[at + 1 : at + 1 + len(calls)]
        assert [each.get("tool_call_id") for each in behind] == calls
        found |= {each["tool_call_id"]: each["content"] for each in behind}
        answered += len(behind)
    assert answered == sum("tool_call_id" in message for message in messages)
    return found


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("ids", [["a", "b", "c"], ["call_0"] * 3])
async def test_an_api_sees_the_newest_result_of_a_rewritten_context(tmp_path: Path, how: str, ids: list[str]) -> None:
    seen = await asked(tmp_path, {"use": "./task.py:Recent", "how": how}, [[call(id)] for id in ids])
    assert len(seen) == 4
    for turn, messages in enumerate(seen[1:], 1):
        newest = f"result {turn} of here"
        shown = results(messages)
        if how == "edited":  # What an agent has changed is no longer the API's own.
            assert not shown
            assert [m["content"] for m in messages if m["role"] == "assistant"] == ["So."]
            assert messages[-1] == {"role": "user", "content": newest}
            continue
        assert shown[ids[turn - 1]] == newest
        assert messages[0]["content"] == "TASK 1"
        if how == "results":
            assert [m["content"] for m in messages if m["role"] == "tool"] == [NO_RESULT] * (turn - 1) + [newest]
        else:
            assert len([m for m in messages if m["role"] == "assistant"]) == 1


async def test_an_api_under_recent_agent(tmp_path: Path) -> None:
    seen = await asked(tmp_path, {"use": "recent_agent"}, [[call(id)] for id in "abcd"])
    assert [results(messages) for messages in seen[2:]] == [
        {"b": "result 2 of here"},
        {"c": "result 3 of here"},
        {"d": "result 4 of here"},
    ]


@pytest.mark.parametrize(
    "calls",
    [
        [call("A"), call("B", "peek")],
        [call("A"), call("B", arguments='{"where": ')],
        [call("B", arguments="[1]"), call("A")],
        [call("B", "peek"), call("A"), call("C", arguments="null")],
    ],
)
async def test_results_of_an_api_go_by_the_ids_of_its_calls(tmp_path: Path, calls: list[dict[str, Any]]) -> None:
    seen = await asked(tmp_path, {"use": "tool_agent"}, [calls])
    shown = results(seen[1])
    assert shown.pop("A") == "result 1 of here"
    assert all(text.startswith("Error: ") for text in shown.values())
    with RunDir.read(tmp_path / "run") as run:
        (episode,) = run.episodes()
    assert {record.id for record in episode.turns[0].calls} == {each["id"] for each in calls}


async def test_every_call_of_an_api_is_answered_however_many_are_broken(tmp_path: Path) -> None:
    seen = await asked(tmp_path, {"use": "tool_agent"}, [[call(f"K{k}", arguments='{"where": ') for k in range(6)]])
    shown = results(seen[1])
    assert list(shown) == [f"K{k}" for k in range(6)]
    assert all(text.startswith("Error: the tool call cannot be read") for text in shown.values())


async def test_ids_that_an_api_gives_twice_or_not_at_all_are_made_different(tmp_path: Path) -> None:
    seen = await asked(tmp_path, {"use": "tool_agent"}, [[call("same"), call("same"), call(""), call("call_1")]])
    assert list(results(seen[1]).values()) == [f"result {k} of here" for k in (1, 2, 3, 4)]


def sent(folder: Path, agent: Any) -> list[list[str]]:
    """What a script was sent, turn by turn."""
    code = recipe(folder, agent) / "task.py"
    code.write_text(
        code.read_text() + f"\nimport json, pathlib\ndef one(episode):\n    "
        f"pathlib.Path({str(folder / 'sent.json')!r}).write_text(json.dumps(SENT))\n    return 1.0\n"
    )
    rollout(folder, 1, script="oracle", out=folder / "run", reporters=())
    found: list[list[str]] = json.loads((folder / "sent.json").read_text())
    return found


@pytest.mark.parametrize("how", HOWS)
def test_a_script_is_sent_every_message_once(tmp_path: Path, how: str) -> None:
    got = sent(tmp_path, {"use": "./task.py:Recent", "how": how})
    assert [said[-1] for said in got] == [f"result {k} of here" for k in (1, 2, 3, 4)]
    others = [text for said in got for text in said[:-1]]
    assert others == {"note": ["Earlier turns were dropped."], "edited": ["So."]}.get(how, [])


@pytest.mark.parametrize("agent", ["tool_agent", "recent_agent"])
def test_a_script_under_the_agents_of_the_framework(tmp_path: Path, agent: str) -> None:
    assert sent(tmp_path, {"use": agent}) == [[f"result {k} of here"] for k in (1, 2, 3, 4)]
