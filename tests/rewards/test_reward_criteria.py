"""Judges that give a verdict on each criterion, reward models, and checked facts, against a real HTTP server."""

from __future__ import annotations

import inspect
import json
import math
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agentrl.rewards import RewardSet
from agentrl.rewards.functions.judges.criteria import saturated
from agentrl.rewards.functions.judges.facts import supported_facts
from agentrl.rewards.functions.judges.scalar import number_in
from agentrl.types.errors import AgentRLError, EngineError, TaskError
from agentrl.types.task import Task
from tests.engines.http_server import serving, status
from tests.rewards.make import make_episode, turn

TASK = Task.of(
    "t", "Capital of France?", answer="Paris", rubric=["names a city", {"text": "is rude", "weight": -1.0}],
    knowledge=["Paris is large.", "France is in Europe."],
)  # fmt: skip


class Server:
    """Keeps what it is asked; `reply` answers a prompt."""

    url: str

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.reply: Callable[[str], Any] = lambda prompt: ""

    async def answer(self, path: str, body: Any) -> Any:
        self.asked.append(body)
        found = self.reply(body["messages"][-1]["content"])
        return {"choices": [{"message": {"content": found}}]} if isinstance(found, str) else found


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    async with serving(found.answer) as url:
        found.url = url
        yield found


async def scored(name: str, answer: str | None = "Paris", text: str = "", **settings: Any) -> tuple[Any, str]:
    rewards = RewardSet.from_recipe({"it": {"use": name, **settings}})
    score = await rewards.score(TASK, make_episode(TASK, turn(text=text), answer=answer))
    return score.components["it"], score.notes.get("it", "")


@pytest.fixture
def judge(server: Server, tmp_path: Any) -> dict[str, Any]:
    return {"url": server.url, "model": "m", "cache": str(tmp_path), "backoff_s": 0.0, "retries": 0}


def met(*values: float) -> str:
    return f'fine {{"met": [9]}}, no: {json.dumps({"met": values})}'


async def test_criteria_are_weighted(server, judge):
    server.reply = lambda prompt: met(1, 0, 1)
    value, note = await scored(
        "criteria_judge", judge=judge, criteria=[{"text": "one", "weight": 3.0}, "two", "three"], key="answer"
    )
    # (3 + 0 + 1) / 5.
    assert value == pytest.approx(0.8)
    assert "met 1 0 1" in note
    prompt = server.asked[0]["messages"][0]["content"]
    assert "1. one\n2. two\n3. three" in prompt
    assert "<reference>\nParis\n</reference>" in prompt


async def test_criteria_of_a_task_come_after_those_of_the_recipe_and_a_fault_takes_away(server, judge):
    server.reply = lambda prompt: met(0, 1, 1)
    value, _ = await scored("criteria_judge", judge=judge, criteria=["short"], rubric_key="rubric")
    # (0 + 1 - 1) / 2.
    assert value == 0.0
    server.reply = lambda prompt: met(5, 10, 0)
    value, _ = await scored("criteria_judge", judge=judge, criteria=["short"], rubric_key="rubric", scale=10)
    assert value == pytest.approx(0.75)


async def test_a_veto_shuts_and_saturation_bends(server, judge):
    server.reply = lambda prompt: met(0, 1, 1)
    settings = {"judge": judge, "criteria": [{"text": "safe", "veto": True}, "two", "three"]}
    value, note = await scored("criteria_judge", **settings)
    assert (value, note.endswith("vetoed by 1")) == (0.0, True)
    server.reply = lambda prompt: met(1, 0, 0)
    value, _ = await scored("criteria_judge", saturate=0.5, **settings, answer="Lyon")
    # (1 - e^(-2/3)) / (1 - e^(-2)).
    assert value == pytest.approx((1 - math.exp(-2 / 3)) / (1 - math.exp(-2)))
    assert (saturated(0.0, 0.5), saturated(1.0, 0.5)) == (0.0, 1.0)


@pytest.mark.parametrize("reply", [met(1), met(1, 2), "met: [1, 0]", '{"met": [1, "x"]}', '{"met": [1, null]}'])
async def test_verdicts_that_cannot_be_read_score_nothing(server, judge, reply):
    server.reply = lambda prompt: reply
    value, note = await scored("criteria_judge", judge=judge, criteria=["one", "two"])
    assert value is None
    assert note.startswith("malformed reply: 0 of 1 votes read")


async def test_criteria_need_an_answer_and_at_least_one_criterion(server, judge):
    assert await scored("criteria_judge", None, judge=judge, criteria=["one"]) == (0.0, "no answer")
    assert server.asked == []
    with pytest.raises(TaskError, match="there are no criteria"):
        await scored("criteria_judge", judge=judge)
    with pytest.raises(TaskError, match="and no criteria"):
        await scored("criteria_judge", judge=judge, rubric_key="answer2")


