"""The shipped agents where they reach a limit, and an episode whose context overflows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.engines.scripted import Say
from agentrl.types.errors import RecipeError
from agentrl.types.sample import training_samples
from tests.rollout.world import make_context, make_parts, play_one


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
    ("agent", "said"),
    [
        ({"use": "compacting_agent", "at_fraction": 2}, "at_fraction"),
        ({"use": "delegating_agent", "helper_turns": 0}, "helper_turns"),
        ({"use": "delegating_agent", "helpers": 3}, "helpers"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, agent: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        make_parts(tmp_path, agent=agent).make_agent()
