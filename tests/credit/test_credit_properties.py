"""What must hold for any table: order, shifts, groups of one, equal scores."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentrl.credit.discount import discounted
from agentrl.credit.normalise import normalise
from agentrl.credit.registry import BUILT_IN
from agentrl.credit.table import CreditTable
from agentrl.errors import CreditError

NUMBERS = st.integers(-8, 8).map(lambda n: n / 4)
STEPS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), NUMBERS, st.integers(0, 5)), max_size=6)
TRAJECTORIES = st.lists(st.tuples(st.sampled_from(["g", "h", "k"]), NUMBERS, STEPS), min_size=1, max_size=9)
WEIGHTING = st.sampled_from(["trajectory", "turn", "token"])
STD = st.sampled_from(["sample", "population", "none"])


def table_of(trajectories: list, names: list[str] | None = None) -> CreditTable:
    turns = [turn for _, _, steps in trajectories for turn in steps]
    return CreditTable.from_columns(
        episode=names or [str(i) for i in range(len(trajectories))],
        group=[group for group, _, _ in trajectories],
        score=[score for _, score, _ in trajectories],
        length=[len(steps) for _, _, steps in trajectories],
        state=[state for state, _, _ in turns],
        reward=[reward for _, reward, _ in turns],
        tokens=[tokens for _, _, tokens in turns],
    )


def run(name: str, table: CreditTable, **settings: object) -> np.ndarray:
    estimator = BUILT_IN[name]
    if "state" in estimator.needs and not (table.state >= 0).any():
        return np.zeros(table.n_turns)
    return estimator(table, estimator.settings(**settings)).turn


@pytest.mark.parametrize("name", BUILT_IN)
@given(data=st.data(), trajectories=TRAJECTORIES, weighting=WEIGHTING, std=STD)
def test_order_of_episodes_does_not_matter(name, data, trajectories, weighting, std):
    order = data.draw(st.permutations(range(len(trajectories))))
    table = table_of(trajectories)
    other = table_of([trajectories[i] for i in order], [str(i) for i in order])
    found, moved = run(name, table, weighting=weighting, std=std), run(name, other, weighting=weighting, std=std)
    for place, i in enumerate(order):
        mine, theirs = slice(*table.offsets[i : i + 2]), slice(*other.offsets[place : place + 2])
        np.testing.assert_allclose(found[mine], moved[theirs], atol=1e-9)


@pytest.mark.parametrize("name", BUILT_IN)
@given(trajectories=TRAJECTORIES, weighting=WEIGHTING, std=STD)
def test_groups_do_not_see_each_other(name, trajectories, weighting, std):
    assume(any(state for group, _, steps in trajectories for state, _, _ in steps if group == trajectories[0][0]))
    table = table_of(trajectories)
    whole = run(name, table, weighting=weighting, std=std)
    alone = table_of([trajectory for trajectory in trajectories if trajectory[0] == trajectories[0][0]])
    mine = whole[table.turn_group == 0]
    np.testing.assert_allclose(mine, run(name, alone, weighting=weighting, std=std), atol=1e-9)


@given(trajectories=TRAJECTORIES, weighting=WEIGHTING, std=STD, shift=NUMBERS)
def test_grpo_ignores_a_constant_added_to_a_group(trajectories, weighting, std, shift):
    moved = [(group, score + shift * (group == "g"), steps) for group, score, steps in trajectories]
    before = run("grpo", table_of(trajectories), weighting=weighting, std=std)
    np.testing.assert_allclose(before, run("grpo", table_of(moved), weighting=weighting, std=std), atol=1e-9)


@pytest.mark.parametrize("name", ["grpo", "returns"])
@given(steps=STEPS, score=NUMBERS, weighting=WEIGHTING, std=STD)
def test_a_group_of_one_gets_nothing_by_default(name, steps, score, weighting, std):
    assert not run(name, table_of([("g", score, steps)]), weighting=weighting, std=std).any()


@given(
    scores=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=3),
    copies=st.integers(1, 5),
    std=STD,
    weights=st.lists(st.integers(0, 7), min_size=15, max_size=15),
)
def test_equal_values_give_exactly_zero(scores, copies, std, weights):
    values = np.repeat(scores, copies)
    groups = np.repeat(np.arange(len(scores)), copies)
    assert not normalise(values, groups, np.array(weights[: len(values)], float), std=std).any()


@given(st.lists(st.tuples(st.integers(0, 2), NUMBERS, st.integers(1, 4)), min_size=1, max_size=8), STD)
def test_a_weight_is_as_good_as_repeating_the_value(entries, std):
    groups, values, weights = (np.array(column) for column in zip(*entries, strict=True))
    members = np.bincount(groups)
    weighted = normalise(values, groups, weights.astype(float), std=std)
    repeated = normalise(np.repeat(values, weights), np.repeat(groups, weights), std=std, members=members)
    np.testing.assert_allclose(np.repeat(weighted, weights), repeated, atol=1e-9)


@given(st.lists(st.lists(st.floats(-10, 10), max_size=40), max_size=5), st.floats(0, 1))
def test_discounted_is_the_plain_recursion(sequences, gamma):
    wanted: list[float] = []
    for sequence in sequences:
        sums, running = [], 0.0
        for value in reversed(sequence):
            running = value + gamma * running
            sums.append(running)
        wanted += sums[::-1]
    left = [n for sequence in sequences for n in range(len(sequence) - 1, -1, -1)]
    found = discounted(np.array([v for s in sequences for v in s]), np.array(left, np.int64), gamma)
    np.testing.assert_allclose(found, wanted, atol=1e-9)


@given(TRAJECTORIES, st.sampled_from([0.0, 0.5, 0.95, 1.0]), st.sampled_from([0.0, 0.5, 2.0]))
def test_gigpo_is_the_published_rule_in_plain_loops(trajectories, gamma, omega):
    table = table_of(trajectories)
    found = run("gigpo", table, gamma=gamma, omega=omega, std="none")
    if not (table.state >= 0).any():
        return
    members, anchors, rows = defaultdict(list), defaultdict(list), []
    for group, score, steps in trajectories:
        members[group].append(score + sum(reward for _, reward, _ in steps))
        for t, (state, _, _) in enumerate(steps):
            togo = sum(gamma ** (k - t) * steps[k][1] for k in range(t, len(steps)))
            togo += gamma ** (len(steps) - 1 - t) * score
            anchors[group, state].append(togo)
            rows.append((group, members[group][-1], state, togo))
    for value, (group, total, state, togo) in zip(found, rows, strict=True):
        episode = total - np.mean(members[group])
        step = togo - np.mean(anchors[group, state]) if state is not None else 0.0
        assert value == pytest.approx(episode + omega * step, abs=1e-9)


@given(TRAJECTORIES, st.sampled_from(["grpo", "gigpo", "returns"]))
def test_parts_add_up(trajectories, name):
    table = table_of(trajectories)
    if (table.state >= 0).any():
        result = BUILT_IN[name](table)
        np.testing.assert_allclose(sum(result.parts.values()), result.turn, atol=1e-12)


class TestSingleton:
    @pytest.mark.parametrize(("lengths", "weighting", "wanted"), [
        ([1], "turn", 0.5), ([3], "turn", 0.0), ([3], "trajectory", 0.5), ([1], "token", 0.0), ([2, 2], "turn", 0.0),
    ])  # fmt: skip
    def test_raw_keeps_the_score_of_a_single_observation(self, lengths, weighting, wanted):
        table = table_of([("g", 0.5, [("a", 0.0, 2)] * n) for n in lengths])
        found = run("grpo", table, singleton="raw", std="none", weighting=weighting)
        assert found.tolist() == [wanted] * sum(lengths)

    @pytest.mark.parametrize("name", BUILT_IN)
    def test_error_names_the_group(self, name):
        table = table_of([("g", 1.0, [("a", 0.0, 2)] * 3), ("g", 0.0, [("a", 0.0, 1)]), ("lone", 0.0, [("a", 0, 1)])])
        with pytest.raises(CreditError, match="group 'lone' has one member") as caught:
            run(name, table, singleton="error", weighting="turn")
        assert "zero" in str(caught.value)
