"""Gates, steps and reward functions against reference numbers; another set of files by `--golden DIR`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentrl.config.rewards import Gate, RewardStep
from agentrl.estimators.table import CreditTable
from agentrl.rewards.components import RewardSet
from agentrl.rewards.functions.calibration import brier
from agentrl.rewards.functions.feedback import unary_feedback
from agentrl.rewards.functions.length import overlong
from agentrl.rewards.functions.reseek import judgement_reward
from agentrl.rewards.steps import apply
from agentrl.types.episode import CallRecord, Episode, Node, Turn
from agentrl.types.task import Task

HERE = Path(__file__).parents[1] / "golden"
KEYS = {">=": "at_least", ">": "above"}


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    return request.config.getoption("--golden", default=None) or HERE


def load(folder: Path, name: str) -> dict:
    if not (folder / name).is_file():
        pytest.skip(f"{folder} has no {name}")
    return json.loads((folder / name).read_text())


def table(folder: Path, name: str):
    """A table of `scalar_tables.json` with the file's tolerance."""
    golden = load(folder, "scalar_tables.json")
    if name not in golden["expected"]:
        pytest.skip(f"{folder} has no table {name}")
    return golden["expected"][name], golden["tolerance"]


def episodes_of(inputs: dict) -> list[Episode]:
    """Episodes whose tools gave the turns the rewards of the file; the outcome is in the task's data."""
    made = []
    for group in inputs["groups"]:
        for trajectory in group["trajectories"]:
            nodes = [Node(parent=-1, kind="prompt", token_ids=[0])]
            turns = []
            for index, turn in enumerate(trajectory["turns"]):
                nodes.append(Node(parent=index, kind="sampled", token_ids=turn["action_token_ids"]))
                turns.append(Turn(index=index, node=index + 1, text="", finish="stop", rewards=turn["rewards"]))
            task = Task.of(group["group_id"], "", outcome=trajectory["outcome"])
            made.append(
                Episode(
                    id=trajectory["traj_id"], group_id=group["group_id"], task=task, status="done",
                    nodes=nodes, turns=turns,
                )
            )  # fmt: skip
    return made


async def test_gated_accumulation(folder: Path) -> None:
    golden = load(folder, "g_ra.json")
    episodes = episodes_of(load(folder, golden["inputs_file"]))
    names = list(dict.fromkeys(name for e in episodes for turn in e.turns for name in turn.rewards))
    rewards = {"outcome": lambda task: task.data["outcome"], **{name: {"use": "tool_reward"} for name in names}}
    direct = RewardSet.from_recipe(rewards)
    for setting, expected in golden["expected"].items():
        gated = RewardSet.from_recipe(rewards, gates=gates_of(setting))
        assert set(expected) == {episode.id for episode in episodes}
        scored = [(await gated.score(episode.task, episode)).onto(episode) for episode in episodes]
        for episode in scored:
            wanted = expected[episode.id]
            if "gate_open" in wanted:
                assert episode.gates[0].open == wanted["gate_open"], (setting, episode.id)
            for name in names:
                assert wanted.get(f"{name}_gate", name not in episode.shut) == (name not in episode.shut)
            if "gated_turn_rewards" in wanted:
                found = [turn.reward for turn in episode.turns]
                assert found == pytest.approx(wanted["gated_turn_rewards"], abs=golden["tolerance"])
            if "direct_total" in wanted:
                score = await direct.score(episode.task, episode)
                total = score.total + sum(score.turn_totals)
                assert total == pytest.approx(wanted["direct_total"], abs=golden["tolerance"])
        # What credit reads is what the gates left.
        totals = CreditTable.from_episodes(scored).total_reward
        assert totals == pytest.approx([expected[e.id]["total"] for e in scored], abs=golden["tolerance"])


def gates_of(setting: str) -> list[Gate]:
    """`delta=D,op=OP`: one gate. Three levels: `outcome>=A gates tool; outcome>=A and sum(tool)>=B gate format`."""
    two = re.fullmatch(r"delta=(\S+),op=(>=?)", setting)
    if two:
        return [Gate.model_validate({"on": "outcome", KEYS[two[2]]: float(two[1])})]
    levels = re.search(r"outcome(>=?)(\S+) and sum\(tool\)(>=?)(\S+) gate format", setting)
    assert levels, setting
    return [
        Gate.model_validate({"on": "outcome", KEYS[levels[1]]: float(levels[2])}),
        Gate.model_validate({"on": "tool", KEYS[levels[3]]: float(levels[4])}),
    ]


