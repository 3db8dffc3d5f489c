"""What is counted is one thing everywhere: reward, success, turns, and which answers are the same."""

from __future__ import annotations

import inspect
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from agentrl.api.certify.findings import gold_passes, passed
from agentrl.config.rewards import Gate
from agentrl.curriculum.methods.dart import DartRollouts, DartSuccesses, DartTurns
from agentrl.curriculum.methods.difficulty import Vade, Vas
from agentrl.curriculum.methods.hints import Seele
from agentrl.curriculum.methods.prof import Prof
from agentrl.curriculum.methods.relift import Relift
from agentrl.curriculum.methods.rorecomp import RoRecomp
from agentrl.curriculum.methods.zero_variance import ZeroVariance
from agentrl.curriculum.parts import CreditedEpisode, CurriculumContext, Group
from agentrl.estimators.registry import EpisodeCredit
from agentrl.rewards.components import RewardSet
from agentrl.rewards.functions.answers.comparers import Comparer, classes
from agentrl.rewards.functions.calibration import brier
from agentrl.rewards.functions.feedback import unary_feedback
from agentrl.rewards.functions.siblings import diversity, majority_vote
from agentrl.rewards.functions.verifiers import exact_match, f1, numeric
from agentrl.rollouts.summary import summary
from agentrl.types.episode import CallRecord, Episode, Node, Turn
from agentrl.types.episode import Context as Conversation
from agentrl.types.errors import RecipeError
from agentrl.types.figures.of_episodes import earned, figure, succeeded, turns_of
from agentrl.types.task import Task

CONTEXT = CurriculumContext(0, 10, random.Random(0), {}.__getitem__)
TASK = Task.of("t", "Go.", answer="3", hint="one two", hint_rate=0.0)


def full(episode: Episode) -> float:
    return 1.0


def none(episode: Episode) -> float:
    return 0.0


def by_turn(episode: Episode) -> list[float]:
    return [0.5 for _ in episode.turns]


def turn(index: int, context: str = "main", **given: Any) -> Turn:
    return Turn(index=index, node=index, text=f"{context} {index}", finish="stop", context=context, **given)


def dialogue(turns: int = 2, user: str = "user", **given: Any) -> Episode:
    """A policy and a user, in turn."""
    names = [name for _ in range(turns) for name in ("main", "user")]
    nodes = [
        Node(parent=k - 1, kind="sampled" if name == "main" else "spoken", token_ids=[1] * (name == "main"),
             logprobs=[-0.1 * (k + 1)] if name == "main" else None)
        for k, name in enumerate(names)
    ]  # fmt: skip
    said = [msgspec.structs.replace(turn(k, name), text=f"{user if name == 'user' else 'policy'} {k}") for k, name in
            enumerate(names)]  # fmt: skip
    return Episode(
        **{"id": "e", "group_id": "g", "task": TASK, "status": "done", "reward": 1.0, "answer": "a", **given},
        nodes=nodes, turns=given.pop("turns", said), 
        contexts={"user": Conversation(role="user", prompt=[], policy="user")},
    )  # fmt: skip


def scored(
    rewards: dict[str, Any],
    values: dict[str, Any],
    success: str | None = None,
    gates: Sequence[Gate] = (),
    **given: Any,
) -> Episode:
    episode = Episode(id="e", group_id="g", task=TASK, status="done", answer="x", **given)
    return RewardSet.from_recipe(rewards, gates=gates, success=success).combine(episode, values).onto(episode)


@pytest.mark.parametrize("weights", [(0.7, 0.2, 0.1), (0.6, 0.3, 0.1), (0.1,) * 10, (0.3, 0.3, 0.4)])
def test_an_episode_that_earns_everything_is_a_success(weights: tuple[float, ...]) -> None:
    rewards = {f"r{k}": {"use": full, "weight": weight} for k, weight in enumerate(weights)}
    episode = scored(rewards, dict.fromkeys(rewards, 1.0))
    assert episode.reward == 1.0  # as written: sums are rounded once
    assert summary([episode])["success"] == 1.0
    assert passed(episode, 1.0)
    part = Relift(Relift.Settings(script="oracle", buffer=1))
    part.observe([Group("t", TASK, [episode])], CONTEXT)
    assert part.demonstrate() is None


