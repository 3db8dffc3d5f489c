"""Rewards that take the whole group: what a function gets and returns, and the built-in ones."""

from __future__ import annotations

import math

import msgspec
import pytest

from agentrl.rewards import RewardError, RewardSet, Scored
from agentrl.rewards.groups import score_group
from agentrl.types.episode import Episode, in_order
from agentrl.types.errors import RecipeError
from agentrl.types.task import Task
from tests.rewards.make import call, make_episode, turn

TASK = Task.of("t", "2 + 2?", answer="4")


async def a_group(rewards: RewardSet, *answers: str | None, tokens: tuple[int, ...] = ()) -> list[Episode]:
    """Members as they are stored: scored on their own."""
    made = []
    for member, answer in enumerate(answers):
        episode = make_episode(TASK, turn(), turn(), answer=answer, tokens=tokens[member] if tokens else 3)
        score = await rewards.score(TASK, episode)
        made.append(msgspec.structs.replace(score.onto(episode), id=f"g#{member}"))
    return made


async def scores_of(spec: dict, *answers: str | None, **more) -> list[float | None]:
    rewards = RewardSet.from_recipe({"it": spec})
    return [score.components["it"] for score in await score_group(rewards, await a_group(rewards, *answers, **more))]


def lead(group: list[Episode], task: Task, component: str, factor: float = 1.0) -> list:
    """Shortest answer first; the member without one is not scored."""
    assert [episode.id for episode in group] == [f"g#{k}" for k in range(len(group))]
    assert task.data["answer"] == "4"
    group[0].turns.clear()  # a copy
    return [None if e.answer is None else Scored(factor * len(e.answer), component) for e in group]


async def test_a_function_takes_the_group_and_returns_a_value_per_member():
    rewards = RewardSet.from_recipe({"exact_match": {}, "led": {"use": lead, "factor": 2.0, "weight": 0.5}})
    members = await a_group(rewards, "4", "four", None)
    assert [(m.reward, m.pending, m.components) for m in members] == [
        (None, ["led"], {"exact_match": value}) for value in (1.0, 0.0, 0.0)
    ]
    scores = await score_group(rewards, members)
    assert [score.components for score in scores] == [
        {"exact_match": 1.0, "led": 2.0}, {"exact_match": 0.0, "led": 8.0}, {"exact_match": 0.0, "led": None},
    ]  # fmt: skip
    assert [score.total for score in scores] == [2.0, 4.0, 0.0]
    assert [score.notes for score in scores] == [{"led": "led"}, {"led": "led"}, {}]
    assert [len(member.turns) for member in members] == [2, 2, 2]
    # Scored again, with an earlier score of the group in the record: the same.
    again = await score_group(rewards, [s.onto(m) for s, m in zip(scores, members, strict=True)])
    assert again == scores


async def test_a_gate_may_stand_on_a_component_of_the_group():
    from agentrl.config.rewards import Gate

    gates = [Gate(on="majority_vote", at_least=1)]
    rewards = RewardSet.from_recipe({"majority_vote": {}, "exact_match": {}}, gates=gates)
    scores = await score_group(rewards, await a_group(rewards, "5", "5", "4"))
    assert [score.total for score in scores] == [1.0, 1.0, 0.0]
    assert [score.gates[0].open for score in scores] == [True, True, False]


async def test_a_function_of_the_group_may_score_turns():
    def by_turn(group):
        return [[float(k), None] for k, _ in enumerate(group)]

    rewards = RewardSet.from_recipe({"by_turn": by_turn, "exact_match": {}})
    first, second = await score_group(rewards, await a_group(rewards, "4", "5"))
    assert (first.turns, second.turns) == ([{"by_turn": 0.0}, {"by_turn": None}], [{"by_turn": 1.0}, {"by_turn": None}])
    assert second.turn_totals == [1.0, 0.0]


async def test_a_later_component_sees_the_earlier_ones():
    def seen(group):
        return [episode.components["majority_vote"] * 10 for episode in group]

    rewards = RewardSet.from_recipe({"majority_vote": {}, "seen": seen})
    scores = await score_group(rewards, await a_group(rewards, "4", "5", "4"))
    assert [score.components["seen"] for score in scores] == [10.0, 0.0, 10.0]


@pytest.mark.parametrize(
    ("returned", "said"),
    [(1.0, "float for a group of 2"), ([1.0], "1 values for a group of 2"), ([1.0, "x"], "'x'"),
     ([1.0, float("nan")], "nan"), ([[1.0], 0.0], "1 entries for 2 turns")],
)  # fmt: skip
async def test_what_is_no_value_per_member_is_refused(returned, said):
    def bad(group):
        return returned

    rewards = RewardSet.from_recipe({"bad": bad})
    with pytest.raises(RewardError, match=said):
        await score_group(rewards, await a_group(rewards, "4", "5"))


async def test_an_exception_names_the_group_and_the_line():
    def broken(group):
        raise KeyError("nothing")

    rewards = RewardSet.from_recipe({"broken": broken})
    with pytest.raises(RewardError, match=r"group g, .*test_reward_groups.py.*raised KeyError"):
        await score_group(rewards, await a_group(rewards, "4", "5"))


def test_a_function_cannot_take_the_group_and_one_episode():
    def both(group, episode, sandbox):
        return []

    with pytest.raises(RecipeError, match="takes the group and 'episode', 'sandbox'"):
        RewardSet.from_recipe({"both": both})


