"""Rewards of length and of varied words, on numbers computed by hand."""

from __future__ import annotations

import math

import msgspec
import pytest

from agentrl.curriculum.methods.lengths import LaserD, LaserDSettings
from agentrl.curriculum.parts import Group, GroupPlan
from agentrl.rewards.functions.calibration import token_confidence
from agentrl.rewards.functions.length import cosine_length, difficulty, laser_d
from agentrl.rewards.functions.siblings import lexical_diversity, mean_advantage
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError, TaskError
from agentrl.types.task import Task
from tests.curriculum.test_parts import context
from tests.rewards.make import make_episode, turn

TASK = Task.of("t", "2 + 3?", answer="5")


def played(right: float | None, tokens: int, **components: float | None) -> Episode:
    """An episode with a component `right`."""
    return make_episode(TASK, tokens=tokens, answer="5", components={"right": right, **components}, reward=right)


@pytest.mark.parametrize(
    ("answer", "tokens", "expected"),
    [
        ("5", 0, 1.0),
        ("5", 50, 0.75),
        ("5", 100, 0.5),
        ("5", 300, 0.5),
        ("6", 0, -1.0),
        ("6", 50, -0.75),
        (None, 100, -0.5),
    ],
)
def test_a_cosine_pays_short_right_answers_and_long_wrong_ones(answer, tokens, expected):
    episode = make_episode(TASK, tokens=tokens, answer=answer)
    assert cosine_length(TASK, episode, max_tokens=100) == pytest.approx(expected)


def test_a_cosine_is_no_straight_line():
    # A quarter of the way: (1 + cos(pi/4)) / 2 = .8536 of the way from .5 to 1.
    episode = make_episode(TASK, tokens=25, answer="5")
    assert cosine_length(TASK, episode, max_tokens=100) == pytest.approx(0.5 + 0.5 * 0.853553)


def test_a_cosine_needs_a_gold_answer():
    with pytest.raises(TaskError):
        cosine_length(Task.of("t", "?"), make_episode(TASK), max_tokens=10)


@pytest.mark.parametrize(
    ("right", "members", "level"), [(2, 3, "high"), (5, 8, "medium"), (1, 3, "medium"), (2, 8, "low"), (0, 4, "low")]
)
def test_the_difficulty_of_a_group(right, members, level):
    assert difficulty(right, members) == level


def test_the_bonus_of_a_right_answer_follows_the_difficulty_of_its_group():
    task = msgspec.structs.replace(TASK, data={"length_targets": {"high": 5, "low": 50}})
    easy = [played(1, 5), played(1, 6), played(0, 1)]
    assert laser_d(task, easy, right="right", first=9) == [0.5, 0.0, 0.0]
    hard = [played(1, 50), played(0, 9), played(None, 9), played(0, 9)]
    assert laser_d(task, hard, right="right", first=9, alpha=0.2) == [0.2, 0.0, 0.0, 0.0]
    # Nothing is known of groups in between: the first target.
    middle = [played(1, 9), played(1, 10), played(0, 1), played(0, 1)]
    assert laser_d(task, middle, right="right", first=9) == [0.5, 0.0, 0.0, 0.0]
    with pytest.raises(RecipeError, match="laser_d reads the component 'wrong'"):
        laser_d(task, easy, right="wrong", first=9)


def test_targets_are_the_least_lengths_that_keep_right_answers():
    schedule = LaserD(LaserDSettings(thresholds=[30, 10, 20], metric="right", every=2))
    plan = GroupPlan(TASK, 4, 1)
    assert schedule.plan(plan, context(0)) is plan
    easy = [played(1, 5), played(1, 15), played(1, 15), played(1, 40)]
    hard = [played(0, 5), played(1, 25), played(0, 30), played(0, 40)]
    schedule.observe([Group("a", TASK, easy)], context(0))
    assert schedule.plan(plan, context(1)) is plan
    assert schedule.metrics() == {}
    schedule.observe([Group("b", TASK, hard), Group("c", TASK, [])], context(1))
    # high: floor(8 / 3) = 2 right ones at least: half within 20 keeps 1. low: 1 at least, and never all: the longest.
    assert schedule.plan(plan, context(2)).task.data["length_targets"] == {"high": 20, "low": 40}
    assert schedule.metrics() == {"target/high": 20.0, "target/low": 40.0}
    again = LaserD(LaserDSettings(thresholds=[10], metric="right", every=2))
    again.load_state_dict(schedule.state_dict())
    again.observe([Group("a", TASK, [played(1, 4)] * 4)], context(3))
    # All within 10; what was not played keeps its target.
    assert again.state["targets"] == {"high": 10, "low": 40}


def test_mean_advantages_do_not_depend_on_scales():
    group = [played(1, 0, a=0.0, b=100.0), played(1, 0, a=1.0, b=300.0), played(1, 0, a=2.0, b=None)]
    # a: -1, 0, 1 deviations. b: -1/sqrt(2), 1/sqrt(2), not scored.
    half = 1 / math.sqrt(2)
    assert mean_advantage(group, of=["a", "b"]) == pytest.approx([(-1 - half) / 2, half / 2, 0.5], abs=1e-5)
    assert mean_advantage([played(1, 0, a=1.0)] * 2, of=["a"]) == [0.0, 0.0]
    assert mean_advantage(group[:1], of=["a"]) == [None]
    with pytest.raises(RecipeError, match="mean_advantage reads the component 'c'"):
        mean_advantage(group, of=["c"])


def test_words_that_vary():
    def of(text: str, **settings: int) -> float:
        return lexical_diversity(make_episode(TASK, turn(text=text)), **settings)

    assert of("One two three, four!") == pytest.approx(1.0)
    # Share 2/4; entropy of halves: ln 2 / ln 4.
    assert of("a b A b") == pytest.approx((0.5 + 0.5) / 2)
    assert of("<think>a a</think>") == pytest.approx((0.5 + 0.0) / 2)
    assert of("word") == 0.5
    assert of("...") == 0.0
    # Windows of two: ab, bb, ba: shares 1, 1/2, 1.
    assert of("a b b a", window=2) == pytest.approx((5 / 6 + 0.5) / 2)


def test_confidence_is_the_mean_probability_of_tokens():
    episode = make_episode(TASK, turn(), turn(), tokens=1)
    nodes = [
        msgspec.structs.replace(node, logprobs=found)
        for node, found in zip(episode.nodes, [None, [math.log(0.5)], [math.log(0.25), math.log(0.5)]], strict=True)
    ]
    assert token_confidence(msgspec.structs.replace(episode, nodes=nodes)) == pytest.approx((1 / 16) ** (1 / 3))
    assert token_confidence(episode) is None