def test_success_is_what_the_recipe_names() -> None:
    rewards = {"settled": {"use": full, "weight": 0.9}, "overlong": {"use": none, "weight": 1.0}}
    lost = scored(rewards, {"settled": 0.0, "overlong": 1.5}, "settled")
    right = scored(rewards, {"settled": 1.0, "overlong": -0.3}, "settled")
    for each, is_one in ((lost, False), (right, True)):
        assert summary([each])["success"] == float(is_one)
        assert passed(each, 1.0) is succeeded(each) is is_one
    with pytest.raises(RecipeError, match="'setled' is no component"):
        RewardSet.from_recipe(rewards, success="setled")


def test_a_gold_that_fails_is_shown_with_what_counts() -> None:
    """A reward above 1 that fails was printed alone: the turns' part counts as no success."""
    episode = scored({"settled": {"use": full, "weight": 0.95}}, {"settled": 1.0})
    episode = msgspec.structs.replace(episode, turns=[turn(0, reward=0.1)])
    (said,) = gold_passes([episode], 1.0).tasks.values()
    assert said.startswith("reward 1.05, of which 0.95 counts as success (done")
    whole = scored({"settled": {"use": full, "weight": 0.5}}, {"settled": 1.0})
    assert gold_passes([whole], 1.0).tasks == {"t": "reward 0.5 (done, )"}


@pytest.mark.parametrize("name", ["reward", "total"])
def test_a_component_named_as_the_sum_of_all_is_not_taken_for_it(name: str) -> None:
    """`zero_variance` without a metric dropped a group whose outcomes differ, and half a reward was a success."""
    rewards: dict[str, Any] = {name: {"use": full, "weight": 0.5}, "other": {"use": none, "weight": 0.5}}
    episodes = [scored(rewards, {name: 1.0, "other": value}) for value in (0.0, 1.0)]
    assert [figure(episode, name) for episode in episodes] == [0.5, 1.0]
    assert [succeeded(episode) for episode in episodes] == [False, True]
    group = Group("g", TASK, episodes)
    assert ZeroVariance().select([group], 1, CONTEXT) == [group]
    with pytest.raises(RecipeError, match=f"'{name}' is no component, or the name of their sum"):
        RewardSet.from_recipe(rewards, success=name)


def test_a_component_success_tells_it_where_no_other_is_named() -> None:
    rewards = {"score": full, "success": {"use": full, "weight": 0}}
    assert not succeeded(scored(rewards, {"score": 3.0, "success": 0.0}))
    assert succeeded(scored(rewards, {"score": 0.1, "success": 1.0}))


def test_rewards_of_turns_alone_are_the_reward() -> None:
    episode = scored({"gain": by_turn}, {"gain": [0.5, 0.7]}, turns=[turn(0), turn(1)])
    found = summary([episode])
    assert (found["reward"], found["success"], found["turns"]) == (pytest.approx(1.2), 1.0, 2)
    assert passed(episode, 1.0)
    assert figure(episode, "reward") == 0.0
    assert figure(episode, "total") == earned(episode) == pytest.approx(1.2)
    assert figure(episode, "gain") == pytest.approx(1.2)
    assert figure(episode, "absent") is None


def test_a_penalty_of_turns_spoils_no_success() -> None:
    rewards = {"right": full, "penalty": by_turn}
    episode = scored(rewards, {"right": 1.0, "penalty": [-0.1]}, turns=[turn(0)])
    assert succeeded(episode)
    assert summary([episode])["reward"] == pytest.approx(0.9)


def test_what_was_not_scored_is_no_failure() -> None:
    rewards = {"score": full, "settled": {"use": full, "weight": 0}}
    unknown = scored(rewards, {"score": 1.0, "settled": None}, "settled")
    assert not succeeded(unknown)
    assert summary([unknown])["success"] is None


def test_a_turn_reward_named_as_an_outcome_is_not_added_to_it() -> None:
    rewards = {"letters": full, "other": none}
    paid = [turn(0, rewards={"letters": 0.5}), turn(1, rewards={"hint": 0.25})]
    episode = scored(rewards, {"letters": 1.0, "other": 0.0}, turns=paid)
    found = summary([episode])
    assert found["rewards/letters"] == figure(episode, "letters") == 1.0
    assert found["rewards/hint"] == figure(episode, "hint") == 0.25


