"""Turn and token estimators that no golden file covers, worked by hand; and what they refuse."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from agentrl.estimators.history import History, history_of, prefix_values
from agentrl.estimators.registry import ESTIMATORS
from agentrl.estimators.table import CreditTable
from agentrl.types.errors import CreditError
from tests.estimators.tables import Member, Step, table_of

BUILT_IN = ESTIMATORS.all()


def run(name, table, **settings):
    estimator = BUILT_IN[name]
    return estimator(table, estimator.settings(**settings))


def pair(first=(1.0, [0.5, 0.0]), second=(0.0, [0.1]), tokens=1) -> CreditTable:
    """A group of two: outcomes and immediate rewards, all turns in state s."""
    members = [
        Member("g", score, [Step("s", reward, tokens) for reward in rewards]) for score, rewards in (first, second)
    ]
    return table_of(members)


class TestIgpo:
    # Beliefs: 0.1 -> 0.3 (gain 0.2), then the outcome 1; 0.2 -> 0.4 (gain 0.2), outcome 0.
    TABLE = pair((1.0, [0, 0]), (0.0, [0, 0])).with_columns(gold_logprob=np.log([0.1, 0.3, 0.2, 0.4]))

    def test_weights_move_with_training(self):
        settings = {"std": "none", "outcome_weight": (0.5, 1.0), "gain_weight": (1.0, 0.5)}
        # At the start the pool is {0.2, 0.5, 0.2, 0}: mean 0.225.
        start = run("igpo", self.TABLE, **settings)
        np.testing.assert_allclose(start.turn, [-0.025 + 0.275, 0.275, -0.025 - 0.225, -0.225])
        # At the end {0.1, 1, 0.1, 0}: mean 0.3.
        end = run("igpo", dataclasses.replace(self.TABLE, progress_of_training=1.0), **settings)
        np.testing.assert_allclose(end.turn, [-0.2 + 0.7, 0.7, -0.2 - 0.3, -0.3])

    def test_weights_after_the_normalisation(self):
        # Unweighted pool {0.2, 1, 0.2, 0}, mean 0.35; outcomes then count half.
        found = run("igpo", self.TABLE, std="none", outcome_weight=(0.5, 0.5), weigh="after")
        np.testing.assert_allclose(found.parts["outcome"], [0.325, 0.325, -0.175, -0.175])
        np.testing.assert_allclose(found.parts["gain"], [-0.15, 0, -0.15, 0])

    def test_a_lone_trajectory_gets_nothing_unless_raw(self):
        alone = CreditTable.from_columns(
            episode=["e"], group=["g"], score=[1.0], length=[2], reward=[0, 0], tokens=[1, 1],
            gold_logprob=np.log([0.1, 0.3]),
        )  # fmt: skip
        assert run("igpo", alone).turn.tolist() == [0, 0]
        # Its own pool {0.2, 1}: mean 0.6, and z sums over later turns.
        np.testing.assert_allclose(run("igpo", alone, std="none", singleton="raw").turn, [-0.4 + 0.4, 0.4], atol=1e-12)
        with pytest.raises(CreditError, match="'g' has one member"):
            run("igpo", alone, singleton="error")


def test_mt_grpo_general():
    # Outcomes 1, 0: A^O = +-0.5. Turn rewards 0.5, 0, 0.1: mean 0.2, so 0.3, -0.2, -0.1; summed over later turns.
    table = pair()
    found = run("mt_grpo", table, form="general", std="none", weighting="turn", coef=2.0)
    # Weighted by turns the outcomes' mean is 2/3.
    np.testing.assert_allclose(found.parts["outcome"], [1 / 3, 1 / 3, -2 / 3])
    np.testing.assert_allclose(found.parts["turn"], [2 * 0.1, 2 * -0.2, 2 * -0.1], atol=1e-12)


class TestSalt:
    # Two trajectories do the same in state a; the first does it twice. Outcomes 1 and 0: base +-0.5.
    MEMBERS = (
        Member("g", 1.0, [Step("a", 0, 1), Step("a", 0, 1), Step("b", 0, 1)]),
        Member("g", 0.0, [Step("a", 0, 1), Step("b", 0, 1)]),
    )

    def test_occurrences_or_trajectories(self):
        table = table_of(self.MEMBERS).with_columns(action=["x", "x", "x", "x", "y"])
        # Edges by state and action: (a, x) three times, (b, x), (b, y).
        shared = {"std": "none", "key": ("state", "action")}
        each = run("salt", table, **shared).turn
        np.testing.assert_allclose(each, [1 / 6, 1 / 6, 0.5, 1 / 6, -0.5])  # (0.5 + 0.5 - 0.5) / 3
        once = run("salt", table, **shared, count="trajectory").turn
        np.testing.assert_allclose(once, [0, 0, 0.5, 0, -0.5])

    def test_what_came_before_keeps_steps_apart(self):
        table = table_of(self.MEMBERS).with_columns(action=["x", "x", "x", "x", "x"])
        # The step in b is the last of both; before it came (a, x) in both, but once more in the first.
        same = {"std": "none", "key": ("state",)}
        for history, wanted in ((0, [0, 0]), (1, [0, 0]), (2, [0.5, -0.5]), (None, [0.5, -0.5])):
            found = run("salt", table, **same, history=history, count="trajectory").turn
            np.testing.assert_allclose(found[[2, 4]], wanted, atol=1e-12, err_msg=str(history))


class TestProcess:
    def test_ppr_renormalises_before_the_last_turn(self):
        # Judged 0.8 and 0.6. Solved: 0.8 + 1 - 1 = 0.8, last turn 1; failed: 0.6 + 0 - 1 = -0.4, last turn 0.
        table = pair((1.0, [0, 0]), (0.0, [0, 0])).with_columns(process=[0.8, 0.0, 0.6, 0.0])
        found = run("ppr", table, baseline="group", std="none")
        # Reward-to-go 1.8, 1, -0.4, 0: mean 0.6.
        np.testing.assert_allclose(found.turn, [1.2, 0.4, -1.0, -0.6])
        # Under a critic that knows nothing the values should become those returns.
        valued = run("ppr", table.with_columns(value=[0.0] * 4))
        np.testing.assert_allclose(valued.value_target, [1.8, 1, -0.4, 0])

    def test_spa_adds_grounding_to_progress(self):
        # Turn rewards 0.3 + 0.5, 0.4 + 0 (not carried out), 0.1 + 0.5: to go 1.2, 0.4, 0.6; mean 2.2 / 3.
        table = pair().with_columns(progress=[0.3, 0.4, 0.1], executed=[1, 0, 1])
        found = run("spa", table, baseline="group", std="none", weighting="turn")
        np.testing.assert_allclose(found.turn, np.array([1.2, 0.4, 0.6]) - 2.2 / 3)


def test_gigpo_takes_an_invalid_action_off_its_own_turn():
    """States a, b; the second trajectory's turn at b is invalid. Outcomes 1 and 0, gamma 0.5, penalty 0.2."""
    members = [Member("g", score, [Step("a", 0.0, 1), Step("b", 0.0, 1)]) for score in (1.0, 0.0)]
    table = dataclasses.replace(table_of(members), valid=np.array([True, True, True, False]))
    found = run("gigpo", table, gamma=0.5, std="none", invalid_penalty=0.2)
    # Episode part: scores by turn 1, 1, 0, -0.2, each half of its trajectory: mean (1 + -0.1) / 2 = 0.45.
    np.testing.assert_allclose(found.parts["episode"], [0.55, 0.55, -0.45, -0.65])
    # Returns at a: 0.5 and 0; at b: 1 and 0 - 0.2, not discounted into the turn before.
    np.testing.assert_allclose(found.parts["step"], [0.25, 0.6, -0.25, -0.6])
    plain = run("gigpo", table, gamma=0.5, std="none")
    np.testing.assert_allclose(plain.parts["episode"], [0.5, 0.5, -0.5, -0.5])


