"""What must hold for any table: order, shifts, duplicates, groups of one, equal scores, stopping."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentrl.estimators.arrays import discounted
from agentrl.estimators.normalise import normalise, whiten
from agentrl.estimators.registry import ESTIMATORS, CreditAssigner
from agentrl.estimators.table import CreditTable
from agentrl.types.errors import CreditError
from tests.estimators.tables import Member, Step, run, table_of, with_everything

BUILT_IN = ESTIMATORS.all()

NUMBERS = st.integers(-8, 8).map(lambda n: n / 4)
SCORES = st.integers(0, 4).map(lambda n: n / 4)
STEPS = st.lists(st.builds(Step, st.sampled_from(["a", "b", "c", None]), NUMBERS, st.integers(0, 5)), max_size=6)
MEMBERS = st.lists(st.builds(Member, st.sampled_from(["g", "h", "k"]), SCORES, STEPS), min_size=1, max_size=9)
WEIGHTING = st.sampled_from(["trajectory", "turn", "token"])
STD = st.sampled_from(["sample", "population", "none"])

SHIFT_INVARIANT: dict[str, dict[str, float]] = {
    "grpo": {}, "dr_grpo": {}, "rloo": {}, "opo": {}, "asymre": {}, "opmd": {}, "pass_at_k": {}, "canon": {},
    "reinforce_pp_baseline": {}, "treepo": {}, "pref_grpo": {}, "flow_grpo": {}, "salt": {}, "tempo": {}, "mt_grpo": {},
    "high_entropy": {}, "capo": {}, "implicit_prm": {}, "igpo": {"pools": "separate"},
    "a2tgpo": {}, "spro": {}, "aem": {}, "istar": {}, "carl": {},
    # Undiscounted, the outcome is in every turn's return.
    "returns": {"gamma": 1.0}, "gigpo": {"gamma": 1.0}, "rtmc": {"gamma": 1.0},
}  # fmt: skip
"""A constant added to all outcomes of a group changes nothing, under these settings."""

READS_THE_BATCH = {
    "lite_ppo": "divides by the deviation of the batch",
    "grpo_lambda": "chooses the groups in which length counts",
    "gpg": "counts the batch's scores that are not 0",
    "bnpo": "fits a Beta distribution to the batch's groups",
    "riskpo": "bundles tasks",
    "copo": "compares the groups of the batch",
    "reinforce_pp": "whitens",
    "reinforce_pp_baseline": "whitens",
    "treepo": "whitens",
    "gagpo": "divides by the deviation of the batch",
    "carl": "counts the tokens of the batch",
    **dict.fromkeys(["gae", "turn_gae", "bi_level_gae", "ppr", "spa", "implicit_prm"], "whitens"),
    "mars": "compares the roles of the batch",
    "high_entropy": "selects tokens of the batch",
}
"""All others must give a group the same, whatever else is in the batch."""

NOT_ABOUT_ITS_GROUP = {
    "a_lol": "compares with a critic",
    "grpo_lambda": "tells right answers apart by their length",
    "asymre": "credits a group without variance on purpose",
    "w_reinforce": "has no baseline",
    "nsr": "has no baseline",
    "riskpo": "compares bundles of tasks",
    "copo": "compares the groups of the batch",
    "reinforce_pp": "compares with the batch",
    "reinforce_pp_baseline": "whitening shifts the zero",
    "treepo": "whitening shifts the zero",
}
"""Of those that credit trajectories, all others: nothing for a group of one, nor for a group of equal scores."""

COMPARES = [n for n, e in BUILT_IN.items() if e.granularity == "trajectory" and n not in NOT_ABOUT_ITS_GROUP]

ALL = pytest.mark.parametrize("name", BUILT_IN)


@ALL
@settings(max_examples=15)
@given(data=st.data(), members=MEMBERS, weighting=WEIGHTING, std=STD)
def test_order_of_episodes_does_not_matter(name, data, members, weighting, std):
    order = data.draw(st.permutations(range(len(members))))
    table = with_everything(table_of(members))
    other = with_everything(table_of([members[i] for i in order], [str(i) for i in order]))
    found, moved = run(name, table, weighting=weighting, std=std), run(name, other, weighting=weighting, std=std)
    for place, i in enumerate(order):
        mine, theirs = slice(*table.offsets[i : i + 2]), slice(*other.offsets[place : place + 2])
        np.testing.assert_allclose(found.turn[mine], moved.turn[theirs], atol=1e-7)
        if found.token is not None:
            mine = slice(*table.token_offsets[[mine.start, mine.stop]])
            theirs = slice(*other.token_offsets[[theirs.start, theirs.stop]])
            np.testing.assert_allclose(found.token[mine], moved.token[theirs], atol=1e-7)


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name not in READS_THE_BATCH])
@settings(max_examples=15)
@given(members=MEMBERS, weighting=WEIGHTING, std=STD)
def test_groups_do_not_see_each_other(name, members, weighting, std):
    table = with_everything(table_of(members))
    mine = [i for i, member in enumerate(members) if member.group == members[0].group]
    alone = with_everything(table_of([members[i] for i in mine], [str(i) for i in mine]))
    # Where no turn has a recorded state, an estimator that needs them refuses the batch.
    assume("state" not in BUILT_IN[name].needs or bool(alone.states) == bool(table.states))
    whole = run(name, table, weighting=weighting, std=std).turn[table.turn_group == 0]
    np.testing.assert_allclose(whole, run(name, alone, weighting=weighting, std=std).turn, atol=1e-9)


@pytest.mark.parametrize("name", SHIFT_INVARIANT)
@settings(max_examples=15)
@given(members=MEMBERS, weighting=WEIGHTING, std=STD, shift=SCORES)
def test_a_constant_added_to_a_group_changes_nothing(name, members, weighting, std, shift):
    moved = [m._replace(score=m.score + shift * (m.group == "g")) for m in members]
    given = {"weighting": weighting, "std": std, **SHIFT_INVARIANT[name]}
    before, after = (run(name, with_everything(table_of(some)), **given).turn for some in (members, moved))
    np.testing.assert_allclose(before, after, atol=1e-7)


class TestNothingToCompare:
    @pytest.mark.parametrize("name", [*COMPARES, "returns"])
    @settings(max_examples=10)
    @given(steps=STEPS, score=SCORES, std=STD)
    def test_a_group_of_one(self, name, steps, score, std):
        assert not run(name, with_everything(table_of([Member("g", score, steps)])), std=std).turn.any()

    @ALL
    def test_who_needs_members_gives_groups_of_one_nothing(self, name):
        """And who does not need them learns from a batch of such groups."""
        members = [
            Member(f"g{k}", k % 3 / 2, [Step(f"{k}.{t}", t / 4, 2) for t in range(1 + k % 4)]) for k in range(20)
        ]
        found = run(name, with_everything(table_of(members)))
        silent = not found.turn.any() and (found.token is None or not found.token.any())
        estimator = BUILT_IN[name]
        assert CreditAssigner(estimator, estimator.settings()).needs_members == silent
        if "singleton" in estimator.settings.model_fields:
            assert not CreditAssigner(estimator, estimator.settings(singleton="raw")).needs_members

    @pytest.mark.parametrize("name", COMPARES)
    @settings(max_examples=10)
    @given(score=SCORES, steps=STEPS, copies=st.integers(2, 5), std=STD)
    def test_duplicates(self, name, score, steps, copies, std):
        table = table_of([Member("g", score, steps)] * copies)
        flat = dict.fromkeys(["win_rate"], [0.5] * copies) | {"action": [0] * table.n_turns}
        flat |= dict.fromkeys(["behaviour_logprob", "ema_logprob"], [-1.0] * table.n_tokens) | {"answer": [0] * copies}
        assert not run(name, with_everything(table).with_columns(**flat), std=std).turn.any()

    @pytest.mark.parametrize("name", COMPARES)
    @settings(max_examples=10)
    @given(lengths=st.lists(st.integers(1, 5), min_size=2, max_size=5), score=SCORES, std=STD, weighting=WEIGHTING)
    def test_equal_scores(self, name, lengths, score, std, weighting):
        members = [Member("g", score, [Step(f"{i}.{t}", 0.0, 1) for t in range(n)]) for i, n in enumerate(lengths)]
        table = with_everything(table_of(members)).with_columns(
            win_rate=[0.5] * len(members),
            behaviour_logprob=[-1.0] * sum(lengths),
            ema_logprob=[-1.0] * sum(lengths),
        )
        assert not run(name, table, std=std, weighting=weighting).turn.any()


@ALL
def test_one_turn_episodes_and_no_episodes(name):
    members = [Member("g", score, [Step("s", 0.0, 2)]) for score in (1.0, 0.0, 1.0)]
    found = run(name, with_everything(table_of(members)))
    assert found.turn.shape == (3,)
    assert run(name, with_everything(table_of([]))).turn.shape == (0,)
    # Two that ended before their first turn and one that spoke no token.
    empty = [Member("g", 1.0, []), Member("g", 0.0, []), Member("g", 1.0, [Step("s", 0.5, 0)])]
    assert run(name, with_everything(table_of(empty))).turn.shape == (1,)


GROUPS_OTHERWISE = {"role_grpo": "a group is a role's", "ppr": "has a critic", "spa": "has a critic"}


@pytest.mark.parametrize(
    "name", [n for n, e in BUILT_IN.items() if "singleton" in e.settings.model_fields and n not in GROUPS_OTHERWISE]
)
def test_error_names_the_group(name):
    members = [
        Member("g", 1.0, [Step("a", 0.0, 2)] * 3),
        Member("g", 0.0, [Step("a", 0.0, 1)]),
        Member("lone", 0.0, [Step("b", 0.0, 1)]),
    ]
    with pytest.raises(CreditError, match="group 'lone'.* has one member") as caught:
        run(name, with_everything(table_of(members)), singleton="error", weighting="turn")
    assert "zero" in str(caught.value)


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


@pytest.mark.parametrize("std", ["sample", "population"])
def test_what_rounding_makes_different_has_no_variance(std):
    values = np.array([0.1 + 0.2, 0.3, 0.3])
    groups = np.zeros(3, np.int64)
    assert not normalise(values, groups, std=std, eps=0.0).any()
    assert np.abs(whiten(values, np.ones(3), std=std, eps=0.0)).max() < 1e-15


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


@pytest.mark.slow
@given(MEMBERS, st.sampled_from([0.0, 0.5, 0.95, 1.0]), st.sampled_from([0.0, 0.5, 2.0]))
def test_gigpo_is_the_published_rule_in_plain_loops(trajectories, gamma, omega):
    table = table_of(trajectories)
    found = run("gigpo", table, gamma=gamma, omega=omega, std="none").turn
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


@ALL
@settings(max_examples=10)
@given(MEMBERS)
def test_parts_add_up(name, members):
    result = run(name, with_everything(table_of(members)))
    if result.parts:
        np.testing.assert_allclose(sum(result.parts.values()), result.turn, atol=1e-9)


@pytest.mark.parametrize(("lengths", "weighting", "wanted"), [
    ([1], "turn", 0.5), ([3], "turn", 0.0), ([3], "trajectory", 0.5), ([1], "token", 0.0), ([2, 2], "turn", 0.0),
])  # fmt: skip
def test_raw_keeps_the_score_of_a_single_observation(lengths, weighting, wanted):
    table = table_of([Member("g", 0.5, [Step("a", 0.0, 2)] * n) for n in lengths])
    found = run("grpo", table, singleton="raw", std="none", weighting=weighting).turn
    assert found.tolist() == [wanted] * sum(lengths)


class TestStopping:
    """The policy decides when to stop (verl issue #7244): normalising by turn index then biases the gradient.

    After its first turn a policy goes on with probability p, and the second turn brings `EXTRA`. Over all groups of
    two, weighted by their probability, an estimator's expected gradient for the logit of p must be in proportion to
    the true one, p * (1 - p) * EXTRA.
    """

    P, EXTRA = 0.3, -0.4

    def gradient(self, credit: Callable[[CreditTable], np.ndarray]) -> float:
        """E[sum over all turns of A * d log pi / d logit]."""
        stops = Member("g", 0.0, [Step("s", 0.0, 1)]), 1 - self.P, [-self.P]
        goes_on = Member("g", 0.0, [Step("s", 0.0, 1), Step("s", self.EXTRA, 1)]), self.P, [1 - self.P, 0.0]
        total = 0.0
        for one, other in itertools.product([stops, goes_on], repeat=2):
            slopes = np.array([*one[2], *other[2]])
            total += one[1] * other[1] * float(credit(table_of([one[0], other[0]])) @ slopes)
        return total

    @staticmethod
    def by_turn_index(table: CreditTable) -> np.ndarray:
        """The construction that the issue warns of: rewards centred by turn index, then summed over the turns taken."""
        mean = np.bincount(table.turn, table.step_reward) / np.bincount(table.turn)
        left = table.length[table.trajectory] - table.turn - 1
        return discounted(table.step_reward - mean[table.turn], left, 1.0)

    def test_normalising_by_turn_index_does_not_see_what_going_on_costs(self):
        assert self.gradient(self.by_turn_index) == pytest.approx(0.0)

    @pytest.mark.parametrize(("name", "given", "factor"), [
        # A mean that holds the own score shrinks the gradient by (N - 1) / N, here the half; RLOO's does not.
        ("grpo", {"score": "total", "std": "none"}, 1), ("dr_grpo", {"score": "total"}, 1),
        ("rloo", {"score": "total"}, 2), ("returns", {"gamma": 1.0, "std": "none"}, 1),
        ("gigpo", {"gamma": 1.0, "omega": 0.0, "std": "none"}, 1), ("rank_grpo", {"std": "none"}, 1),
    ])  # fmt: skip
    def test_ours_point_where_the_reward_is(self, name, given, factor):
        found = self.gradient(lambda table: run(name, table, **given).turn)
        assert found == pytest.approx(factor * self.P * (1 - self.P) * self.EXTRA)