def test_rewards_of_other_voices_count_nowhere() -> None:
    gated = [Gate(on="polite", at_least=1.0), Gate(on="far", above=5.0)]
    rewards = {"polite": by_turn, "far": by_turn, "right": full}
    talk = dialogue(reward=None)
    score = RewardSet.from_recipe(rewards, gates=gated).combine(
        talk, {"polite": [0.0, 1.0, 0.0, 1.0], "far": [3.0, 9.0, 2.0, 9.0], "right": 1.0}
    )
    assert [(gate.on, gate.value, gate.open) for gate in score.gates] == [("polite", 0.0, False), ("far", 5.0, False)]
    episode = score.onto(talk)
    found = summary([episode])
    assert [found[f"rewards/{name}"] for name in rewards] == [figure(episode, name) for name in rewards] == [0, 5, 1]


@pytest.mark.parametrize(
    ("gate", "values", "opens"),
    [
        ({"at_least": 0.9}, [0.3, 0.3, 0.3 - 1e-16], True),
        ({"above": 0.3}, [0.1, 0.2, 0.0], False),
        ({"above": 0.3}, [0.1, 0.2, 0.1], True),
    ],
)
def test_a_gate_opens_at_its_threshold_whatever_the_rounding(
    gate: dict[str, float], values: list[float], opens: bool
) -> None:
    rewards = {"steps": by_turn, "right": full}
    episode = scored(
        rewards, {"steps": values, "right": 1.0}, turns=[turn(k) for k in range(3)], gates=[Gate(on="steps", **gate)]
    )
    assert episode.gates[0].open is opens


PENALISED = [
    Episode(
        id=f"t#{k}", group_id="t", task=TASK, status="done", reward=0.95,
        nodes=[Node(parent=-1, kind="sampled", token_ids=[1])], turns=[turn(0, rewards={"process": 0.5}, reward=0.0)],
        components={"exact_match": 1.0, "overlong": -0.05},
    )
    for k in range(8)
]  # fmt: skip


@pytest.mark.parametrize("part", [Vas, Vade, Seele, Relift, DartRollouts, DartSuccesses, Prof, RoRecomp])
def test_every_part_that_counts_successes_takes_a_metric(part: Any) -> None:
    assert {"metric", "success"} <= part.Settings.model_fields.keys()


def test_right_answers_with_a_penalty_are_solved_by_the_metric() -> None:
    group = Group("t", TASK, PENALISED)
    by = {"metric": "exact_match"}
    vas = Vas(Vas.Settings(every=1, **by))
    vas.observe([group], CONTEXT)
    assert vas.state["rates"] == {"t": 1.0}
    relift = Relift(Relift.Settings(script="oracle", buffer=1, **by))
    relift.observe([group], CONTEXT)
    assert relift.demonstrate() is None
    dart = DartRollouts(DartRollouts.Settings(**by))
    dart.observe([group], CONTEXT)
    assert dart.state["t"]["rate"] == 1.0


def test_a_group_whose_seats_differ_varies() -> None:
    """Both seats are rewarded for what they won: the sum is the same in each game."""

    def game(winner: int) -> Episode:
        turns = [turn(k, agent=f"player {k}", rewards={"won": float(k == winner)}) for k in (0, 1)]
        return Episode(id=f"g#{winner}", group_id="g", task=TASK, status="done", reward=0.0, turns=turns)

    groups = [Group("g", TASK, [game(0), game(1)]), Group("h", TASK, [game(0), game(0)])]
    kept = ZeroVariance(ZeroVariance.Settings(metric="total")).select(groups, 2, CONTEXT)
    assert [group.id for group in kept] == ["g"]


def test_rewards_that_differ_by_rounding_are_equal() -> None:
    members = [msgspec.structs.replace(PENALISED[k], reward=value) for k, value in enumerate((0.1 + 0.2, 0.3))]
    assert ZeroVariance().select([Group("t", TASK, members)], 1, CONTEXT) == []


def test_turns_of_other_voices_do_not_count() -> None:
    episode = dialogue(5)
    assert turns_of(episode) == summary([episode])["turns"] == 5
    credit = EpisodeCredit(episode_id="e", estimator="grpo", turn_advantages=[1.0] * 10)
    (out,) = DartTurns(DartTurns.Settings(keep=0.8)).refine([CreditedEpisode(episode, credit)], CONTEXT)
    assert out.masked_turns == {0}  # the surest of the policy's five
    assert diversity([dialogue(user="yes"), dialogue(user="no")], of="actions") == [0.0, 0.0]


