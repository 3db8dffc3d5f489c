"""Golden numbers of the trajectory family: which of our settings are the authors'."""

from __future__ import annotations

from typing import Any

import numpy as np

from agentrl.estimators.registry import ESTIMATORS
from agentrl.estimators.table import CreditTable
from tests.estimators.golden import Check, Golden, arguments

BUILT_IN = ESTIMATORS.all()


def run(name: str, table: CreditTable, **settings: Any) -> Any:
    estimator = BUILT_IN[name]
    return estimator(table, estimator.settings(**settings))


def per_trajectory(name: str, **settings: Any) -> Check:
    """A check of files that hold one advantage per trajectory."""

    def check(golden: Golden) -> None:
        table = golden.table()
        found = run(name, table, **settings).turn
        golden.close(found, golden.data["expected_advantage_per_trajectory"], table)

    return check


def rloo(golden: Golden) -> None:
    table = golden.table()
    # verl's two variants differ in the group of one: the loop keeps the score, the vectorised one gives 0.
    golden.close(run("rloo", table, singleton="raw").turn, golden.data["expected_advantage_per_trajectory"], table)
    golden.close(run("rloo", table).turn, golden.data["expected_vectorized_variant"], table, "vectorised")


def reinforce_pp(golden: Golden) -> None:
    table = golden.table()
    for setting, expected in golden.data["expected"].items():
        given = arguments(setting)
        observations = "count" if given.get("mask") == "contiguous" else "reset"
        settings = {"gamma": float(given["gamma"]), "score": "outcome", "observations": observations}
        found = run("reinforce_pp", table, **settings)
        golden.close(found.token, expected["advantages"], table, setting)
        returns = run("reinforce_pp", table, **settings, std="none").token
        wanted = [value for name in table.episode_ids for turn in expected["returns"][name] for value in turn]
        # Without division, advantages are returns minus one number.
        np.testing.assert_allclose(np.ptp(returns - wanted), 0, atol=golden.tolerance, err_msg=setting)
        if given["gamma"] == "1.0" and observations == "count":
            # Undiscounted, the fixed recursion gives the returns of the run that has nothing masked out.
            fixed = run("reinforce_pp", table, gamma=1.0, score="outcome", std="none").token
            np.testing.assert_allclose(np.ptp(fixed - wanted), 0, atol=golden.tolerance)


def bnpo(golden: Golden) -> None:
    table = golden.table(score=golden.data["reward"])
    found = run("bnpo", table, singleton="raw").turn
    golden.close(found, golden.data["expected_advantage_per_trajectory"], table)


def treepo(golden: Golden) -> None:
    table = golden.table()
    for setting, expected in golden.data["expected"].items():
        given = arguments(setting)
        settings = {
            "aggregate": given["strategy"],
            "drop_flat": given["remove_no_std_subgroup"] == "True",
            "singleton": "raw",
        }
        golden.close(run("treepo", table, **settings, whiten=False).turn, expected["before_whitening"], table, setting)
        golden.close(run("treepo", table, **settings).turn, expected["after_whitening"], table, setting)


def gigpo(golden: Golden) -> None:
    table = golden.table()
    golden.close(table.total_reward, golden.data["episode_score"], table)
    for setting, expected in golden.data["expected"].items():
        given = arguments(setting)
        gamma, omega = float(given["gamma"]), float(given["w"])
        std = {"mean_norm": "none", "mean_std_norm": "sample"}[given["mode"]]
        golden.close(table.returns(gamma), expected["discounted_step_returns"], table, setting)
        # The authors' code: statistics over the rows of turns, a group of a single row keeps its raw score.
        rows = run("gigpo", table, gamma=gamma, omega=omega, std=std, weighting="turn", singleton="raw")
        golden.close(rows.parts["episode"], expected["episode_advantage"], table, setting)
        golden.close(rows.parts["step"] / omega, expected["step_advantage"], table, setting)
        golden.close(rows.turn, expected["advantage"], table, setting)
        # The paper's Eq. 3: every trajectory counts once.
        paper = run("gigpo", table, gamma=gamma, std=std, weighting="trajectory", singleton="raw")
        once = expected["episode_advantage_if_each_trajectory_counts_once"]
        golden.close(paper.parts["episode"], once, table, setting)
    if "similarity_case" in golden.data:
        gigpo_with_similar_states(golden)


def gigpo_with_similar_states(golden: Golden) -> None:
    from agentrl.estimators.turn.gigpo import anchor_groups

    case = golden.data["similarity_case"]
    table = golden.table(state=case["observations_per_row"])
    rows = [(row["traj_id"], row["turn"]) for row in case["rows"]]
    assert rows == [(table.episode_ids[i], int(turn)) for i, turn in zip(table.trajectory, table.turn, strict=True)]
    assert anchor_groups(table, case["threshold"]).tolist() == case["step_group_id_per_row"]
    gamma = case["discounted_step_returns_gamma"]
    found = run("gigpo", table, gamma=gamma, std="none", similarity=case["threshold"])
    golden.close(found.parts["step"], case["step_advantage_mean_norm"], table, "similar states")


CHECKS: dict[str, Check] = {
    "grpo": per_trajectory("grpo", singleton="raw"),
    "dr_grpo": per_trajectory("dr_grpo", singleton="raw"),
    "opo": per_trajectory("opo", singleton="raw"),
    "gpg": per_trajectory("gpg", singleton="raw"),
    "reinforce_pp_baseline": per_trajectory("reinforce_pp_baseline", singleton="raw"),
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "bnpo": bnpo,
    "treepo": treepo,
    "gigpo": gigpo,
}
