"""Estimators against numbers that the authors' own code gave, at the tolerance that each file states."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agentrl.credit.gigpo import GigpoSettings, anchor_groups, gigpo
from agentrl.credit.grpo import GrpoSettings, grpo
from agentrl.credit.table import CreditTable

HERE = Path(__file__).parents[1] / "golden"
STD = {"mean_norm": "none", "mean_std_norm": "sample"}


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    return request.config.getoption("--golden", default=None) or HERE


def load(folder: Path, name: str) -> tuple[dict, CreditTable]:
    if not (folder / name).is_file():
        pytest.skip(f"{folder} has no {name}")
    golden = json.loads((folder / name).read_text())
    return golden, table_of(json.loads((folder / golden["inputs_file"]).read_text()))


def table_of(inputs: dict, states: list[str] | None = None) -> CreditTable:
    pairs = [(g["group_id"], t) for g in inputs["groups"] for t in g["trajectories"]]
    turns = [turn for _, trajectory in pairs for turn in trajectory["turns"]]
    return CreditTable.from_columns(
        episode=[trajectory["traj_id"] for _, trajectory in pairs],
        group=[group for group, _ in pairs],
        score=[trajectory["outcome"] for _, trajectory in pairs],
        length=[len(trajectory["turns"]) for _, trajectory in pairs],
        reward=[sum(turn["rewards"].values()) for turn in turns],
        state=[turn["state"] for turn in turns] if states is None else states,
        tokens=[len(turn["action_token_ids"]) for turn in turns],
        valid=[turn["action_valid"] for turn in turns],
    )


def close(found: np.ndarray, expected: dict, table: CreditTable, tolerance: float) -> None:
    """Compares a turn column with `traj_id -> [one per turn]`, and checks that no trajectory is left out."""
    assert set(expected) == set(table.episode_ids)
    wanted = [value for name in table.episode_ids for value in expected[name]]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)


def test_grpo(folder: Path) -> None:
    golden, table = load(folder, "grpo.json")
    found = grpo(table, GrpoSettings(singleton="raw")).turn
    expected = golden["expected_advantage_per_trajectory"]
    spread = {name: [expected[name]] * int(n) for name, n in zip(table.episode_ids, table.length, strict=True)}
    close(found, spread, table, golden["tolerance"])


def test_gigpo(folder: Path) -> None:
    golden, table = load(folder, "gigpo.json")
    totals = [golden["episode_score"][name] for name in table.episode_ids]
    np.testing.assert_allclose(table.total_reward, totals, rtol=0, atol=golden["tolerance"])
    for setting, expected in golden["expected"].items():
        given = dict(part.split("=") for part in setting.split(","))
        gamma, omega, std = float(given["gamma"]), float(given["w"]), STD[given["mode"]]
        close(table.returns(gamma), expected["discounted_step_returns"], table, golden["tolerance"])
        # The authors' code: statistics over the rows of turns, a group of a single row keeps its raw score.
        rows = gigpo(table, GigpoSettings(gamma=gamma, omega=omega, std=std, weighting="turn", singleton="raw"))
        close(rows.parts["episode"], expected["episode_advantage"], table, golden["tolerance"])
        close(rows.parts["step"] / omega, expected["step_advantage"], table, golden["tolerance"])
        close(rows.turn, expected["advantage"], table, golden["tolerance"])
        # The paper's Eq. 3: every trajectory counts once.
        paper = gigpo(table, GigpoSettings(gamma=gamma, std=std, weighting="trajectory", singleton="raw"))
        close(
            paper.parts["episode"],
            expected["episode_advantage_if_each_trajectory_counts_once"],
            table,
            golden["tolerance"],
        )


def test_gigpo_with_similar_states(folder: Path) -> None:
    golden, plain = load(folder, "gigpo.json")
    if "similarity_case" not in golden:
        pytest.skip("this set has no similarity case")
    case = golden["similarity_case"]
    rows = [(row["traj_id"], row["turn"]) for row in case["rows"]]
    assert rows == [(plain.episode_ids[i], int(turn)) for i, turn in zip(plain.trajectory, plain.turn, strict=True)]
    inputs = json.loads((folder / golden["inputs_file"]).read_text())
    table = table_of(inputs, case["observations_per_row"])
    assert anchor_groups(table, case["threshold"]).tolist() == case["step_group_id_per_row"]
    settings = GigpoSettings(gamma=case["discounted_step_returns_gamma"], std="none", similarity=case["threshold"])
    found = gigpo(table, settings).parts["step"]
    close(found, case["step_advantage_mean_norm"], table, golden["tolerance"])