def test_step_grpo_compares_own_rewards_in_a_state():
    members = [
        Member("g", 1.0, [Step("a", 0.2, 1), Step("b", 0.0, 1)]),
        Member("g", 0.0, [Step("a", 0.6, 1), Step(None, 0.0, 1)]),
    ]
    # State a: 0.2 and 0.6, mean 0.4. State b was seen once; a turn without a key has no group.
    np.testing.assert_allclose(run("step_grpo", table_of(members), std="none").turn, [-0.2, 0, 0.2, 0])
    raw = run("step_grpo", table_of(members), std="none", singleton="raw").turn
    np.testing.assert_allclose(raw, [-0.2, 1.0, 0.2, 0])


def test_flow_grpo_paper_and_code():
    table = pair((1.0, [0, 0, 0]), (0.0, [0]))
    paper, code = run("flow_grpo", table, std="none"), run("flow_grpo", table, std="none", weighting="turn")
    assert paper.turn.tolist() == [0.5, 0.5, 0.5, -0.5]
    assert code.turn.tolist() == [0.25, 0.25, 0.25, -0.75]  # three rows of 1 and one of 0: mean 0.75


class TestARoleThatSampledNothing:
    """Role 1 took a turn without tokens between those of roles 0 and 2."""

    @staticmethod
    def table(scores=(1.0, 0.0), after=4) -> CreditTable:
        """`after`: observation tokens that follow the empty turn."""
        members = [Member("g", score, [Step(None, 0.3, 2), Step(None, 0.7, 0), Step(None, 0.1, 3)]) for score in scores]
        n = len(scores)
        return table_of(members).with_columns(role=[0, 1, 2] * n, observation_tokens=[1, after, 0] * n)

    def test_mars_keeps_the_roles_apart(self):
        # What stands at the observations after role 1's turn is role 1's, which has no token: it moves nobody's mean.
        tables = (self.table((1.0, 0.0, 0.0), after) for after in (0, 4))
        few, many = (run("mars", table, gamma=0.9, whiten=False).token.reshape(3, 5) for table in tables)
        assert few[:, 2:].tolist() == many[:, 2:].tolist()
        # Role 2 by hand, unwhitened: turn rewards 1.1 and 0.1 less their mean 0.6 are +-0.5 at every token; distinct
        # values 0.5, -0.5 and the padding's 0 have mean 0.
        plain = run("mars", self.table(), whiten_rewards=False, whiten=False)
        np.testing.assert_allclose(plain.token.reshape(2, 5)[:, 2:], [[0.5] * 3, [-0.5] * 3], atol=1e-6)

    @pytest.mark.parametrize("weighting", ["trajectory", "turn", "token"])
    def test_role_grpo_compares_the_others_as_ever(self, weighting):
        found = run("role_grpo", self.table(), std="none", weighting=weighting).turn.reshape(2, 3)
        np.testing.assert_allclose(found[:, [0, 2]], [[0.5, 0.5], [-0.5, -0.5]])
        assert np.isfinite(found).all()


