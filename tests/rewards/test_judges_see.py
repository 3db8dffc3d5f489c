"""Every judge may be shown the images of a task, and grades the turns of the policy alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.rewards.components import RewardSet
from agentrl.rewards.functions.judges.client import Judge
from agentrl.rewards.groups import score_group
from agentrl.types.episode import Context, Episode, Turn
from agentrl.types.errors import AgentRLError
from agentrl.types.task import Task

PART = {"type": "image", "blob": "0" * 64, "width": 1, "height": 1}
SHOWN = [{"role": "user", "content": [{"type": "text", "text": "what?"}, PART]}]
TASK = msgspec.structs.replace(Task.of("t", "x"), instruction=SHOWN)


def episode(id: str, **given: Any) -> Episode:
    return Episode(id=id, group_id="g", task=TASK, status="done", answer=id, reward=1.0, **given)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[bytes, ...], list[str]]]:
    """What judges were shown and asked; each says that A is better, and that turn 0 is wrong and worth 10."""
    found: list[tuple[tuple[bytes, ...], list[str]]] = []

    async def replies(self: Judge, prompts: list[str]) -> list[str]:
        found.append((self._shown, prompts))
        return ['{"better": "A"} {"wrong": [0, 1]} {"score": 10}'] * len(prompts) * self.votes

    monkeypatch.setattr(Judge, "_replies", replies)
    return found


def judge(tmp_path: Path, **given: Any) -> dict[str, Any]:
    return {"url": "http://localhost:1/v1", "model": "m", "cache": str(tmp_path), **given}


async def test_a_judge_of_a_group_sees_the_task(
    tmp_path: Path, asked: list[tuple[tuple[bytes, ...], list[str]]]
) -> None:
    rewards = RewardSet.from_recipe({"win_rate": {"judge": judge(tmp_path, images=True)}})
    scores = await score_group(rewards, [episode("a"), episode("b")], lambda sha: b"\x89PNG")
    assert [score.total for score in scores] == [0.5, 0.5]
    assert asked[0][0] == (b"\x89PNG",)


async def test_a_judge_of_text_is_not_asked_about_images(tmp_path: Path) -> None:
    rewards = RewardSet.from_recipe({"win_rate": {"judge": judge(tmp_path)}})
    with pytest.raises(AgentRLError, match="takes text only") as caught:
        await score_group(rewards, [episode("a"), episode("b")], lambda sha: b"")
    assert caught.value.remedy == "judge.images: true, if its model takes images"


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [("critique", {}, [1.0, None]), ("rubric_judge", {"reads": "turn"}, [1.0, None])],
)
async def test_turns_of_other_voices_are_not_graded(
    tmp_path: Path,
    asked: list[tuple[tuple[bytes, ...], list[str]]],
    name: str,
    settings: dict[str, Any],
    expected: list[float | None],
) -> None:
    turns = [Turn(index=k, node=k, text=f"says {k}", finish="stop", context=c) for k, c in enumerate(("main", "user"))]
    talk = episode("a", turns=turns, contexts={"user": Context(role="user", prompt=[], policy="user")})
    given = {"use": name, "judge": judge(tmp_path, images=True), **settings}
    (component,) = RewardSet.from_recipe({"it": given, "one": lambda: 1.0}).components[:1]
    from agentrl.rewards.score import Live

    value, _ = await component(TASK, talk, live=Live(read_blob=lambda sha: b"\x89PNG"))
    assert value == expected
    assert len(asked) == 1