async def test_brier(folder: Path) -> None:
    expected, tolerance = table(folder, "rlcr_reward")
    rewards = RewardSet.from_recipe(
        {
            "format": {"use": "format", "weight": 0.5},
            "exact_match": {"weight": 0.5},
            "brier": {"use": right_words, "weight": 0.5},
        }
    )
    for row in expected["rows"]:
        # Right format: the answer and a readable confidence. Wrong: no answer at all.
        words = "right" if row["correct"] else "wrong"
        answer = f"{words} <confidence>{row['confidence']}</confidence>" if row["format"] else None
        task = Task.of("t", "", answer="right")
        turn = Turn(index=0, node=0, text="", finish="stop")
        episode = Episode(id="e", group_id="g", task=task, status="done", turns=[turn], answer=answer)
        assert brier(task, episode).value == pytest.approx(row["brier_term"], abs=tolerance)
        plain = Episode(
            id="e", group_id="g", task=task, status="done", turns=[turn], answer=words if row["format"] else None
        )
        score = await rewards.score(Task.of("t", "", answer="right", given=answer), plain)
        assert score.total == pytest.approx(row["total"], abs=tolerance)


def right_words(task: Task, episode: Episode):
    """The Brier term of the answer with its confidence, which the other components see without."""
    given = Episode(id="e", group_id="g", task=task, status="done", turns=episode.turns, answer=task.data["given"])
    return brier(task, given)


def test_unary_feedback(folder: Path) -> None:
    expected, tolerance = table(folder, "ufo_reward")
    for row in expected["rows"]:
        right = row["answers"][row["correct_at"]] if row["correct_at"] is not None else "never said"
        turns = [
            Turn(
                index=k,
                node=0,
                text="",
                finish="stop",
                calls=[
                    CallRecord(
                        id="", name="answer", arguments={"answer": said}, outcome="ok", result="", duration_s=0.0
                    )
                ],
            )
            for k, said in enumerate(row["answers"])
        ]
        task = Task.of("t", "", answer=right)
        episode = Episode(id="e", group_id="g", task=task, status="done", turns=turns)
        assert sum(unary_feedback(task, episode, repetition=row["lam"]).value) == pytest.approx(
            row["ret"], abs=tolerance
        )


def test_noise_corrections(folder: Path) -> None:
    expected, tolerance = table(folder, "noisy_verifier")
    rates = {
        "false_positive": expected["rho0_false_positive"],
        "false_negative": expected["rho1_false_negative"],
    }
    for name, column in (("backward", "backward"), ("forward", "forward_weight")):
        step = RewardStep.model_validate({name: rates})
        for reward, value in expected[column].items():
            assert apply([step], float(reward)) == pytest.approx(value, abs=tolerance)
        # In expectation over the verifier's errors.
        rejected, accepted = apply([step], 0.0), apply([step], 1.0)
        right = rates["false_negative"] * rejected + (1 - rates["false_negative"]) * accepted
        wrong = (1 - rates["false_positive"]) * rejected + rates["false_positive"] * accepted
        assert right == pytest.approx(expected["check"][f"{name}_mean_if_true_1"], abs=tolerance)
        assert wrong == pytest.approx(expected["check"][f"{name}_mean_if_true_0"], abs=tolerance)


def test_clip_and_delta(folder: Path) -> None:
    expected, tolerance = table(folder, "clip_delta")
    scores = expected["prm"]
    assert apply([RewardStep(process_clip=expected["eta"])], scores) == pytest.approx(expected["clip"], abs=tolerance)
    deltas = apply([RewardStep(process_delta=True)], scores)
    assert deltas == pytest.approx(expected["delta_K_is_last_scored_step"], abs=tolerance)
    assert [sum(deltas[k:]) for k in range(len(deltas))] == pytest.approx(scores, abs=tolerance)


def test_judgements(folder: Path) -> None:
    expected, tolerance = table(folder, "reseek_judge")
    for row in expected:
        assert judgement_reward(row["rerank_score"], row["judged_yes"]) == pytest.approx(row["reward"], abs=tolerance)


def test_overlong(folder: Path) -> None:
    rows = load(folder, "losses.json").get("overlong")
    if not rows:
        pytest.skip(f"{folder} has no lengths")
    for row in rows:
        nodes = [Node(parent=-1, kind="sampled", token_ids=[0] * row["len"])]
        turns = [Turn(index=0, node=0, text="", finish="stop")]
        episode = Episode(id="e", group_id="g", task=Task.of("t", ""), status="done", nodes=nodes, turns=turns)
        found = overlong(episode, max_tokens=row["max_len"], buffer=row["buffer"], factor=row["factor"])
        assert found == pytest.approx(row["reward"], abs=1e-9)