def test_role_grpo_compares_a_role_with_itself():
    # A planner speaks in both; the second trajectory's has two turns. The critic speaks in the first only.
    members = [Member("g", 1.0, [Step("s", 0, 1)] * 2), Member("g", 0.0, [Step("s", 0, 1)] * 2)]
    table = table_of(members).with_columns(role=["planner", "critic", "planner", "planner"])
    assert run("role_grpo", table, std="none").turn.tolist() == [0.5, 0, -0.5, -0.5]
    by_turn = run("role_grpo", table, std="none", weighting="turn").turn
    np.testing.assert_allclose(by_turn, [2 / 3, 0, -1 / 3, -1 / 3])
    with pytest.raises(CreditError, match="group 'g' has one member"):
        run("role_grpo", table, singleton="error")


def test_role_grpo_credits_no_role_with_the_rewards_of_another():
    # A game of two players; who wins is rewarded in a last turn: total and return of each, less the mean.
    def game(first: float, second: float) -> Member:
        return Member("g", 0.0, [Step(None, 0, 1), Step(None, 0, 1), Step(None, first, 1), Step(None, second, 1)])

    members = [game(1.0, -1.0), game(-1.0, 1.0)]
    table = table_of(members).with_columns(role=["a", "b", "a", "b"] * 2)
    assert run("role_grpo", table, std="none").turn.tolist() == [1, -1, 1, -1, -1, 1, -1, 1]
    later = run("role_grpo", table, std="none", score="return", gamma=0.5).turn
    assert later.tolist() == [0.25, -0.25, 1, -1, -0.25, 0.25, -1, 1]


