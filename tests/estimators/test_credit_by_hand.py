"""Trajectory estimators that no official numbers are at hand for: small groups, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agentrl.estimators.registry import ESTIMATORS
from agentrl.estimators.table import CreditTable
from agentrl.types.errors import CreditError
from tests.estimators.tables import Member, Step, run, table_of

BUILT_IN = ESTIMATORS.all()


def scored(*scores: float, groups: str | None = None, tokens: tuple[int, ...] = ()) -> CreditTable:
    """One-turn trajectories; `groups` names a group per trajectory, `tokens` how many each sampled."""
    sampled = tokens or (1,) * len(scores)
    names = groups or "g" * len(scores)
    return table_of([Member(*named, [Step(None, 0.0, n)]) for *named, n in zip(names, scores, sampled, strict=True)])


def credit(name: str, table: CreditTable, **settings: object) -> list[float]:
    return run(name, table, **settings).turn.tolist()


class TestPassAtK:
    def test_the_best_gets_what_it_is_ahead(self):
        # 3 - 2 = 1. Sample deviation of (0, 3, 2): mean 5/3, squares 25/9 + 16/9 + 1/9 = 42/9, over 2: 7/3.
        assert credit("pass_at_k", scored(0.0, 3.0, 2.0), eps=0) == pytest.approx([0, 1 / math.sqrt(7 / 3), 0])
        assert credit("pass_at_k", scored(0.0, 3.0, 2.0), std="none") == [0, 1, 0]

    def test_two_that_are_best_share_nothing(self):
        assert credit("pass_at_k", scored(1.0, 1.0, 0.0)) == [0, 0, 0]


class TestLitePpo:
    # Scores 1, 0 and 1, 1: mean 3/4, squares 1/16 + 9/16 + 1/16 + 1/16 = 3/4, over 3: a sample variance of 1/4.
    TABLE = scored(1.0, 0.0, 1.0, 1.0, groups="gghh")

    def test_the_mean_of_the_group_and_the_deviation_of_the_batch(self):
        assert credit("lite_ppo", self.TABLE, eps=0) == [1, -1, 0, 0]  # +-1/2 over 1/2
        assert credit("lite_ppo", self.TABLE, std="none") == [0.5, -0.5, 0, 0]

    def test_a_batch_without_deviation_gives_nothing(self):
        assert credit("lite_ppo", scored(1.0, 1.0, groups="gh"), singleton="raw") == [0, 0]


class TestGrpoLambda:
    def test_length_counts_only_where_most_are_right(self):
        # Group g: right with 1 and 3 tokens, mean 2, deviation sqrt 2: +-1/sqrt 2. h has as many tokens, and one right.
        table = scored(1.0, 1.0, 1.0, 0.0, groups="gghh", tokens=(1, 3, 1, 3))
        low, high = (1 / (1 + math.exp(z)) for z in (1 / math.sqrt(2), -1 / math.sqrt(2)))
        found = credit("grpo_lambda", table, share=0.5, alpha=0.4, std="none", eps=0)
        assert found == pytest.approx([0.2 * (high - low), -0.2 * (high - low), 0.5, -0.5])

    def test_a_right_answer_alone_loses_half_of_alpha(self):
        found = credit("grpo_lambda", scored(1.0, 0.0, tokens=(9, 1)), share=1.0, alpha=0.4, std="none")
        assert found == pytest.approx([0.4, -0.4])  # 1 - 0.4 / 2 = 0.8


class TestALol:
    # The critic expects 0.4 of each prompt; what it says of later tokens does not count.
    TABLE = scored(1.0, 0.0, tokens=(2, 1)).with_columns(value=[0.4, 9.0, 0.4])

    def test_only_what_is_better_than_expected_trains(self):
        assert credit("a_lol", self.TABLE) == [0.6, 0.0]
        assert credit("a_lol", self.TABLE, keep="all") == [0.6, -0.4]

    def test_the_critic_learns_the_outcome_at_the_prompt(self):
        np.testing.assert_equal(run("a_lol", self.TABLE).value_target, [1.0, np.nan, 0.0])


class TestWReinforce:
    def test_mistakes_weigh_ten_times_what_successes_do(self):
        assert credit("w_reinforce", scored(1.0, 0.0, 0.5)) == [0.1, -1.0, -1.0]  # 0.5 is not above 0.5

    def test_negative_and_positive_sample_reinforcement(self):
        assert credit("nsr", scored(1.0, 0.0)) == [0.0, -1.0]
        assert credit("w_reinforce", scored(1.0, 0.0), positive=1.0, negative=0.0) == [1.0, 0.0]


class TestAsymre:
    def test_a_lower_baseline(self):
        # Mean 0.5, delta -0.1: baseline 0.4. The group of one has none.
        assert credit("asymre", scored(1.0, 0.0, 1.0, groups="ggh")) == pytest.approx([0.6, -0.4, 0.0])
        assert credit("asymre", scored(1.0, 0.0, 1.0, groups="ggh"), singleton="raw")[2] == 1.0


class TestOpmd:
    def test_mean(self):
        assert credit("opmd", scored(1.0, 0.0)) == [0.5, -0.5]

    def test_soft_maximum(self):
        # tau log mean exp(S / tau), tau 0.5: 0.5 * log((e^2 + 1) / 2).
        baseline = 0.5 * math.log((math.e**2 + 1) / 2)
        found = credit("opmd", scored(1.0, 0.0), baseline="logavgexp", tau=0.5)
        assert found == pytest.approx([1 - baseline, -baseline])

    def test_large_scores_do_not_overflow(self):
        # log mean exp of (5000, 0) is 5000 - log 2 to all digits.
        found = credit("opmd", scored(5000.0, 0.0), baseline="logavgexp")
        assert found == pytest.approx([math.log(2), math.log(2) - 5000])


class TestCanon:
    # Lengths 1, 2, 3, 4: low is (1, 0), high is (1, 1): means 0.5 and 1.
    TABLE = scored(1.0, 0.0, 1.0, 1.0, tokens=(1, 2, 3, 4))

    def test_across_halves(self):
        assert credit("canon", self.TABLE) == [1 - 1, 0 - 1, 1 - 0.5, 1 - 0.5]

    def test_inside_halves(self):
        assert credit("canon", self.TABLE, mu=0.0) == [0.5, -0.5, 0.0, 0.0]

    def test_alpha_by_length_stands_with_the_high_score_and_mean(self):
        # high: 0.8 * 1 - 0.5; low: S - 0.8 * 1.
        assert credit("canon", self.TABLE, alpha=0.8) == pytest.approx([0.2, -0.8, 0.3, 0.3])

    def test_alpha_by_entropy_stands_with_the_low_score_and_mean(self):
        # Entropies as the lengths were: high: 1 - 0.8 * 0.5; low: 0.8 * S - 1.
        table = scored(1.0, 0.0, 1.0, 1.0).with_columns(behaviour_logprob=[-1.0, -2.0, -3.0, -4.0])
        assert credit("canon", table, metric="entropy", alpha=0.8) == pytest.approx([-0.2, -1.0, 0.6, 0.6])

    def test_entropy_without_log_probabilities(self):
        with pytest.raises(CreditError, match="no log-probabilities"):
            credit("canon", self.TABLE, metric="entropy")

    def test_of_three_the_odd_one_is_high(self):
        # floor(3 / 2) = 1 low: 1. High: 0 and 0.5, mean 0.25.
        assert credit("canon", scored(1.0, 0.0, 0.5, tokens=(1, 2, 3))) == [0.75, -1.0, -0.5]


class TestRiskpo:
    def test_one_bundle_of_two_tasks(self):
        # Tasks a: 1, 0; b: 1, 0. Pairs: (1, 1) = 2 and (0, 0) = 0. Quantiles 0.25 and 0.75 of (0, 2): 0.5 and 1.5.
        # s = 2: a = (1.5 - 0.5 - 1) / 0.5 = 0, c = 0: A = 0. s = 0: a = -1 / 0.5 = -2, c = -0.5 / 0.25 = -2, A = -2.
        # Sample deviation of (0, -2): sqrt 2. Shares of the second pair: above the means (-0.5, -0.5) / -1: halves.
        table = scored(1.0, 0.0, 1.0, 0.0, groups="aabb")
        found = credit("riskpo", table, bundle=2, lower=0.25, upper=0.75)
        assert found == pytest.approx([0.0, -math.sqrt(2) / 2, 0.0, -math.sqrt(2) / 2])

    def test_shares_follow_who_was_above_its_task(self):
        # Task a: 1, 0, 0 (mean 1/3); b: 1, 1, 0 (mean 2/3). Sums 2, 1, 0; quantiles 0.5 and 1: 1 and 2.
        # s = 2: (1 - 0 - 1) / 0.5 = 0. s = 1: a = -1 / 0.5 = -2, c = 0. s = 0: a = -2, c = -1 / 0.5 = -2.
        # tail 1: A = 0, -1, -2; sample deviation 1. Second pair: (-1/3, +1/3), sum 0: halves of -1.
        # Third pair: (-1/3, -2/3) / -1: 1/3 and 2/3 of -2.
        table = scored(1.0, 0.0, 0.0, 1.0, 1.0, 0.0, groups="aaabbb")
        found = credit("riskpo", table, bundle=2, lower=0.5, upper=1.0, tail=1.0)
        assert found == pytest.approx([0, -1 / 2, -2 / 3, 0, -1 / 2, -4 / 3])
        equal = credit("riskpo", table, bundle=2, lower=0.5, upper=1.0, tail=1.0, share="equal")
        assert equal == pytest.approx([0, -1 / 2, -1, 0, -1 / 2, -1])
        # tail 3: s = 1: (0 - 2) / 4 = -0.5; s = 0: (-6 - 2) / 4 = -2. Sample variance of (0, -0.5, -2): mean -5/6,
        # squares 25/36 + 4/36 + 49/36 = 78/36, over 2: 13/12.
        heavy = credit("riskpo", table, bundle=2, lower=0.5, upper=1.0, tail=3.0, share="equal")
        assert heavy[:3] == pytest.approx([0, -0.25 / math.sqrt(13 / 12), -1 / math.sqrt(13 / 12)])


class TestCopo:
    def test_agreement_looks_at_the_batch(self):
        # g: answers all equal, H = 0: weight sigmoid(-20 * 1.5) = 1e-13, global. h: all different, H = ln 8 = 2.08:
        # weight sigmoid(20 * 0.58) = 1 - 9e-6, local. Group means 0.75 and 0.25: (+-0.25) / 0.35355 = +-0.7071.
        scores = [1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0]
        answers = ["x"] * 8 + list("abcdefgh")
        table = scored(*map(float, scores), groups="g" * 8 + "h" * 8).with_columns(answer=answers)
        found = np.array(credit("copo", table, eps=0))
        assert found[:8] == pytest.approx(math.sqrt(0.5), abs=1e-5)
        deviation = math.sqrt((2 * 0.75**2 + 6 * 0.25**2) / 7)
        weight = 1 / (1 + math.exp(-20 * (math.log(8) - 1.5)))
        local = np.array([0.75] * 2 + [-0.25] * 6) / deviation
        assert found[8:] == pytest.approx(weight * local - (1 - weight) * math.sqrt(0.5))

    def test_needs_answers(self):
        with pytest.raises(CreditError, match="no episode gave an answer"):
            credit("copo", scored(1.0, 0.0))


class TestUnlikeliness:
    def test_the_likeliest_success_is_worth_less(self):
        # Mean log-probabilities -3, -1, -2, -4: ranks 1, 3, 2, 0 of 4. beta 0.4: factors 0.9, 0.7, 0.8, 1.
        # Scores 1, 1, 0, 0 become 0.9, 0.7, 0, 0: mean 0.4.
        table = scored(1.0, 1.0, 0.0, 0.0).with_columns(behaviour_logprob=[-3.0, -1.0, -2.0, -4.0])
        assert credit("unlikeliness", table, beta=0.4, std="none") == pytest.approx([0.5, 0.3, -0.4, -0.4])

    def test_the_mean_is_over_tokens_and_ties_share_a_rank(self):
        # -1.5 and (-1 - 2) / 2: both rank 0.5 of 2; beta 0.4: factor 0.9.
        table = scored(1.0, 0.0, tokens=(1, 2)).with_columns(behaviour_logprob=[-1.5, -1.0, -2.0])
        assert credit("unlikeliness", table, beta=0.4, std="none") == pytest.approx([0.45, -0.45])


class TestGrpoCare:
    def test_a_right_answer_that_follows_earns_a_bonus(self):
        # exp of the mean over the last turn: 0.82, 0.37, 0.95 (wrong). The right ones have 0.59 - 0.01 to reach: only
        # the first does. Scores 1.5, 1, 0: mean 0.833.
        turns = [Step(None, 0, 1), Step(None, 0, 2)]
        table = table_of([Member("g", 1.0, turns), Member("g", 1.0, turns[:1]), Member("g", 0.0, turns[:1])])
        table = table.with_columns(ema_logprob=[-9.0, -0.1, -0.3, -1.0, -0.05])
        found = run("grpo_care", table, std="none")
        assert found.turn == pytest.approx([0.667, 0.667, 0.167, -0.833], abs=1e-3)
        assert found.metrics["consistent"] == pytest.approx(1 / 3)

    def test_certainty_beyond_the_bound_is_no_better(self):
        # 0.99 and 0.96 are both cut to 0.95: both are consistent.
        table = scored(1.0, 1.0, 0.0).with_columns(ema_logprob=[-0.01, -0.04, -0.01])
        assert credit("grpo_care", table, std="none") == pytest.approx([0.5, 0.5, -1.0])


class TestPrefGrpo:
    def test_win_rates_are_rounded_and_normalised(self):
        # 2/3, 1/3, 1/2 of the comparisons: 0.667, 0.333, 0.5: mean 0.5, deviation 0.167.
        table = scored(0.0, 0.0, 9.0).with_columns(win_rate=[2 / 3, 1 / 3, 1 / 2])
        assert credit("pref_grpo", table, eps=0) == pytest.approx([1.0, -1.0, 0.0])

    def test_needs_comparisons(self):
        with pytest.raises(CreditError, match="never compared") as caught:
            credit("pref_grpo", scored(1.0, 0.0))
        assert "win_rate" in str(caught.value)


class TestReinforcePP:
    def test_the_outcome_reaches_the_first_turn(self):
        # Two turns of one and two tokens, outcome 1, gamma 0.5 per token: 0.25, 0.5, 1.
        table = table_of([Member("g", 1.0, [Step(None, 0.0, 1), Step(None, 0.0, 2)])])
        table = table.with_columns(observation_tokens=[3, 0])
        found = run("reinforce_pp", table, gamma=0.5, std="none").token
        assert found == pytest.approx(np.array([0.25, 0.5, 1.0]) - 1.75 / 3)
        # Counting three observations on the way: 0.5^5, then as before. The mean is over six positions.
        counted = run("reinforce_pp", table, gamma=0.5, std="none", observations="count").token
        assert counted == pytest.approx(np.array([1 / 32, 0.5, 1.0]) - sum(0.5**k for k in range(6)) / 6)
        # verl's masked recursion: the first turn gets nothing.
        reset = run("reinforce_pp", table, gamma=0.5, std="none", observations="reset").token
        assert reset == pytest.approx(np.array([0.0, 0.5, 1.0]) - 0.5)

    def test_a_turn_without_tokens_hands_its_reward_back(self):
        table = table_of([Member("g", 1.0, [Step(None, 0.5, 2), Step(None, 0.25, 0)])])
        # The one token before it gets 0.5 + 0.25 + 1; undiscounted both get 1.75, less the mean.
        found = run("reinforce_pp", table, gamma=0.5, std="none").token
        assert found == pytest.approx([0.875 - 1.3125, 1.75 - 1.3125])


class TestBnpo:
    def test_equal_difficulty_weighs_nothing(self):
        # Means 0.5 and 0.5: v = 0, where the authors' code divides by 0. Here the weight is 1.
        assert credit("bnpo", scored(1.0, 0.0, 1.0, 0.0, groups="gghh")) == [0.5, -0.5, 0.5, -0.5]

    def test_a_solved_group_of_one_is_left_alone(self):
        table = scored(1.0, 0.0, 1.0, 1.0, 1.0, groups="gghhk")
        # Means 0.5 and 1 (the group of one does not count): m 0.75, v 0.125, m(1 - m)/v - 1 = 0.5; alpha 1.125,
        # beta 1.0416667. Density at 0.5: 0.5^0.125 * 0.5^0.0416667 / B.
        log_beta = math.lgamma(1.125) + math.lgamma(1.0416667) - math.lgamma(2.1666667)
        weight = math.exp(log_beta) / 0.5 ** (0.125 + 0.0416667)
        assert credit("bnpo", table) == pytest.approx([weight / 2, -weight / 2, 0, 0, 0])

    def test_means_that_lie_close_together(self):
        table = scored(0.5, 0.5, 0.501, 0.501, 0.502, 0.5, groups="gghhkk")
        # Means 0.5, 0.501, 0.501: m 0.5006667, v 3.333e-7, so alpha 125,167 and beta 124,834: each factor of the
        # density underflows. As a normal density, sigma^2 = m(1 - m) / (alpha + beta + 1): at 0.501 exp(-d^2 / (2
        # sigma^2)) / (sigma sqrt(2 pi)) with d 0.000333 is 377.4.
        assert credit("bnpo", table) == pytest.approx([0, 0, 0, 0, 0.001 / 377.4, -0.001 / 377.4], rel=1e-3)

    def test_refuses_scores_beyond_one(self):
        with pytest.raises(CreditError, match=r"episode 1: score 1.5 is not in \[0, 1\]"):
            credit("bnpo", scored(1.0, 1.5))


class TestTreepo:
    def test_every_shared_beginning_is_a_baseline(self):
        # Paths ab, ac, d with scores 1, 0, 0. Root: mean 1/3. Node a: mean 1/2. b, c, d hold one each.
        table = table_of([Member("g", s, [Step(None, 0.0, 1)] * n) for s, n in ((1.0, 2), (0.0, 2), (0.0, 1))])
        table = table.with_columns(action=list("abacd"))
        found = run("treepo", table, whiten=False).turn[table.offsets[:-1]]
        assert found == pytest.approx([(2 / 3 + 1 / 2) / 2, (-1 / 3 - 1 / 2) / 2, -1 / 3])

    def test_trajectories_that_did_all_alike_are_no_subtree(self):
        # Paths ab, ab, ac with scores 1, 0, 0. Root and node a hold all three: mean 1/3. Node ab is where two end.
        table = table_of([Member("g", s, [Step(None, 0.0, 1)] * 2) for s in (1.0, 0.0, 0.0)])
        found = run("treepo", table.with_columns(action=list("ababac")), whiten=False).turn[table.offsets[:-1]]
        assert found == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_total_scores_count_immediate_rewards():
    table = table_of([Member("g", 1.0, [Step(None, -1.0, 1)]), Member("g", 0.0, [Step(None, 0.5, 1)])])
    assert credit("dr_grpo", table) == [0.5, -0.5]
    assert credit("dr_grpo", table, score="total") == [-0.25, 0.25]


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_says_where_it_comes_from(name):
    estimator = BUILT_IN[name]
    assert estimator.source != "user code"
    assert estimator.certainty in ("A", "B", "C")
    assert estimator.function.__doc__
