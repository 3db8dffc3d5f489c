"""Gates, turn components, steps and what they come to."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from agentrl.config.rewards import Gate, RewardStep
from agentrl.rewards import RewardError, RewardSet, Scored
from agentrl.rewards.steps import apply
from agentrl.types.errors import RecipeError, ScoringPrevented
from agentrl.types.task import Task
from tests.rewards.make import make_episode, turn

TASK = Task.of("t", "Buy it.")


def given(value):
    return lambda: value


async def score(rewards, *turns, gates=()):
    return await RewardSet.from_recipe(rewards, gates=gates).score(TASK, make_episode(TASK, *turns))


async def test_a_function_that_asks_for_a_turn_scores_turns_and_weights_reach_them():
    def polite(turn) -> float:
        return float("please" in turn.text)

    scored = await score(
        {"bought": given(1.0), "polite": {"use": polite, "weight": 0.1}, "counted": given([2, None])},
        turn(text="one please", rewards={"tool": 0.5}),
        turn(text="now"),
    )
    assert scored.components == {"bought": 1.0}
    assert scored.turns == [{"tool": 0.5, "polite": 1.0, "counted": 2.0}, {"polite": 0.0, "counted": None}]
    # 0.5 of the tool + 0.1 * 1 + 2, and 0.1 * 0.
    assert scored.turn_totals == pytest.approx([2.6, 0.0])
    assert scored.total == 1.0


async def test_a_recipe_of_turn_rewards_alone_has_the_outcome_zero():
    assert (await score({"a": given([1.0])}, turn())).total == 0.0
    assert (await score({"a": given([None])}, turn())).total is None
    # An outcome component that was never scored is not made up.
    assert (await score({"a": given([1.0]), "judge": given(None)}, turn())).total is None


async def test_required_components():
    rewards = {"judge": {"use": given(None), "required": True}, "bought": given(1.0)}
    assert (await score(rewards)).total is None
    rewards["judge"]["required"] = False
    assert (await score(rewards)).total == 1.0


async def test_tool_rewards_are_weighed_by_name_and_counted_once():
    turns = [turn(rewards={"tool": 0.5, "other": 1.0}), turn()]
    scored = await score({"bought": given(0.0), "tool": {"use": "tool_reward", "weight": 3}}, *turns)
    assert scored.turns == [{"tool": 0.5, "other": 1.0}, {"tool": None}]
    assert scored.turn_totals == [3 * 0.5 + 1.0, 0.0]


@pytest.mark.parametrize(("value", "gate", "open"), [
    (0.5, {"at_least": 0.5}, True),
    (0.5, {"above": 0.5}, False),
    (0.49, {"at_least": 0.5}, False),
    (0.0, {"above": -0.1}, True),
    (0.0, {"above": 0.0}, False),
    (0.0, {"at_least": 0.0}, True),
])  # fmt: skip
async def test_what_a_gate_shuts_is_zeroed_everywhere(value, gate, open):
    rewards = {"bought": {"use": given(value), "weight": 2}, "style": given(5.0), "step": given([1.0, 1.0])}
    turns = [turn(rewards={"tool": 1.0}), turn()]
    scored = await score(rewards, *turns, gates=[Gate(on="bought", **gate)])
    (verdict,) = scored.gates
    assert (verdict.open, verdict.value, set(verdict.shuts)) == (open, value, {"style", "step", "tool"})
    # Open: 2 * value + 5; 1 of the tool and 1 of the step. Raw values are kept either way.
    assert scored.total == 2 * value + (5.0 if open else 0.0)
    assert scored.turn_totals == ([2.0, 1.0] if open else [0.0, 0.0])
    assert scored.components["style"] == 5.0
    assert scored.turns[0]["step"] == 1.0


async def test_levels_are_in_order():
    # submitted 1 >= 1 opens; passed 0 >= 1 shuts what is below it, not what is above it.
    rewards = {"submitted": given(1.0), "passed": given(0.0), "format": given(0.5)}
    gates = [Gate(on="submitted", at_least=1), Gate(on="passed", at_least=1)]
    scored = await score(rewards, gates=gates)
    assert [(v.on, v.open, v.shuts) for v in scored.gates] == [
        ("submitted", True, ["passed", "format"]),
        ("passed", False, ["format"]),
    ]
    assert scored.total == 1.0
    only = await score(rewards, gates=[Gate(on="passed", at_least=1, shuts=["submitted"])])
    assert only.total == 0.5


async def test_a_gate_on_turns_looks_at_their_sum_and_one_on_nothing_at_no_reward():
    rewards = {"bought": given(1.0), "step": given([0.5, -0.75])}
    scored = await score(rewards, turn(), turn(), gates=[Gate(on="step", at_least=0)])
    assert scored.gates[0].value == -0.25
    assert scored.total == 0.0
    unknown = await score({"a": given(None), "b": given(1.0)}, gates=[Gate(on="a", at_least=0)])
    assert (unknown.gates[0].open, unknown.total) == (None, None)
    assert "never scored" in str(unknown.gates[0])


@pytest.mark.parametrize(("gates", "message"), [
    ([Gate(on="bougth", at_least=1)], r"gate.0.on: .*'bougth'\n.*did you mean 'bought'"),
    ([Gate(on="bought", at_least=1, shuts=["stile"])], r"gate.0.shuts: .*'stile'\n.*did you mean 'style'"),
    ([Gate(on="bought", at_least=1), Gate(on="bought", above=1)], r"gate.1: the gate is the second on 'bought'"),
    ([Gate(on="bought", at_least=1, shuts=["bought"])], r"gate.0: the gate shuts itself"),
])  # fmt: skip
def test_gates_that_cannot_be(gates, message):
    with pytest.raises(RecipeError, match=message):
        RewardSet.from_recipe({"bought": given(1), "style": given(1)}, gates=gates)


@pytest.mark.parametrize("thresholds", [{}, {"at_least": 1, "above": 1}])
def test_a_gate_has_one_threshold(thresholds):
    with pytest.raises(ValidationError, match="exactly one of 'at_least' and 'above'"):
        Gate(on="a", **thresholds)


async def test_steps_in_order():
    steps = [{"normalise": [0, 10]}, {"clip": [0, 0.5]}, {"backward": {"false_positive": 0.1, "false_negative": 0.2}}]
    # 8 -> 0.8 -> 0.5 -> (0.5 - 0.1) / 0.7.
    scored = await score({"a": {"use": given(8.0), "then": steps}})
    assert scored.total == pytest.approx(0.4 / 0.7)
    assert scored.components["a"] == scored.total
    assert apply([RewardStep.model_validate(step) for step in steps], None) is None


async def test_a_threshold_tells_success():
    """A value that misses it by rounding alone has reached it."""
    for value, reached in ((0.9 - 1e-12, 1.0), (0.89, 0.0)):
        solved = {"use": given(value), "weight": 0, "then": [{"at_least": 0.9}]}
        scored = await score({"a": given(value), "solved": solved})
        assert (scored.components["solved"], scored.total) == (reached, value)


def prevented():
    raise ScoringPrevented("the database is gone")


@pytest.mark.parametrize(("more", "worth"), [
    ({}, 0.0),
    ({"then": [{"normalise": [-1, 0]}]}, 0.0),  # else the agent would earn 1
    ({"then": [{"backward": {"false_positive": 0.1}}]}, -0.1 / 0.9),  # no more than a failure
    ({"worst": -1}, -1.0),
    ({"weight": -1, "then": [{"normalise": [1, 2]}]}, 0.0),  # a penalty is no bonus
    ({"weight": -1, "worst": 1}, -1.0),
    ({"then": [{"normalise": [-1, 1]}, {"forward": {"false_negative": 0.1}}]}, 0.0),  # which takes no half
])  # fmt: skip
async def test_an_agent_that_prevents_the_scoring_earns_nothing(more, worth):
    scored = await score({"a": {"use": prevented, **more}})
    assert scored.total == pytest.approx(worth)
    assert scored.notes == {"a": "the database is gone"}


def test_the_keys_of_a_component_are_no_settings_of_its_function():
    def rated(worst=3.0):
        return worst

    with pytest.raises(RecipeError, match="has a parameter 'worst', which is a key of every component"):
        RewardSet.from_recipe({"a": {"use": rated, "worst": 5}})


async def test_process_scores():
    # Clip with eta 0.7: 0.8 - 0.7 > 0 becomes 0, 0.6 becomes -0.1. Delta: 0.8 - 0.6, then 0.6 itself; None stays.
    turns = [turn(), turn(), turn()]
    prm = given([0.8, 0.6, None])
    scored = await score({"a": given(0.0), "prm": {"use": prm, "then": [{"process_clip": 0.7}]}}, *turns)
    assert scored.turn_totals == pytest.approx([0.0, -0.1, 0.0])
    scored = await score({"a": given(0.0), "prm": {"use": prm, "then": [{"process_delta": True}]}}, *turns)
    assert [one["prm"] for one in scored.turns] == [pytest.approx(0.2), pytest.approx(0.6), None]


@pytest.mark.parametrize(("then", "message"), [
    ([{"clip": [0, 1], "normalise": [0, 1]}], r"rewards.a.then.0: .*exactly one of: normalise, clip"),
    ([{"clap": [0, 1]}], r"rewards.a.then.0.clap: extra inputs"),
    ([{"clip": [1, 0]}], r"low < high"),
    ([{"backward": {"false_positive": 0.6, "false_negative": 0.4}}], r"sum to 1 or more"),
])  # fmt: skip
def test_steps_that_cannot_be(then, message):
    with pytest.raises(RecipeError, match=message):
        RewardSet.from_recipe({"a": {"use": given(1), "then": then}})


async def test_a_step_that_does_not_fit_names_the_component():
    with pytest.raises(RewardError, match="'a' raised ValueError: the forward correction takes 0 or 1, found 0.5"):
        await score({"a": {"use": given(0.5), "then": [{"forward": {"false_negative": 0.1}}]}})
    with pytest.raises(RewardError, match="process_delta takes a component that scores turns"):
        await score({"a": {"use": given(0.5), "then": [{"process_delta": True}]}})


async def test_as_many_entries_as_turns():
    with pytest.raises(RewardError, match=r"component 'a' .*returned 1 entries for 2 turns"):
        await score({"a": given([1.0])}, turn(), turn())


async def test_notes_are_kept():
    scored = await score({"a": given(Scored(0.5, "half of it")), "b": lambda turn: Scored(1, "fine")}, turn())
    assert scored.notes == {"a": "half of it", "b": "turn 0: fine"}
    assert scored.total == 0.5


def test_a_misspelt_parameter_is_named():
    def mine(epsiode) -> float:
        return 1.0

    with pytest.raises(
        RecipeError, match=r"rewards.mine: mine has a parameter 'epsiode' that nothing fills\n.*'episode'"
    ):
        RewardSet.from_recipe({"mine": mine})