class TestTokens:
    def test_capo_votes(self):
        # Tokens: two of a solved trajectory, two of a failed one; 3 of 4 critiques call the second wrong, all the last.
        table = pair((1.0, [0]), (0.0, [0]), tokens=2).with_columns(wrong=[0.0, 0.75, 0.0, 1.0])
        rewards = {
            "intersection": [2, 2, 0, -1], "majority": [2, 1, 0, -1], "union": [2, 1, 0, -1],
            "average": [2, 1.25, 0, -1],
        }  # fmt: skip
        for vote, reward in rewards.items():
            found = run("capo", table, std="none", vote=vote)
            np.testing.assert_allclose(found.token, np.array(reward) - np.mean(reward), err_msg=vote)

    def test_implicit_prm(self):
        # beta 0.5: token rewards 0.5, 0.1 | -0.2 (means 0.3, -0.2; n = 2). Leave-one-out: 2r - 0.1.
        table = table_of([Member("g", 1.0, [Step("s", 0, 2)]), Member("g", 0.0, [Step("s", 0, 1)])])
        table = table.with_columns(prm_logprob=[0.0, -0.8, -1.4], ref_logprob=[-1.0, -1.0, -1.0])
        found = run("implicit_prm", table, beta=0.5, outcome_weight=5.0, whiten=False)
        # 0.9, 0.1 and -0.5, summed over later tokens; outcomes 2 * 1 - 1 and -1, five times, everywhere.
        np.testing.assert_allclose(found.token, [1.0 + 5, 0.1 + 5, -0.5 - 5])
        # Scaled: the first trajectory's largest sum is 0.6, the second's 0.2. Rewards 5/6, 1/6 | -1; means 1/2, -1.
        scaled = run("implicit_prm", table, beta=0.5, outcome_weight=0.0, whiten=False, scale=True)
        np.testing.assert_allclose(scaled.token, [5 / 3 + 1 / 3 + 1, 1 / 3 + 0.5, -2 + 0.5])

    def test_high_entropy(self):
        table = pair((1.0, [0]), (0.0, [0]), tokens=5).with_columns(entropy=[1, 2, 3, 9, 5, 8, 1, 1, 1, 1])
        # A fifth of ten tokens: entropies 9 and 8. Ten tokens for two kept: factor 5.
        found = run("high_entropy", table, std="none").token
        assert found.tolist() == [0, 0, 0, 2.5, 0, -2.5, 0, 0, 0, 0]
        all_tokens = run("high_entropy", table, std="none", denominator="all").token
        assert all_tokens.tolist() == [0, 0, 0, 0.5, 0, -0.5, 0, 0, 0, 0]

    def test_gae_gives_a_silent_turns_reward_to_the_token_before(self):
        table = table_of([Member("g", 1.0, [Step("s", 0, 2), Step("s", 0.5, 0)])]).with_columns(value=[0.0, 0.0])
        assert run("gae", table, whiten=False).token.tolist() == [1.5, 1.5]


class TestPrefixes:
    def test_values_of_a_small_tree(self):
        # 1 2 | 1 3 | 1 2 4, and another group that begins alike.
        tokens = [np.array(t) for t in ([1, 2], [1, 3], [1, 2, 4], [1, 2])]
        score = np.array([1.0, 0.0, 0.0, 1.0])
        position = np.concatenate([np.arange(len(t)) for t in tokens])
        sampled = np.array([len(t) for t in tokens])
        before, after = prefix_values(History(tokens, position), np.array([0, 0, 0, 1]), score, sampled)
        third = 1 / 3
        np.testing.assert_allclose(before, [third, third, third, third, third, third, 0.5, 1, 1])
        np.testing.assert_allclose(after, [third, 0.5, third, 0, third, 0.5, 0, 1, 1])

    def test_episodes_hold_their_history(self, make_episode):
        episode = make_episode("e", "g", 1.0, [("s", 2, None), ("s", 1, None)])
        history = history_of([episode])
        assert history.tokens[0].tolist() == [1, 2, 3, 3, 3]
        assert history.position.tolist() == [2, 3, 4]


@pytest.mark.parametrize(("name", "message", "remedy"), [
    ("igpo", "gold answer was not scored", "answer"),
    ("gae", "no values", "train.critic"),
    ("spa", "no progress", "train.critic"),
    ("ppr", "no turn has a reward component named 'process'", "session.reward"),
    ("capo", "'wrong'", "session.reward"),
    ("tempo", "does not hold the tokens", "from_episodes"),
    ("mars", "which agent spoke", "generate"),
    ("high_entropy", "entropies", "train"),
    ("implicit_prm", "implicit process reward model", "with_columns"),
])  # fmt: skip
def test_what_is_missing_is_said(name, message, remedy):
    table = pair().with_columns(executed=[1, 1, 1])
    if name == "mars":
        table = table.with_columns(observation_tokens=[0, 0, 0])
    with pytest.raises(CreditError, match=message) as caught:
        run(name, table)
    assert remedy in (caught.value.remedy or "")