@pytest.mark.parametrize(
    ("gold", "reply"), [("Paris", "Paris <confidence>0.9</confidence>"), ("42", "42 <confidence>90%</confidence>")]
)
def test_a_confidence_is_no_part_of_an_answer(gold: str, reply: str) -> None:
    task = Task.of("t", "?", answer=gold)
    episode = Episode(id="e", group_id="g", task=task, status="done", answer=reply, turns=[turn(0)])
    assert brier(task, episode).value == pytest.approx(0.99)
    assert exact_match(task, episode) == f1(task, episode) == 1.0
    if gold == "42":
        assert numeric(task, episode) == 1.0


SURE = "0.5 <confidence>1</confidence>"


def answering(answer: str, gold: str = "3") -> Episode:
    call = CallRecord(id="1", name="answer", arguments={"answer": answer}, outcome="ok", result="", duration_s=0.0)
    task = Task.of("t", "?", answer=gold)
    return Episode(id=answer, group_id="g", task=task, status="done", answer=answer, turns=[turn(0, calls=[call])])


@pytest.mark.parametrize(
    ("gold", "said", "same"),
    [
        ("3", "-3", False), ("15", "1.5", False), ("12", "1/2", False), ("-0.5", "0.5", False), ("1,000", "1000", True),
        ("3", "3.", True), ("The Beatles", "beatles", True), ("1,5", "15", False), ("2", " 2 ", True),
        ("-3", "\u22123", True), ("3 km", "-3 km", False), ("15 km", "1.5 km", False), ("12 km", "1/2 km", False),
        ("2x", "-2x", False), ("23", "(2,3)", False), ("(2, 3)", "(2,3)", True), ("1012", "10-12", False),
        ("3", "-$3", False), ("-3", "-$3", True), ("1912", "(1912)", True), ("1912", "the 1912!", True),
        ("3", "$3", True), ("F-16", "f16", True), ("Mu\u0308ller", "M\xfcller", True),
    ],
)  # fmt: skip
def test_numbers_are_compared_as_numbers(gold: str, said: str, same: bool) -> None:
    episode = answering(said, gold)
    assert exact_match(episode.task, episode) == float(same)
    assert unary_feedback(episode.task, episode).value == [float(same)]


def test_words_shared_by_answers_leave_numbers_whole() -> None:
    task = Task.of("t", "?", answer="-1.5 km")
    values = [f1(task, answering(said, "-1.5 km")) for said in ("-1.5 km", "1.5 km", "15 km")]
    assert values == [1.0, 0.5, 0.5]


def test_votes_for_different_numbers_are_different() -> None:
    assert majority_vote([answering(x) for x in ("1.5", "15", "1/5", "9", "9")]) == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert diversity([answering("-3"), answering("3")]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("how", "answers", "expected"),
    [
        ("exact", ["The end", "the end", " The end "], [0, 1, 0]),
        ("squad", ["The end", "the end!", None], [0, 0, None]),
        ("numeric", ["x = 1/2", "0.5", "5"], [0, 0, 2]),
        ("numeric", ["none", "3", " none", "-$3", "-3"], [0, 1, 0, 3, 3]),
        ("exact", ["e\u0301", "\xe9", "E"], [0, 0, 2]),
    ],
)
def test_comparers(how: Comparer, answers: list[str | None], expected: list[int | None]) -> None:
    assert classes(answers, how) == expected


@pytest.mark.slow
async def test_maths_compares_symbolically() -> None:
    pytest.importorskip("math_verify", reason="pip install 'agentrl-framework[maths]'")
    given = classes([r"\frac{1}{2}", "0.5", "2", None], "maths")
    assert inspect.isawaitable(given)
    assert await given == [0, 0, 2, None]
    task = Task.of("t", "?", answer=r"\frac12")
    episode = Episode(
        id="e", group_id="g", task=task, status="done", answer="0.5 <confidence>1</confidence>", turns=[turn(0)]
    )
    right: Any = exact_match(task, episode, comparer="maths")
    assert await right == 1.0
    sure: Any = brier(task, episode, metric="maths")
    assert (await sure).value == 1.0
