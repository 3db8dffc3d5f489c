"""Golden tables of small rules: what a reward is turned into, what a schedule says, how tasks are weighted."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agentrl.curriculum.methods.horizon import ScalingInter
from agentrl.curriculum.methods.noise import ZeroSearch
from agentrl.curriculum.methods.sources import Dads, Dump
from agentrl.curriculum.parts import CurriculumContext, GroupPlan
from agentrl.estimators.outcome.bnpo import beta_weights
from agentrl.estimators.table import CreditTable
from agentrl.estimators.turn.capo import VOTES
from agentrl.types.task import Task
from tests.estimators.golden import Golden
from tests.estimators.golden_trajectory import run
from tests.estimators.tables import Member, Step, table_of

Near = Callable[[Any], Any]
"""`pytest.approx` at the file's tolerance."""


def one_turn(scores: list[float]) -> CreditTable:
    return table_of([Member("g", score, [Step(None, 0.0, 1)]) for score in scores])


def unlikeliness(expected: Any, near: Near) -> None:
    for row in expected["rows"]:
        table = one_turn(row["rewards"]).with_columns(behaviour_logprob=row["mean_logprob"])
        found = run("unlikeliness", table, beta=row["beta"]).turn
        assert found == near(row["advantage"])


def bnpo_weights(expected: Any, near: Near) -> None:
    means = np.array(expected["group_means"])
    assert beta_weights(means, np.ones(len(means), bool)) == near(expected["weight"])


def w_reinforce(expected: Any, near: Near) -> None:
    table = one_turn([1.0, 0.0])
    wanted = [expected["advantage_correct"], expected["advantage_incorrect"]]
    assert run("w_reinforce", table, positive=expected["lam"]).turn == near(wanted)
    assert run("w_reinforce", table, positive=1.0, negative=0.0).turn == near(expected["psr"])
    assert run("nsr", table).turn == near(expected["nsr"])


def asymre(expected: Any, near: Near) -> None:
    found = run("asymre", one_turn(expected["rewards"]), delta=expected["delta"]).turn
    assert found == near(expected["advantage"])


def opmd(expected: Any, near: Near) -> None:
    rewards = np.array(expected["rewards"], float)
    found = run("opmd", one_turn(list(rewards)), baseline="logavgexp", tau=expected["tau"]).turn
    assert rewards - found == near([expected["baseline"]] * len(rewards))


def ppr_renorm(expected: Any, near: Near) -> None:
    """Undiscounted by anything later and not divided, advantages are rewards less their mean."""
    for beta in {row["beta"] for row in expected}:
        rows = [row for row in expected if row["beta"] == beta]
        table = table_of([Member("g", row["outcome"], [Step(None, 0.0, 1)] * 2) for row in rows])
        table = table.with_columns(process=[p for row in rows for p in (row["process"], 0.0)])
        found = run("ppr", table, baseline="group", gamma=0.0, std="none", weighting="turn", beta=beta).turn
        first, wanted = found[::2], np.array([row["reward"] for row in rows])
        assert first - first[0] == near(wanted - wanted[0])


def capo_token_reward(expected: Any, near: Near) -> None:
    table = one_turn([row["outcome"] for row in expected]).with_columns(wrong=[row["wrong_step"] for row in expected])
    found = run("capo", table, std="none").turn
    wanted = np.array([row["reward"] for row in expected], float)
    assert found == near(wanted - wanted.mean())


def capo_voting(expected: Any, near: Near) -> None:
    critiques = expected["critiques"]
    steps = sorted({step for marked in critiques for step in marked})
    share = np.array([np.mean([step in marked for marked in critiques]) for step in steps])
    votes = {"intersection": "intersection", "majority": "majority_at_least_half", "union": "union"}
    for vote, key in votes.items():
        chosen = [step for step, wrong in zip(steps, VOTES[vote](share), strict=True) if wrong]  # type: ignore[index]
        assert chosen == expected[key]


def plan(part: Any, iteration: int) -> GroupPlan:
    """What a schedule makes of a plan at an iteration."""
    context = CurriculumContext(iteration, 10**6, random.Random(0), {}.__getitem__)
    return part.plan(GroupPlan(Task.of("t", "go"), 8, 10**6), context)


def zerosearch(expected: Any, near: Near) -> None:
    part = ZeroSearch(ZeroSearch.Settings(start=expected["ps"], end=expected["pe"], over=expected["total_steps"]))
    for step, noise in expected["values"].items():
        assert plan(part, int(step)).task.data["noise"] == near(noise)


def scaling_inter(expected: Any, near: Near) -> None:
    part = ScalingInter(ScalingInter.Settings(max_turns=expected["rounds"], every=expected["interval"]))
    for step, turns in expected["step_to_max_rounds"].items():
        assert plan(part, int(step)).max_turns == turns


def dads(expected: Any, near: Near) -> None:
    from tests.curriculum.test_parts import context, group

    for case in expected:
        part = Dads(Dads.Settings(every=1, memory=1))
        part.observe([group(str(k), mean) for k, mean in enumerate(case["mean_reward"])], context())
        weights = np.array(part.weights([str(k) for k in range(len(case["mean_reward"]))]))
        assert weights / weights.sum() == near(case["weights_without_history"])


def dump(expected: Any, near: Near) -> None:
    for case in expected:
        part, counts = Dump(), zip(case["n"], case["mean_abs_advantage"], strict=True)
        part.state = {"seen": {str(k): {"n": n, "recent": [a]} for k, (n, a) in enumerate(counts)}}
        assert part.weights([str(k) for k in range(len(case["n"]))]) == near(case["weights"])


def by_the_rewards_tests(expected: Any, near: Near) -> None:
    """`test_rewards_golden.py` reads this table, from the same folder."""


TABLES: dict[str, Callable[[Any, Near], None]] = {
    "unlikeliness": unlikeliness,
    "bnpo_weights": bnpo_weights,
    "w_reinforce": w_reinforce,
    "asymre": asymre,
    "opmd_logavgexp": opmd,
    "ppr_renorm": ppr_renorm,
    "capo_token_reward": capo_token_reward,
    "capo_voting": capo_voting,
    "zerosearch_noise_probability": zerosearch,
    "scaling_inter_rounds": scaling_inter,
    "ruleeasoner_dads": dads,
    "dump_ucb": dump,
    "rlcr_reward": by_the_rewards_tests,
    "ufo_reward": by_the_rewards_tests,
    "noisy_verifier": by_the_rewards_tests,
    "reseek_judge": by_the_rewards_tests,
    "clip_delta": by_the_rewards_tests,
}


def scalar_tables(golden: Golden) -> None:
    unknown = golden.data["expected"].keys() - TABLES.keys()
    if unknown:
        pytest.fail(f"no row for the tables {sorted(unknown)}; there are {', '.join(sorted(TABLES))}")
    for name, expected in golden.data["expected"].items():
        TABLES[name](expected, lambda value: pytest.approx(value, rel=0, abs=golden.tolerance))
