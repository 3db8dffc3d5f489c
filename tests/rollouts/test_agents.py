"""The shipped agents where they reach a limit, and an episode whose context overflows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agentrl.engines.scripted import Say
from agentrl.types.errors import RecipeError
from agentrl.types.sample import training_samples
from tests.rollouts.world import make_context, make_parts, play_one
from tests.tools.builtin.http.servers import answer, saying, talking


def boss(task: Any, rng: Any, context: str) -> Any:
    if context == "main":
        yield Say(calls=[("delegate", {"task": "Part one."}), ("delegate", {"task": "Part two."})])
        yield Say("Done.")
    while True:
        yield Say(calls=[("echo", {"text": "again"})])


async def test_a_helper_that_does_not_answer_is_an_error_for_the_model(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, agent={"use": "delegating_agent", "helper_turns": 2, "max_turns": 10})
    episode = await play_one(make_context(parts, boss))
    assert (episode.status, episode.answer) == ("done", "Done.")
    calls = episode.turns[0].calls
    assert [call.outcome for call in calls] == ["error", "error"]
    assert calls[0].result == "Error: the helper did not answer within 2 turns"
    assert [turn.context for turn in episode.turns].count("helper-2") == 2
    assert "delegate" not in [tool["function"]["name"] for tool in episode.contexts["helper-1"].tools or []]


async def test_helpers_share_the_turns_of_the_episode(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, agent={"use": "delegating_agent", "max_turns": 4})
    episode = await play_one(make_context(parts, boss))
    assert (episode.status, episode.stop, len(episode.turns)) == ("truncated", "turns", 4)
    assert "the episode has no turn left" in episode.turns[0].calls[0].result


LONG = "\n".join(f"<p>Line {k}: {'nothing of interest is written here, ' * 6}.</p>" for k in range(60))
PAGE = f"<html><head><title>Prices</title></head><body>{LONG}<p>Green tea costs 7 crowns.</p>{LONG}</body></html>"


@pytest.mark.slow
async def test_a_reader_notes_what_a_page_says_part_by_part(tmp_path: Path) -> None:
    seen: list[str] = []

    def script(task: Any, rng: Any, messages: Any, context: str) -> Any:
        if context == "main":
            (read,) = yield Say(calls=[("read", {"url": url, "question": "What does green tea cost?"})])
            seen.append(read["content"])
            yield Say("7")
        part = messages[-1]["content"]
        seen.append(part)
        yield Say("It costs 7 crowns." if "7 crowns." in part else "Nothing yet.\nMORE")

    async with talking(saying(answer(PAGE.encode(), "Content-Type: text/html"))) as port:
        url = f"http://127.0.0.1:{port}/prices"
        http = {"allow": [f"127.0.0.1:{port}"], "chars": 6000}
        episode = await play_one(
            make_context(make_parts(tmp_path, agent={"use": "reading_agent", "parts": 9, "http": http}), script)
        )
    assert (episode.status, episode.answer) == ("done", "7")
    *parts, notes = seen
    assert notes == f"[{url} Prices]\nNothing yet.\nNothing yet.\nIt costs 7 crowns."
    assert [re.search("Notes so far: (.*)", part)[1] for part in parts[:2]] == ["none", "Nothing yet."]  # type: ignore[index]
    assert [turn.context for turn in episode.turns] == ["main", "reader-1.1", "reader-1.2", "reader-1.3", "main"]
    assert {each.role for each in episode.contexts.values()} == {"reader"}
    assert episode.contexts["reader-1.1"].tools == []
    assert len(training_samples(episode, [1.0] * 5)) == 4


async def test_a_page_that_cannot_be_had_is_an_error_for_the_model(tmp_path: Path) -> None:
    def script(task: Any, rng: Any) -> Any:
        yield Say(calls=[("read", {"url": "http://127.0.0.1:9/", "question": "What?"})])

    parts = make_parts(tmp_path, agent={"use": "reading_agent", "http": {"allow": ["127.0.0.1:9"]}})
    (call,) = (await play_one(make_context(parts, script))).turns[0].calls
    assert call.outcome == "error"
    assert call.result.startswith("Error: 127.0.0.1: ")


async def test_a_summary_is_trained_under_the_prompt_that_it_was_sampled_under(tmp_path: Path) -> None:
    def script(task: Any, rng: Any) -> Any:
        seen = yield Say(calls=[("echo", {"text": "x" * 400})])
        assert "Sum up" in seen[-1]["content"]
        yield Say("x was seen")
        yield Say("the end")

    agent = {"use": "compacting_agent", "at_tokens": 2400, "instruction": "Sum up."}
    episode = await play_one(make_context(make_parts(tmp_path, agent=agent), script))
    assert (episode.status, episode.answer) == ("done", "the end")
    (branch,) = episode.branches
    assert (branch.turn, branch.reason, len(branch.messages or [])) == (2, "summary", 2)
    rows = training_samples(episode, [1.0, 2.0, 3.0])
    assert [[turn for turn, _, _ in row.turn_spans] for row in rows] == [[0, 1], [2]]
    assert [set(row.advantage[row.loss_mask].tolist()) for row in rows] == [{1.0, 2.0}, {3.0}]


@pytest.mark.parametrize(
    ("settings", "prompts"),
    [
        ({"replies": 0, "opening": False}, ["1", "2"]),
        ({"replies": 0}, ["task 1", "task 2"]),
        ({"replies": 1, "opening": False}, ["1 reply 2"]),
        ({}, ["task 1 reply 2"]),
        ({"replies": 9}, []),
    ],
)
async def test_what_lies_further_back_than_the_last_replies_is_dropped(
    tmp_path: Path, settings: dict[str, Any], prompts: list[str]
) -> None:
    def script(task: Any, rng: Any) -> Any:
        yield Say(calls=[("echo", {"text": "1"})])
        yield Say(calls=[("echo", {"text": "2"})])
        yield Say("the end")

    episode = await play_one(make_context(make_parts(tmp_path, agent={"use": "recent_agent", **settings}), script))
    assert (episode.status, episode.answer, len(episode.turns)) == ("done", "the end", 3)
    named = {"user": "task", "assistant": "reply"}
    found = [
        " ".join(named.get(each["role"], each["content"]) for each in branch.messages or [])
        for branch in episode.branches
    ]
    assert found == prompts
    rows = training_samples(episode, [1.0, 2.0, 3.0])
    assert [turn for row in rows for turn, _, _ in row.turn_spans] == [0, 1, 2]
    assert len(rows) == 1 + len(prompts)


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ({"use": "compacting_agent", "at_fraction": 2}, "at_fraction"),
        ({"use": "delegating_agent", "helper_turns": 0}, "helper_turns"),
        ({"use": "delegating_agent", "helpers": 3}, "helpers"),
        ({"use": "reading_agent", "http": {"chars": 0}}, "chars"),
        ({"use": "recent_agent", "replies": -1}, "replies"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, agent: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        make_parts(tmp_path, agent=agent).make_agent()
