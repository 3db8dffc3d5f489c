"""Credit of 2026's papers on tables that are worked by hand; what it refuses; the order of episodes.

`test_credit_properties.py` holds the order of episodes, groups of one and more for every built-in estimator.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from agentrl.estimators.estimator import Advantages
from agentrl.estimators.registry import ESTIMATORS
from agentrl.estimators.table import CreditTable
from agentrl.types.errors import CreditError
from tests.estimators.tables import Member, Step, table_of

BUILT_IN = ESTIMATORS.all()


def run(name: str, table: CreditTable, **settings: Any) -> Advantages:
    estimator = BUILT_IN[name]
    return estimator(table, estimator.settings(**settings))


def refuses(name: str, **settings: Any) -> None:
    with pytest.raises(ValidationError):
        BUILT_IN[name].settings(**settings)


class TestRtmc:
    """Two rollouts begin alike; of these the one that does u in b succeeds. A third goes elsewhere."""

    MEMBERS = (
        Member("g", 1.0, [Step("a", 0.0, 1), Step("b", 0.0, 1)]),
        Member("g", 0.0, [Step("a", 0.0, 1), Step("b", 0.0, 1)]),
        Member("g", 0.0, [Step("a", 0.0, 1), Step("c", 0.0, 1)]),
    )
    ACTIONS = (["x", "u"], ["x", "w"], ["y", "u"])

    def table(self, order=(0, 1, 2)) -> CreditTable:
        table = table_of([self.MEMBERS[i] for i in order], [str(i) for i in order])
        return table.with_columns(action=[action for i in order for action in self.ACTIONS[i]])

    def test_actions_are_compared_in_their_state(self):
        # Undiscounted. Q(a, x) = 1/2, V(a) = 1/3; Q(a, y) = 0; Q(b, u) = 1, Q(b, w) = 0, V(b) = 1/2; V(c) = Q(c, u).
        found = run("rtmc", self.table(), gamma=1.0, prior=0.0, std="none")
        np.testing.assert_allclose(found.turn, [1 / 6, 1 / 2, 1 / 6, -1 / 2, -1 / 3, 0], atol=1e-12)

    def test_a_prior_of_the_group_stands_in_for_visits(self):
        # b = 1/3 counts twice: V'(a) = (1 + 2/3) / 5 = 1/3, V'(b) = (1 + 2/3) / 4 = 5/12, V'(c) = (2/3) / 3 = 2/9.
        found = run("rtmc", self.table(), gamma=1.0, prior=2.0, std="none")
        raw = np.array([1 / 6, 7 / 12, 1 / 6, -5 / 12, -1 / 3, -2 / 9])
        np.testing.assert_allclose(found.turn, raw, atol=1e-12)
        scaled = run("rtmc", self.table(), gamma=1.0, prior=2.0, eps=0.0).turn
        np.testing.assert_allclose(scaled, raw / raw.std(), atol=1e-12)

    def test_returns_are_discounted_and_the_prior_is_not(self):
        # Q(a, x) = .99 / 2, V'(a) = (.99 + 2/3) / 5.
        found = run("rtmc", self.table(), std="none").turn
        np.testing.assert_allclose(found[0], 0.495 - (0.99 + 2 / 3) / 5, atol=1e-12)

    def test_a_rollout_counts_with_its_first_visit(self):
        # It does x in a twice; the first return, 1/2, counts. Q(a, x) = 1/2, Q(a, y) = 0, V(a) = 1/4.
        looped = [Member("g", 1.0, [Step("a", 0.0, 1)] * 2), Member("g", 0.0, [Step("a", 0.0, 1)])]
        table = table_of(looped).with_columns(action=["x", "x", "y"])
        found = run("rtmc", table, gamma=0.5, prior=0.0, std="none")
        np.testing.assert_allclose(found.turn, [0.25, 0.25, -0.25], atol=1e-12)
        assert found.metrics == {"step_group_size": 2.0, "single_step_groups": 0.0}

    def test_a_turn_without_a_state_is_compared_with_the_group(self):
        members = [Member("g", 1.0, [Step(None, 0.0, 1)]), Member("g", 0.0, [Step("a", 0.0, 1)])]
        table = table_of(members).with_columns(action=["x", "x"])
        # Q = 1, V' = (1 + 2 * 1/2) / 3; Q = 0, V' = (0 + 1) / 3.
        np.testing.assert_allclose(run("rtmc", table, std="none").turn, [1 / 3, -1 / 3], atol=1e-12)

    def test_order_of_episodes(self):
        turns = run("rtmc", self.table()).turn.reshape(3, 2)
        np.testing.assert_allclose(run("rtmc", self.table((2, 0, 1))).turn.reshape(3, 2), turns[[2, 0, 1]], atol=1e-12)

    def test_needs_states_and_actions(self):
        with pytest.raises(CreditError, match="column 'action'"):
            run("rtmc", table_of(self.MEMBERS))
        with pytest.raises(CreditError, match="no turn has a recorded state"):
            run("rtmc", table_of([Member("g", 1.0, [Step(None, 0.0, 1)])]).with_columns(action=["x"]))
        refuses("rtmc", prior=-1.0)
        refuses("rtmc", gamma=1.5)


class TestA2tgpo:
    """Three episodes of three, three and two turns. Gains of the first turn .2, .0, .4; of the second .1, .3."""

    BELIEFS = ([0.1, 0.3, 0.4], [0.2, 0.2, 0.5], [0.1, 0.5])
    SCORES = (1.0, 0.0, 0.5)

    def table(self, order=(0, 1, 2)) -> CreditTable:
        members = [Member("g", self.SCORES[i], [Step(None, 0.0, 1)] * len(self.BELIEFS[i])) for i in order]
        beliefs = [belief for i in order for belief in self.BELIEFS[i]]
        return table_of(members, [str(i) for i in order]).with_columns(gold_logprob=np.log(beliefs))

    def test_gains_are_compared_at_equal_depth(self):
        # First turns: mean .2; second: mean .2. Summed and over the root of 2 terms, of 1, of none.
        found = run("a2tgpo", self.table(), std="none", alpha=1.0, gamma=0.5)
        root = 2**0.5
        wanted = [(0 - 0.05) / root, -0.1, 0, (-0.2 + 0.05) / root, 0.1, 0, 0.2, 0]
        np.testing.assert_allclose(found.parts["gain"], wanted, atol=1e-12)
        np.testing.assert_allclose(found.parts["outcome"], [0.5] * 3 + [-0.5] * 3 + [0.0] * 2, atol=1e-12)
        assert found.metrics == pytest.approx({"information_gain": 0.2, "turns_with_gain": 0.8})

    def test_gains_are_divided_by_the_deviation_of_their_depth(self):
        # First turns 0, -.2, .2 over the root of .08 / 3; second -.1, .1 over .1. Alpha .3.
        found = run("a2tgpo", self.table(), eps=0.0)
        first = 0.2 / (0.08 / 3) ** 0.5
        root = 2**0.5
        wanted = np.array([-1 / root, -1, 0, (1 - first) / root, 1, 0, first, 0]) * 0.3
        np.testing.assert_allclose(found.parts["gain"], wanted, rtol=1e-6, atol=1e-9)

    def test_the_clip_range_grows_with_the_gain(self):
        found = run("a2tgpo", self.table(), std="none", beta=0.5)
        sigmoid = 1 / (1 + np.exp(-np.array([0, -0.1, -0.2, 0.1, 0.2])))
        wanted = 1 + 0.5 * (2 * sigmoid - 1)
        np.testing.assert_allclose(found.clip_scale, [*wanted[:2], 1, *wanted[2:4], 1, wanted[4], 1], atol=1e-12)
        assert run("a2tgpo", self.table(), beta=0.0).clip_scale is None

    def test_order_of_episodes(self):
        found, moved = run("a2tgpo", self.table()), run("a2tgpo", self.table((2, 0, 1)))
        for column, other in ((found.turn, moved.turn), (found.clip_scale, moved.clip_scale)):
            np.testing.assert_allclose(other, np.concatenate([column[6:], column[:6]]), atol=1e-12)

    def test_episodes_of_one_turn_have_the_outcome_alone(self):
        members = [Member("g", score, [Step(None, 0.0, 1)]) for score in (1.0, 0.0)]
        found = run("a2tgpo", table_of(members).with_columns(gold_logprob=[-1.0, -2.0]), std="none")
        assert found.turn.tolist() == [0.5, -0.5]
        assert found.metrics == {"information_gain": 0.0, "turns_with_gain": 0.0}

    def test_refuses(self):
        with pytest.raises(CreditError, match="gold answer was not scored"):
            run("a2tgpo", table_of([Member("g", 1.0, [Step(None, 0.0, 1)])]))
        refuses("a2tgpo", beta=1.0)
        refuses("a2tgpo", alpha=-0.1)


class TestSpro:
    """Two episodes: turns of two tokens and one, and a turn of one. Log-ratios 1, 2, 3 and 5."""

    def table(self, order=(0, 1)) -> CreditTable:
        members = (
            Member("g", 1.0, [Step(None, 0.0, 2), Step(None, 0.0, 1)]),
            Member("g", 0.0, [Step(None, 0.0, 1)]),
        )
        ratios = ([1.0, 2.0, 3.0], [5.0])
        table = table_of([members[i] for i in order], [str(i) for i in order])
        return table.with_columns(
            ref_logprob=[-6.0] * 4, behaviour_logprob=[ratio - 6.0 for i in order for ratio in ratios[i]]
        )

    def test_sums_are_compared_at_the_same_token(self):
        # First tokens .1 and .5, mean .3; the second and third have nobody beside them. Outcomes 1/2 and -1/2.
        found = run("spro", self.table(), beta=0.1, std="none")
        np.testing.assert_allclose(found.token, [0.5 - 0.2, 0.5, 0.5, -0.5 + 0.2], atol=1e-12)
        np.testing.assert_allclose(found.parts["process"], [-0.1, 0, 0.2], atol=1e-12)

    def test_or_at_the_end_of_the_same_turn(self):
        # First turns end with .1 + .2 and .5, mean .4.
        found = run("spro", self.table(), beta=0.1, std="none", step="turn")
        np.testing.assert_allclose(found.token, [0.5 - 0.1, 0.5 - 0.1, 0.5, -0.5 + 0.1], atol=1e-12)

    def test_sums_begin_anew_with_each_episode(self):
        twice = [Member("g", score, [Step(None, 0.0, 2)]) for score in (1.0, 1.0)]
        table = table_of(twice).with_columns(ref_logprob=[-5.0] * 4, behaviour_logprob=[-4.0, -4.0, -4.0, -2.0])
        # Sums 1, 2 and 1, 4.
        np.testing.assert_allclose(run("spro", table, beta=1.0).token, [0, -1, 0, 1], atol=1e-12)

    def test_order_of_episodes(self):
        found, moved = run("spro", self.table()), run("spro", self.table((1, 0)))
        np.testing.assert_allclose(moved.token, np.concatenate([found.token[3:], found.token[:3]]), atol=1e-12)

    def test_refuses(self):
        with pytest.raises(CreditError, match="under a reference policy"):
            run("spro", table_of([Member("g", 1.0, [Step(None, 0.0, 1)])]).with_columns(behaviour_logprob=[-1.0]))
        refuses("spro", beta=0.0)


class TestAem:
    """Two episodes of two turns. The success is unsure of its second turn; the failure of both alike."""

    def table(self, order=(0, 1)) -> CreditTable:
        members = (
            Member("g", 1.0, [Step(None, 0.0, 2), Step(None, 0.0, 1)]),
            Member("g", 0.0, [Step(None, 0.0, 1), Step(None, 0.0, 1)]),
        )
        entropies = ([0.1, 0.3, 0.6], [0.8, 0.8])
        table = table_of([members[i] for i in order], [str(i) for i in order])
        return table.with_columns(entropy=[each for i in order for each in entropies[i]])

    def test_uncertain_turns_get_less(self):
        # Mean entropies .2 and .6, so 0 and 1: exp 0 and exp -2 over their mean.
        fell = np.exp(-2.0)
        mean = (1 + fell) / 2
        found = run("aem", self.table(), strength=2.0, std="none")
        np.testing.assert_allclose(found.turn, [0.5 / mean, 0.5 * fell / mean, -0.5, -0.5], atol=1e-12)
        assert found.metrics == pytest.approx({"largest_modulation": 1 / mean})

    def test_among_the_turns_of_the_group(self):
        # .2, .6, .8, .8: 0, 2/3, 1, 1.
        factor = np.exp(-np.array([0, 2 / 3, 1, 1]))
        found = run("aem", self.table(), strength=1.0, std="none", over="group")
        np.testing.assert_allclose(found.turn, factor / factor.mean() * [0.5, 0.5, -0.5, -0.5], atol=1e-12)

    def test_without_strength_it_is_grpo(self):
        np.testing.assert_allclose(run("aem", self.table(), strength=0.0).turn, run("grpo", self.table()).turn)

    def test_order_of_episodes(self):
        found, moved = run("aem", self.table()), run("aem", self.table((1, 0)))
        np.testing.assert_allclose(moved.turn, found.turn[[2, 3, 0, 1]], atol=1e-12)

    def test_refuses(self):
        with pytest.raises(CreditError, match="entropies of the policy"):
            run("aem", table_of([Member("g", 1.0, [Step(None, 0.0, 1)])]))
        refuses("aem", strength=-1.0)


class TestIstar:
    """Log-ratios of the reward model: a turn of 1 + 2 and one of 1; a turn of 5, and one without tokens."""

    def table(self, order=(0, 1)) -> CreditTable:
        members = (
            Member("g", 1.0, [Step(None, 0.0, 2), Step(None, 0.0, 1)]),
            Member("g", 0.0, [Step(None, 0.0, 1), Step(None, 0.0, 0)]),
        )
        ratios = ([1.0, 2.0, 1.0], [5.0])
        table = table_of([members[i] for i in order], [str(i) for i in order])
        return table.with_columns(
            behaviour_logprob=[-6.0] * 4, prm_logprob=[ratio - 6.0 for i in order for ratio in ratios[i]]
        )

    def test_rewards_of_turns_beside_the_outcome(self):
        # Rewards 3, 1 and 5: mean 3. Outcomes 1/2 and -1/2.
        found = run("istar", self.table(), std="none", weight=0.1)
        np.testing.assert_allclose(found.turn, [0.5, 0.5 - 0.2, -0.5 + 0.2, -0.5], atol=1e-12)
        # Deviation 2.
        np.testing.assert_allclose(run("istar", self.table(), eps=0.0).parts["step"], [0, -1, 1, 0], atol=1e-12)

    def test_order_of_episodes(self):
        found, moved = run("istar", self.table()), run("istar", self.table((1, 0)))
        np.testing.assert_allclose(moved.turn, found.turn[[2, 3, 0, 1]], atol=1e-12)

    def test_refuses(self):
        with pytest.raises(CreditError, match="implicit process reward model"):
            run("istar", table_of([Member("g", 1.0, [Step(None, 0.0, 1)])]).with_columns(behaviour_logprob=[-1.0]))
        refuses("istar", weight=-1.0)


class TestCarl:
    """A trunk of three turns that failed, a fork at its second turn, and a fork of that fork at its third."""

    LENGTHS, SCORES = (3, 3, 3), (0.0, 1.0, 0.0)
    ORIGINS = (["a0", "a1", "a2"], ["a0", "b1", "b2"], ["a0", "b1", "c2"])
    TOKENS = ([1, 1, 1], [0, 1, 1], [0, 0, 1])

    def table(self, order=(0, 1, 2)) -> CreditTable:
        members = [Member("g", self.SCORES[i], [Step(None, 0.0, n) for n in self.TOKENS[i]]) for i in order]
        table = table_of(members, [str(i) for i in order])
        return table.with_columns(origin=[each for i in order for each in self.ORIGINS[i]])

    def test_turns_with_siblings_get_the_change_of_the_mean(self):
        # After b1: (1 + 0) / 2; after a0: (0 + 1/2) / 2, not 1/3. Nobody else was sampled where a0 and a2 were.
        found = run("carl", self.table(), denominator="all")
        wanted = [0, -1 / 4, 0, 0, 1 / 4, 1 / 2, 0, 1 / 4, -1 / 2]
        np.testing.assert_allclose(found.turn, wanted, atol=1e-12)
        # Six tokens, of which a1, b1, b2 and c2 count.
        assert found.metrics == pytest.approx({"critical_tokens": 4 / 6})
        np.testing.assert_allclose(run("carl", self.table()).turn, np.array(wanted) * 6 / 4, atol=1e-12)

    def test_trajectories_of_a_group_begin_in_one_state(self):
        # Nothing was forked: the first turns are siblings, with the mean 1/2, and later turns have none.
        members = [Member("g", score, [Step(None, 0.0, 1)] * 2) for score in (1.0, 0.0)]
        table = table_of(members).with_columns(origin=["a", "b", "c", "d"])
        np.testing.assert_allclose(run("carl", table, denominator="all").turn, [0.5, 0, -0.5, 0], atol=1e-12)

    def test_order_of_episodes(self):
        turns = run("carl", self.table()).turn.reshape(3, 3)
        np.testing.assert_allclose(run("carl", self.table((2, 0, 1))).turn.reshape(3, 3), turns[[2, 0, 1]], atol=1e-12)

    def test_needs_origins(self):
        with pytest.raises(CreditError, match="column 'origin'"):
            run("carl", table_of([Member("g", 1.0, [Step(None, 0.0, 1)])]))
