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


def test_a_template_without_a_critic_or_without_its_word_is_refused(tmp_path: Path) -> None:
    for agent, what in [
        ({"feedback": "A critic says: {critique}"}, "nobody speaks"),
        ({"critic": "policy"}, "nothing shows"),
        ({"feedback": "{told"}, "not a template"),
    ]:
        with pytest.raises(RecipeError, match=what):
            make_parts(tmp_path, agent={"use": "retrying_agent", **agent}).make_agent()


async def test_an_answer_that_is_wrong_is_followed_by_feedback_and_another_try(tmp_path: Path) -> None:
    heard: list[str] = []

    def script(task: Any, rng: Any) -> Any:
        yield Say(calls=[("echo", {"text": "1"})])
        (feedback,) = yield Say("7")
        heard.append(feedback["content"])
        yield Say("0")
        yield Say("never asked")

    agent = {"use": "retrying_agent", "tries": 3, "feedback": "Not {answer}. {task}"}
    episode = await play_one(make_context(make_parts(tmp_path, agent=agent), script))
    assert (episode.status, episode.answer, heard) == ("done", "0", ["Not 7. Task 0."])
    assert episode.info["tries"] == [
        {"answer": "7", "score": 0.0, "turns": [0, 1]},
        {"answer": "0", "score": 1.0, "turns": [2]},
    ]


async def test_a_function_grades_and_a_fresh_try_sees_only_the_task_and_the_feedback(tmp_path: Path) -> None:
    async def grade(session: Any, answer: str) -> tuple[float, str]:
        return len(answer) / 2, f"{len(answer)} letters"

    def script(task: Any, rng: Any) -> Any:
        yield Say("a")
        yield Say("bb")
        yield Say("ccc")

    agent = {"use": "retrying_agent", "grade": grade, "tries": 3, "feedback": "{told}", "fresh": True, "always": True}
    episode = await play_one(make_context(make_parts(tmp_path, agent=agent), script))
    assert [one["score"] for one in episode.info["tries"]] == [0.5, 1.0, 1.5]
    prompts = [[message["content"] for message in branch.messages or []] for branch in episode.branches]
    assert prompts == [["Task 0.", "1 letters"], ["Task 0.", "2 letters"]]
    assert {branch.reason for branch in episode.branches} == {"rewrite"}


async def test_a_critic_of_the_same_policy_speaks_in_a_context_of_its_own(tmp_path: Path) -> None:
    def script(task: Any, rng: Any, context: str, messages: Any) -> Any:
        if context != "main":
            yield Say(f"I read: {messages[-1]['content']}")
        (feedback,) = yield Say("7")
        yield Say(feedback["content"])

    agent = {
        "use": "retrying_agent",
        "critic": "policy",
        "feedback": "Critic: {critique}",
        "critic_prompt": "{answer}!",
    }
    episode = await play_one(make_context(make_parts(tmp_path, agent=agent), script))
    assert episode.answer == "Critic: I read: 7!"
    assert [(turn.context, turn.agent) for turn in episode.turns] == [
        ("main", "agent"), ("critic-1", "critic"), ("main", "agent"),
    ]  # fmt: skip
    assert [one["turns"] for one in episode.info["tries"]] == [[0], [2]]


async def test_feedback_that_names_a_field_that_the_task_lacks_is_an_error_of_the_task(tmp_path: Path) -> None:
    def script(task: Any, rng: Any) -> Any:
        yield Say("7")

    agent = {"use": "retrying_agent", "feedback": "{hint}"}
    episode = await play_one(make_context(make_parts(tmp_path, agent=agent), script))
    assert episode.error is not None
    assert "no such field" in episode.error.message


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ({"use": "compacting_agent", "at_fraction": 2}, "at_fraction"),
        ({"use": "delegating_agent", "helper_turns": 0}, "helper_turns"),
        ({"use": "delegating_agent", "helpers": 3}, "helpers"),
        ({"use": "reading_agent", "http": {"chars": 0}}, "chars"),
        ({"use": "recent_agent", "replies": -1}, "replies"),
        ({"use": "retrying_agent", "tries": 0}, "tries"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, agent: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        make_parts(tmp_path, agent=agent).make_agent()