def test_members_stand_in_the_order_of_their_numbers():
    ids = ["x/t#10", "x/t#2~1", "x/t#0"]
    episodes = [msgspec.structs.replace(make_episode(TASK), id=id) for id in ids]
    assert [episode.id for episode in in_order(episodes)] == ["x/t#0", "x/t#2~1", "x/t#10"]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (("Four.", "five", "the four", None), [1.0, 0.0, 1.0, 0.0]),
        (("5", "4"), [1.0, 0.0]),  # a tie: the earlier member
        ((None, ""), [None, None]),
        (("4",), [None]),
    ],
)
async def test_majority_vote(answers, expected):
    assert await scores_of({"use": "majority_vote"}, *answers) == expected


async def test_relative_length_is_that_of_kimi():
    rewards = RewardSet.from_recipe({"exact_match": {}, "relative_length": {"right": "exact_match"}})
    members = await a_group(rewards, "4", "4", "5", "5", tokens=(10, 30, 10, 20))
    scores = await score_group(rewards, members)
    # (len - min) / (max - min) = 0, 1, 0, .5; a wrong member gains nothing by being short.
    assert [score.components["relative_length"] for score in scores] == [0.5, -0.5, 0.0, 0.0]
    assert await scores_of({"use": "relative_length"}, "4", "5", tokens=(5, 9)) == [0.5, -0.5]
    assert await scores_of({"use": "relative_length"}, "4", "5", tokens=(5, 5)) == [0.0, 0.0]
    assert await scores_of({"use": "relative_length"}, "4") == [None]


async def test_relative_length_names_a_component_that_is_missing():
    with pytest.raises(RecipeError, match="reads the component 'exact'"):
        await scores_of({"use": "relative_length", "right": "exact"}, "4", "5", tokens=(5, 9))


async def test_diversity_is_the_share_of_others_that_differ():
    assert await scores_of({"use": "diversity"}, "4", "4", "5") == [0.5, 0.5, 1.0]
    assert await scores_of({"use": "diversity", "of": "actions"}, "4", "4", "5") == [0.0, 0.0, 0.0]
    assert await scores_of({"use": "diversity"}, "4") == [None]


async def test_frequency_is_the_share_with_the_same_answer():
    assert await scores_of({"use": "frequency"}, "4", "4", "5", None) == [0.5, 0.5, 0.25, 0.0]
    assert await scores_of({"use": "frequency", "comparer": "numeric"}, "4", "4.0") == [1.0, 1.0]
    assert await scores_of({"use": "frequency"}, "4") == [None]


async def test_answer_entropy_is_that_of_the_group():
    # Shares 1/2, 1/4, 1/4: (1/2) ln 2 + 2 (1/4) ln 4 = (3/2) ln 2.
    assert await scores_of({"use": "answer_entropy"}, "4", "4", "5", None) == pytest.approx([1.5 * math.log(2)] * 4)
    assert await scores_of({"use": "answer_entropy"}, "4", "4") == [0.0, 0.0]
    assert await scores_of({"use": "answer_entropy"}, "4") == [None]


async def contrasts(texts: list[str], *answers: str, **settings) -> list[float | None]:
    rewards = RewardSet.from_recipe({"exact_match": {}, "contrast": {"right": "exact_match", **settings}})
    members = await a_group(rewards, *answers)
    said = [
        msgspec.structs.replace(member, turns=[msgspec.structs.replace(member.turns[0], text=text)])
        for member, text in zip(members, texts, strict=True)
    ]
    return [score.components["contrast"] for score in await score_group(rewards, said)]


async def test_contrast_pays_for_what_helps_in_this_group():
    drawn = ["<aux>a line</aux>", "<aux>a line</aux>", "none", "none"]
    # With the line 1 of 2 is right, without 0 of 2; then the other way round; then 1 of 2 in both.
    assert await contrasts(drawn, "4", "5", "5", "5", mark="<aux>") == [1.0, 1.0, 0.0, 0.0]
    assert await contrasts(drawn, "5", "5", "4", "5", mark="<aux>") == [-1.0, -1.0, 0.0, 0.0]
    assert await contrasts(drawn, "4", "5", "4", "5", mark="<aux>") == [0.0] * 4
    assert await contrasts(drawn, "4", "5", "5", "5", mark="<aux>", margin=0.5) == [0.0] * 4
    assert await contrasts(drawn[:2], "4", "5", mark="<aux>") == [0.0, 0.0]  # nobody went without
    assert await contrasts(drawn[:1], "4", mark="<aux>") == [None]


async def test_contrast_by_a_tool_counts_calls_that_were_carried_out():
    rewards = RewardSet.from_recipe({"exact_match": {}, "contrast": {"right": "exact_match", "tool": "look"}})
    members = []
    for number, (answer, outcome) in enumerate([("4", "ok"), ("5", "error")]):
        episode = make_episode(TASK, turn(call("look", outcome=outcome)), answer=answer)
        members.append(msgspec.structs.replace((await rewards.score(TASK, episode)).onto(episode), id=f"g#{number}"))
    assert [score.components["contrast"] for score in await score_group(rewards, members)] == [1.0, 0.0]


async def test_contrast_wants_one_of_tool_and_mark():
    with pytest.raises(RecipeError, match="one of 'tool' and 'mark'"):
        await contrasts(["a", "b"], "4", "5")
