"""Stored episodes are credited as training credits them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.api.credit import credit
from agentrl.api.run_dirs import begin_run
from agentrl.config.loader import load_recipe
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Context, Episode
from agentrl.types.errors import StoreError
from agentrl.types.task import Task
from tests.store.make import make_episode


def member(k: int, reward: float | None = 1.0, *, group: str = "train/g", **fields: Any) -> Episode:
    return make_episode(f"{group}#{k}", group=group, split="train", reward=reward, **fields)


def stored(path: Path, episodes: list[Episode], *overrides: str, trained: dict[int, list[str]] | None = None) -> Path:
    with begin_run(path, load_recipe("quickstart", ["warm_start=null", *overrides]), "train") as run:
        for episode in episodes:
            run.add(episode)
        for iteration, groups in (trained or {}).items():
            run.add_metrics({"split": "train", "iteration": iteration, "trained_groups": groups})
    return path


@pytest.mark.parametrize(
    ("rules", "left_out"),
    [("", ""), ("truncated: drop", "2"), ("timed_out: drop", "3"), ("truncated: drop, timed_out: mask", "2")],
)
def test_what_the_recipe_drops_is_in_no_baseline(tmp_path: Path, rules: str, left_out: str) -> None:
    members = [
        member(0, 1.0),
        member(1, 0.0),
        member(2, 0.0, status="truncated", stop="turns"),
        member(3, 0.0, status="truncated", stop="wall"),
        member(4, 0.0, status="truncated", stop="sandbox_broken"),
    ]
    path = stored(tmp_path / "run", members, f"train={{iterations: 1, {rules}}}")
    given = {one.episode_id[-1]: one.turn_advantages[0] for one in credit(path, "rloo").credits}
    assert given.keys() == {*"01234"} - {*left_out}
    others = len(given) - 1
    assert given["0"] == pytest.approx(1.0)
    assert given["1"] == pytest.approx(-1.0 / others)


def test_evaluations_are_credited_whatever_ended_them(tmp_path: Path) -> None:
    members = [msgspec.structs.replace(member(k, status="truncated", stop="turns"), split="eval") for k in range(2)]
    path = stored(tmp_path / "run", members, "train={iterations: 1, truncated: drop}")
    assert len(credit(path, "rloo").credits) == 2


def test_groups_are_credited_with_those_that_they_trained_with(tmp_path: Path) -> None:
    """Groups that were drawn for one update may train in a later one."""
    groups = {name: [member(k, float(k), group=f"train/{name}", iteration=0) for k in range(2)] for name in "abc"}
    episodes = [episode for members in groups.values() for episode in members]
    path = stored(tmp_path / "run", episodes, trained={1: ["train/a"], 2: ["train/c"]})
    batches = credit(path, "reinforce_pp").batches
    assert [(batch["iteration"], batch["trajectories"]) for batch in batches] == [(0, 2), (0, 2), (1, 2)]


def in_one_state(k: int, reward: float, group: str, iteration: int = 0) -> Episode:
    """An episode of one turn, of the one task there is."""
    played = member(k, reward, group=f"train/{group}", iteration=iteration, turns=1)
    turns = [msgspec.structs.replace(turn, state="s", rewards={}) for turn in played.turns]
    return msgspec.structs.replace(played, turns=turns, task=Task(id="t", instruction=[]))


REMEMBERING = "credit={use: gagpo, decay: 0.5, std: none}"


def test_what_credit_remembers_is_built_again_update_by_update(tmp_path: Path) -> None:
    scores = {"b": (1.0, 1.0), "a": (1.0, 0.0), "left": (0.0, 0.25)}
    episodes = [in_one_state(k, score, name) for name, pair in scores.items() for k, score in enumerate(pair)]
    path = stored(tmp_path / "run", episodes, REMEMBERING, trained={1: ["train/a"], 2: ["train/b"]})
    found = {one.episode_id.removeprefix("train/"): one.turn_advantages[0] for one in credit(path, save=True).credits}
    # a: 1 of 2. b: half of that, and 2 of 2. What did not train is compared with itself, and not remembered.
    value = (0.5 * 1 + 2) / (0.5 * 2 + 2)
    wanted = {"a#0": 0.5, "a#1": -0.5, "b#0": 1 - value, "b#1": 1 - value, "left#0": -0.125, "left#1": 0.125}
    assert found == pytest.approx(wanted)
    alone = credit(path, overrides=["decay=0"]).credits
    assert {one.turn_advantages[0] for one in alone if "/b#" in one.episode_id} == {0.0}


def test_each_policy_that_trains_is_credited_with_its_own_outcome(tmp_path: Path) -> None:
    def duet(k: int) -> Episode:
        episode = member(k, float(k), components={"reached": float(k)})
        turns = [msgspec.structs.replace(t, context="critic" if t.index % 2 else "main") for t in episode.turns]
        critic = Context(role="critic", prompt=[], policy="critic", trains=True)
        return msgspec.structs.replace(episode, turns=turns, contexts={"critic": critic})

    policies = "policies={critic: {lora: {rank: 4}, train: true, outcome: {reached: -1}}}"
    path = stored(tmp_path / "run", [duet(0), duet(1)], policies)
    for one in credit(path, "rloo").credits:
        sign = 1.0 if one.episode_id.endswith("1") else -1.0
        assert one.turn_advantages == [sign if k % 2 == 0 else -sign for k in range(4)]


def test_what_was_remembered_several_times_is_not_saved(tmp_path: Path) -> None:
    """Recorded groups may train in several passes: a group then counted more than once."""
    episodes = [in_one_state(k, float(k), "g") for k in range(2)]
    path = stored(tmp_path / "run", episodes, REMEMBERING, trained={1: ["train/g"], 2: ["train/g"]})
    credit(path)
    with pytest.raises(StoreError, match=r"group 'train/g' trained several times, and credit\.decay"):
        credit(path, save=True)
    credit(path, overrides=["decay=0"], save=True)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train={iterations: 2, kl: {coef: 0.1, place: reward}}", "the KL penalty of models"),
        ("curriculum=[dapo]", r"the curriculum \(dapo\) chose the groups"),
    ],
)
def test_credit_that_would_not_be_that_which_trained_is_not_saved(tmp_path: Path, override: str, said: str) -> None:
    members = [member(k, float(k)) for k in range(2)]
    path = stored(tmp_path / "run", members, "credit=grpo", override, trained={1: ["train/g"]})
    credit(path)
    with pytest.raises(StoreError, match=said):
        credit(path, save=True)
    with RunDir.read(path) as run:
        assert all(run.credit(id) is None for id in run.ids())
    credit(path, "rloo", save=True)
    with RunDir.read(path) as run:
        assert all(run.credit(id) is not None for id in run.ids())


def of_group(group: str, *rewards: float, iteration: int = 0) -> list[Episode]:
    return [member(k, reward, group=group, iteration=iteration) for k, reward in enumerate(rewards)]


def test_a_group_that_a_filter_left_out_was_in_no_batch(tmp_path: Path) -> None:
    """`reinforce_pp` compares the episodes of a whole batch."""
    path = stored(tmp_path / "run", [*of_group("train/g", 1.0, 0.0), *of_group("train/h", 0.0, 0.0)], "train={}")
    with RunDir.open(path) as run:
        groups = ["train/g", "train/h"]
        run.add_metrics({"split": "train", "iteration": 1, "trained_groups": groups, "left_out_groups": ["train/h"]})
    alone = stored(tmp_path / "alone", of_group("train/g", 1.0, 0.0), "train={}", trained={1: ["train/g"]})
    given = {one.episode_id: one.turn_advantages for one in credit(path, "reinforce_pp").credits}
    wanted = {one.episode_id: one.turn_advantages for one in credit(alone, "reinforce_pp").credits}
    assert {id: given[id] for id in wanted} == wanted


def test_a_training_that_was_made_longer_keeps_the_credit_of_its_first_updates(tmp_path: Path) -> None:
    code = tmp_path / "task.py"
    code.write_text(
        "from agentrl.estimators.estimator import estimator\n"
        "@estimator(granularity='turn', source='', certainty='C')\n"
        "def late(table):\n    return table.valid * table.progress_of_training\n"
    )
    path = stored(tmp_path / "run", of_group("train/g", 1.0, 0.0, iteration=1), "train={iterations: 4}")
    with RunDir.open(path) as run:
        run.add_metrics({"split": "train", "iteration": 2, "trained_groups": ["train/g"], "progress_of_training": 0.5})
    given = credit(path, f"{code}:late").credits
    assert {value for one in given for value in one.turn_advantages} == {0.5}


def test_an_iteration_is_that_of_the_update(tmp_path: Path) -> None:
    """With stale rollouts, a group is drawn in one iteration and trains in a later one."""
    episodes = [*of_group("train/g", 1.0, 0.0), *of_group("train/h", 1.0, 0.0)]
    path = stored(tmp_path / "run", episodes, "train={}", trained={1: ["train/g"], 2: ["train/h"]})
    given = credit(path, "rloo")
    for iteration, group in enumerate(("train/g", "train/h")):
        one = given.of_iteration(iteration)
        assert {credit.episode_id.partition("#")[0] for credit in one.credits} == {group}
        assert [batch["iteration"] for batch in one.batches] == [iteration]
    with pytest.raises(StoreError, match="iteration 99") as refused:
        given.of_iteration(99)
    assert refused.value.remedy == "there are 0 to 1"
