"""Why a credit is 0, as the record tells it."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentrl.commands.view import helpers
from agentrl.store import RunDir
from agentrl.types.episode import Context, Episode, GateVerdict
from agentrl.view.web.endpoints import answer
from agentrl.view.web.library import RunLibrary
from agentrl.view.web.query import Query
from tests.store.make import make_episode


def told(folder: Path, episodes: list[Episode], credit: list[float] | None, **parts: Any) -> dict[str, Any]:
    """What is told of the first episode, with the credit of gigpo."""
    with RunDir.create(folder / "run", {"recipe": {"name": "house"}}) as run:
        for each in episodes:
            run.add(each)
        if credit is not None:
            run.add_credit(episodes[0].id, "gigpo", credit, parts)
    library = RunLibrary(folder / "run", helpers(), cache=folder / "cache")
    found = answer(library, "episode", Query({"run": "run", "id": episodes[0].id}))["no_credit"]
    library.close()
    return dict(found)


def group(*rewards: float, **fields: Any) -> list[Episode]:
    """A group with these rewards, whose turns are not rewarded."""
    made = [
        make_episode(f"a#{k}", turns=2, split="train", reward=reward, components={"found": reward}, **fields)
        for k, reward in enumerate(rewards)
    ]
    return [replace(each, turns=[replace(turn, rewards={}) for turn in each.turns]) for each in made]


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ([1.0, 1.0, 1.0], "all 3 episodes of the group have reward 1.00: no signal"),
        ([0.0, 0.0], "all 2 episodes of the group have reward 0.00: no signal"),
        ([0.5], "the only scored episode of its group: nothing to compare it with"),
        ([0.5, 0.0, 1.0], "its reward of 0.50 is the mean of the group"),
        ([0.5, 0.0, 0.0], "gigpo gives a reward of 0.50 in this group no credit"),
    ],
)
def test_the_rewards_of_the_group_say_why_no_turn_has_credit(tmp_path: Path, rewards: list[float], reason: str) -> None:
    found = told(tmp_path, group(*rewards), [0.0, 0.0])
    assert found == {"episode": reason, "turns": {0: reason, 1: reason}}


def test_a_shut_gate_is_named(tmp_path: Path) -> None:
    gate = GateVerdict(on="format", value=0.0, threshold=0.5, strict=False, open=False, shuts=["found"])
    found = told(tmp_path, group(0.0, 0.0, gates=[gate]), [0.0, 0.0])
    assert found["episode"] == "gate shut: format ≥ 0.5; all 2 episodes of the group have reward 0.00: no signal"
    scored = told(tmp_path / "scored", group(1.0, 1.0, gates=[gate]), [0.0, 0.0])
    assert "gate" not in scored["episode"]


def test_a_credit_that_is_not_recorded_has_its_reason(tmp_path: Path) -> None:
    for split, word in (("eval", "evaluation"), ("demo", "imitated"), ("rollout", "agentrl credit RUN --save")):
        (one,) = group(1.0)
        found = told(tmp_path / split, [replace(one, split=split)], None)
        assert word in found["episode"]
    assert told(tmp_path / "train", group(1.0), None)["episode"] is None
    failed = make_episode("a#0", status="infra_error", split="train")
    assert told(tmp_path / "failed", [failed], None)["episode"].startswith("the episode failed (SandboxLost)")
    unscored = replace(group(1.0)[0], reward=None)
    assert "has no reward" in told(tmp_path / "unscored", [unscored], None)["episode"]


def test_parts_that_cancel_are_told(tmp_path: Path) -> None:
    found = told(tmp_path, group(1.0, 0.0), [0.0, 0.5], episode=[0.3, 0.3], step=[-0.3, 0.2])
    assert found == {"episode": None, "turns": {0: "episode +0.300 and step -0.300 cancel"}}


def test_failed_turns_without_credit_are_told_if_all_of_them_have_none(tmp_path: Path) -> None:
    one, other = group(1.0, 0.0)
    broken = replace(one.turns[0].calls[0], outcome="malformed")
    right = replace(one.turns[0].calls[0], outcome="ok")
    turns = [replace(one.turns[0], calls=[broken]), replace(one.turns[1], calls=[right])]
    found = told(tmp_path, [replace(one, turns=turns), other], [0.0, 0.5])
    assert found["turns"] == {0: "gigpo gives failed turns no credit"}
    turns = [replace(one.turns[0], calls=[right]), replace(one.turns[1], calls=[broken])]
    found = told(tmp_path / "other", [replace(one, turns=turns), other], [0.0, 0.5])
    assert "failed" not in found["turns"][0]


def test_a_state_that_no_other_turn_met_is_told(tmp_path: Path) -> None:
    one, other = group(1.0, 0.0)
    states = [replace(turn, state=name, calls=[]) for turn, name in zip(one.turns, ("cellar", "kitchen"), strict=True)]
    alike = [replace(turn, state="kitchen") for turn in other.turns]
    found = told(tmp_path, [replace(one, turns=states), replace(other, turns=alike)], [0.0, 0.5])
    assert found["turns"] == {0: "no other turn of the group acted on the state cellar"}
    alike = [replace(turn, state="cellar") for turn in other.turns]
    found = told(tmp_path / "met", [replace(one, turns=states), replace(other, turns=alike)], [0.0, 0.5])
    assert found["turns"] == {0: "gigpo gives this turn none"}


def test_turns_after_the_last_reward_and_of_other_policies_are_told(tmp_path: Path) -> None:
    one, other = group(0.0, 1.0)
    first = replace(one.turns[0], rewards={"progress": 0.5}, reward=0.5, calls=[])
    found = told(tmp_path, [replace(one, turns=[first, replace(one.turns[1], calls=[])]), other], [0.5, 0.0])
    assert found["turns"] == {1: "nothing was earned from this turn on"}
    critic = Context(role="critic", prompt=[{"role": "user", "content": "Judge."}], policy="frozen", version=3)
    spoken = [one.turns[0], replace(one.turns[1], context="critic", agent="critic")]
    found = told(tmp_path / "two", [replace(one, turns=spoken, contexts={"critic": critic}), other], [0.5, 0.0])
    assert found["turns"] == {1: "the turn is of the policy frozen, which is not trained"}


def test_a_credit_of_0_of_an_episode_without_reward_is_told_as_the_estimators(tmp_path: Path) -> None:
    one, other = group(1.0, 1.0)
    waits = replace(one, reward=None, pending=["best"])
    for folder, members in (("alone", [waits]), ("beside", [waits, other])):
        found = told(tmp_path / folder, members, [0.0, 0.0])
        assert found["episode"] == "gigpo gives it none"