@pytest.mark.parametrize(
    "reply",
    [
        {"score": -1.5},
        {"data": [{"data": [-1.5]}]},
        {"data": [{"data": [[0.1], [-1.5]]}]},
        {"data": [{"probs": [-1.5]}]},
    ],
)
async def test_a_reward_model_scores_the_answer(server, reply):
    server.reply = lambda prompt: reply
    scorer = {"url": f"{server.url}/pooling", "model": "rm"}
    assert await scored("reward_model", text="<think>x</think>Paris", scorer=scorer) == (-1.5, "")
    said = [{"role": "user", "content": "Capital of France?"}, {"role": "assistant", "content": "Paris"}]
    assert server.asked == [{"model": "rm", "messages": said}]
    await scored("reward_model", text="<think>x</think>Paris", scorer=scorer, thoughts=True)
    assert server.asked[1]["messages"][1]["content"] == "<think>x</think>Paris"
    assert await scored("reward_model", None, scorer=scorer) == (0.0, "no answer")


@pytest.mark.parametrize("reply", [{"score": "high"}, {}, {"data": []}, {"score": float("inf")}])
async def test_a_reward_model_without_a_number_is_out_of_reach(server, reply):
    server.reply = lambda prompt: status(500) if reply == {} else reply
    with pytest.raises(EngineError, match="failed 2 times"):
        await scored("reward_model", scorer={"url": server.url, "model": "rm", "retries": 1})
    assert len(server.asked) == 2


def test_the_number_in_a_reply():
    assert number_in(b"3") == 3.0
    for none in (b"[]", b"x"):
        with pytest.raises(ValueError, match="no score"):
            number_in(none)


async def test_facts_are_counted_that_a_document_supports(server, judge):
    def reply(prompt: str) -> str:
        if '"facts"' in prompt:
            assert "<text>\nParis is large. It rains.\n</text>" in prompt
            return '{"facts": ["Paris is large.", "It rains."]}'
        return json.dumps({"supported": prompt.count("Paris is large.") == 2})

    server.reply = reply
    told = await scored("supported_facts", text="<think>Paris is large. It rains.</think>Paris", judge=judge)
    assert told == (0.5, "1 of 2 facts supported")
    # One list of facts, and each of two facts with each of two documents.
    assert len(server.asked) == 5


async def test_a_text_without_facts_gets_nothing(server, judge):
    server.reply = lambda prompt: '{"facts": []}'
    assert await scored("supported_facts", judge=judge) == (0.0, "no facts")
    assert await scored("supported_facts", None, judge=judge, text=" ") == (0.0, "no text")
    server.reply = lambda prompt: "none"
    assert await scored("supported_facts", "Rome", judge=judge) == (None, "malformed reply: no list of facts")


@pytest.mark.parametrize("refusal", [400, 413, 422])
async def test_what_is_too_long_for_a_reward_model_is_cut(server, refusal):
    server.reply = lambda prompt: {"score": 1.0} if len(prompt) < 9000 else status(refusal)
    scorer = {"url": f"{server.url}/pooling", "model": "rm"}
    said = "begin" + "x" * 100_000 + "end"
    assert await scored("reward_model", said, scorer=scorer) == (1.0, "")
    tried = [body["messages"][-1]["content"] for body in server.asked]
    assert [len(text) > 9000 for text in tried] == [True, True, False]
    assert (tried[0], tried[-1][:5], tried[-1][-3:]) == (said, "begin", "end")


async def test_what_a_reward_model_does_not_take_of_an_agent_is_0_with_a_note(server):
    """No failure: the agent would be rid of its worst answers."""
    server.reply = lambda prompt: status(400) if "$(boom)" in prompt else {"score": 1.0}
    scorer = {"url": f"{server.url}/pooling", "model": "rm"}
    assert await scored("reward_model", "$(boom)", scorer=scorer) == (
        0.0,
        "the reward model refuses what the agent wrote",
    )
    assert len(server.asked) == 2


async def test_a_reward_model_that_refuses_everything_is_one_of_the_settings(server):
    server.reply = lambda prompt: status(404)
    with pytest.raises(AgentRLError, match="refused: HTTP 404"):
        await scored("reward_model", scorer={"url": f"{server.url}/pooling", "model": "rm"})


@pytest.mark.parametrize("reply", [b"[" * 100_000, b'{"score": ' + b"9" * 400 + b"}"])
def test_a_number_that_none_can_be_made_of(reply):
    with pytest.raises(ValueError, match="no score"):
        number_in(reply)


def test_thoughts_are_found_in_a_time_that_grows_with_the_text():
    found = re.compile(inspect.signature(supported_facts).parameters["pattern"].default, re.DOTALL)
    assert found.findall("<think>a < b\n</think>x<think>c</think><think>d") == ["a < b\n", "c"]
    assert found.findall("<think>a<think>b</think>") == ["b"]
    began = time.process_time()
    assert found.findall("<think>" * 30_000) == []
    assert time.process_time() - began < 1.0
