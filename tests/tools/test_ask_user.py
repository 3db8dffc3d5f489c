"""The tool `ask_user`: a script or a model plays the user."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl import Task
from agentrl.tools.builtin.ask_user import AskUser
from agentrl.types.errors import InfraError, RecipeError, TaskError, ToolError
from tests.tools.builtin.search.test_engines import serving

KNOWS = {"date": "On Monday.", "return date": "On Friday.", "budget": "200 euros."}


async def test_a_script_answers_by_the_words_of_the_question() -> None:
    tool = AskUser(questions=4)
    await tool.open(Task.of("a", "Book a flight.", user=KNOWS), None)
    before = tool.state_key()
    assert await tool.ask_user("What DATE do you want?") == "On Monday."
    assert tool.state_key() != before
    assert await tool.ask_user("And the date of your return?") == "On Friday."
    assert await tool.ask_user("Window or aisle?") == "I do not know."
    assert await tool.ask_user("An undated ticket?") == "I do not know."
    with pytest.raises(ToolError, match="at most 4"):
        await tool.ask_user("budget?")


async def test_every_episode_begins_without_questions() -> None:
    tool = AskUser(questions=1)
    for _ in range(2):
        await tool.open(Task.of("a", "Book a flight.", user=KNOWS), None)
        assert await tool.ask_user("Which budget?") == "200 euros."
    with pytest.raises(ToolError, match="empty"):
        await tool.ask_user(" ")


async def test_a_model_plays_the_user_and_knows_what_was_said() -> None:
    def answer(method: str, path: str, given: dict[str, Any], headers: Any) -> tuple[int, Any]:
        return 200, {"choices": [{"message": {"content": f"answer {len(given['messages'])}"}}]}

    with serving(answer) as (url, asked):
        tool = AskUser(url=f"{url}/v1", model="any")
        await tool.open(Task.of("a", "Book a flight.", user="You want to fly to Oslo."), None)
        assert [await tool.ask_user("Where to?"), await tool.ask_user("When?")] == ["answer 2", "answer 4"]
    messages = asked[1]["messages"]
    assert messages[0]["content"].endswith("You want to fly to Oslo.")
    said = [(each["role"], each["content"]) for each in messages[1:]]
    assert said == [("user", "Where to?"), ("assistant", "answer 2"), ("user", "When?")]


async def test_garbage_of_the_model_is_infrastructure() -> None:
    with serving(lambda *given: (200, {"choices": []})) as (url, _):
        tool = AskUser(url=url, model="any")
        await tool.open(Task.of("a", "Book.", user="You are a user."), None)
        with pytest.raises(InfraError, match="not a chat completion"):
            await tool.ask_user("Where to?")


@pytest.mark.parametrize("given", [{}, {"user": "a text"}, {"user": {}}])
async def test_a_script_needs_answers(given: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match="ask_user: 'user' is"):
        await AskUser().open(Task.of("a", "Book.", **given), None)


@pytest.mark.parametrize("given", [{"url": "http://x"}, {"model": "a"}, {"questions": 0}, {"api_key_env": "NO_SUCH"}])
def test_settings_are_checked(given: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        AskUser(**given)
