"""Episodes in, credit out; what is refused; how recipes name estimators."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from pydantic import BaseModel

from agentrl.config.credit import CreditSettings
from agentrl.estimators import Advantages, CreditTable, estimator
from agentrl.estimators.registry import ESTIMATORS, load_credit
from agentrl.types.episode import CallRecord
from agentrl.types.errors import CreditError, RecipeError
from agentrl.types.sample import training_samples

BUILT_IN = ESTIMATORS.all()


def two_groups(make_episode):
    return [
        make_episode("a0", "a", 1.0, [("s", 2, 0.5), ("t", 3, None)]),
        make_episode("a1", "a", 0.0, [("s", 1, None)]),
        make_episode("b0", "b", 0.25, [("s", 4, None)]),
        make_episode("b1", "b", 0.75, []),
    ]


def test_columns_of_real_episodes(make_episode):
    table = CreditTable.from_episodes(two_groups(make_episode))
    assert (table.group_ids, table.episode_ids) == (["a", "b"], ["a0", "a1", "b0", "b1"])
    assert table.step_reward.tolist() == [0.5, 1.0, 0.0, 0.25]
    assert table.total_reward.tolist() == [1.5, 0.0, 0.25, 0.75]
    assert table.returns(0.5).tolist() == [1.0, 1.0, 0.0, 0.25]
    assert table.turn.tolist() == [0, 1, 0, 0]
    assert table.state.tolist() == [0, 1, 0, 0]
    assert table.token_offsets.tolist() == [0, 2, 5, 6, 10]
    assert table.trajectory_weights("token").tolist() == [5, 1, 4, 0]
    assert table.metrics() == {"groups": 2, "trajectories": 4, "zero_variance_groups": 0, "single_groups": 0}


@pytest.mark.parametrize(("outcomes", "executed"), [
    ([], 0), (["ok"], 1), (["ok", "ok"], 1), (["malformed"], 0), (["unknown"], 0), (["raised"], 0), (["timeout"], 0),
    (["error"], 0), (["ok", "error"], 0),
])  # fmt: skip
def test_a_turn_is_executed_if_all_its_calls_were(make_episode, outcomes, executed):
    """What `spa` pays for grounding: not that a call parses, but that the environment carried it out."""
    calls = [CallRecord(id="c", name="f", arguments={}, outcome=o, result="", duration_s=0.0) for o in outcomes]
    played = make_episode("a0", "a", 0.0)
    played = msgspec.structs.replace(played, turns=[msgspec.structs.replace(played.turns[0], calls=calls)])
    table = CreditTable.from_episodes([played]).with_columns(progress=[0.0])
    assert table.executed.tolist() == [executed]
    settings = {"baseline": "group", "singleton": "raw", "std": "none"}
    assert BUILT_IN["spa"](table, BUILT_IN["spa"].settings(**settings)).turn.tolist() == [0.5 * executed]


@pytest.mark.parametrize(("turn", "executed"), [
    ({"heard": 0}, 1), ({"heard": 0, "executed": False}, 0), ({"calls": ["ok"], "executed": False}, 0),
])  # fmt: skip
def test_what_an_environment_says_about_a_turn_counts(make_episode, turn, executed):
    """A move as text that an environment answered, and one, or a call, of which it said that it did nothing."""
    calls = [
        CallRecord(id="c", name="f", arguments={}, outcome=o, result="", duration_s=0) for o in turn.get("calls", [])
    ]
    played = make_episode("a0", "a", 0.0)
    played = msgspec.structs.replace(
        played, turns=[msgspec.structs.replace(played.turns[0], **{**turn, "calls": calls})]
    )
    assert CreditTable.from_episodes([played]).executed.tolist() == [executed]


@pytest.mark.parametrize("name", ["grpo", "returns", "gigpo"])
@pytest.mark.parametrize("status", ["infra_error", "user_error"])
def test_a_lost_member_is_absent_not_zero(make_episode, name, status):
    credit = load_credit(CreditSettings(use=name))
    lost = make_episode("a9", "a", None, [("s", 2, None)], status=status)
    kept = two_groups(make_episode)
    assert credit.assign([kept[0], lost, *kept[1:]]) == credit.assign(kept)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_names_the_episode(make_episode, reward):
    with pytest.raises(CreditError, match="episode a1: reward"):
        CreditTable.from_episodes([make_episode("a0", "a", 0.0), make_episode("a1", "a", reward)])
    steps = [("s", 1, 0.0), ("s", 1, reward)]
    with pytest.raises(CreditError, match="episode a1, turn 1: immediate reward"):
        CreditTable.from_episodes([make_episode("a0", "a", 0.0), make_episode("a1", "a", 0.0, steps)])


def test_an_episode_counts_once(make_episode):
    with pytest.raises(CreditError, match="'a0' is given twice"):
        CreditTable.from_episodes([make_episode("a0", "a", 0.0)] * 2)


def test_columns_must_fit():
    with pytest.raises(CreditError, match=r"'tokens' has shape \(1,\), expected \(2,\)"):
        CreditTable.from_columns(episode=["e"], group=["g"], score=[1.0], length=[2], reward=[0, 0], tokens=[1])


def test_credit_fits_the_rows_of_its_episode(make_episode):
    episodes = two_groups(make_episode)
    credits, metrics = load_credit(CreditSettings(use="gigpo", std="none", gamma=1.0)).assign(episodes)
    assert [credit.episode_id for credit in credits] == [episode.id for episode in episodes]
    # Group a: scores 1.5 and 0; state s was acted on with 1.5 to go, and with 0 to go; t only once.
    assert credits[0].turn_advantages == [0.75 + 0.75, 0.75]
    assert credits[0].parts == {"episode": [0.75, 0.75], "step": [0.75, 0.0]}
    assert credits[1].turn_advantages == [-1.5]
    assert (credits[2].turn_advantages, credits[3].turn_advantages) == ([-0.25], [])
    assert metrics["step_group_size"] == pytest.approx(4 / 3)
    (row,) = training_samples(episodes[0], credits[0].turn_advantages)
    assert row.advantage[row.loss_mask].tolist() == [1.5, 1.5, 0.75, 0.75, 0.75]


def test_token_credit_fits_the_rows_of_its_episode(make_episode):
    played = make_episode("a0", "a", 1.0, [("s", 2, None), ("t", 3, None)])
    (row,) = training_samples(played, [9.0, 9.0], [0.1, 0.2, 0.3, 0.4, 0.5])
    np.testing.assert_allclose(row.advantage[row.loss_mask], [0.1, 0.2, 0.3, 0.4, 0.5], rtol=1e-6)
    assert not row.advantage[~row.loss_mask].any()


def test_no_scored_episode_is_no_error(make_episode):
    credits, metrics = load_credit(CreditSettings(use="gigpo")).assign(
        [make_episode("a", "a", None, status="infra_error")]
    )
    assert credits == []
    assert metrics["groups"] == 0


def test_grpo_prefers_the_shorter_success(make_episode):
    long, short = [("s", 1, None)] * 4, [("s", 1, None)]
    episodes = [make_episode("a0", "a", 1.0, long), make_episode("a1", "a", 1.0, short)]
    flat, _ = load_credit(CreditSettings(use="grpo")).assign(episodes)
    keen, _ = load_credit(CreditSettings(use="grpo", gamma=0.5, std="none")).assign(episodes)
    assert flat[0].turn_advantages[0] == flat[1].turn_advantages[0] == 0.0
    assert (keen[0].turn_advantages[0], keen[1].turn_advantages[0]) == ((0.125 - 1) / 2, (1 - 0.125) / 2)


def test_gigpo_without_states_says_what_to_do(make_episode):
    episodes = [make_episode("a0", "a", 1.0, [(None, 1, None)]), make_episode("a1", "a", 0.0, [(None, 1, None)])]
    with pytest.raises(CreditError, match=r"no turn has a recorded state.*'gigpo'") as caught:
        load_credit(CreditSettings(use="gigpo")).assign(episodes)
    assert "state_key()" in str(caught.value)


class TestSettings:
    @pytest.mark.parametrize(("settings", "message"), [
        ({"use": "gigo"}, r"credit: there is no estimator 'gigo'\n.*did you mean 'gigpo'"),
        ({"use": "gigpo", "gama": 1}, r"credit.gama: .*no setting 'gama'\n.*did you mean 'gamma'.*omega"),
        ({"use": "grpo", "std": "both"}, r"credit.std: .*'sample', 'population' or 'none', found 'both'"),
        ({"use": "grpo", "gamma": 1.5}, r"credit.gamma: .*less than or equal to 1, found 1.5"),
        ({"use": "grpo", "eps": math.nan}, r"credit.eps"),
    ])  # fmt: skip
    def test_errors_say_what_is_allowed(self, settings, message):
        with pytest.raises(RecipeError, match=message):
            load_credit(CreditSettings(**settings))

    def test_the_schema_is_plain(self):
        assert CreditSettings.model_json_schema()["properties"]["use"]["type"] == "string"


class TestUserEstimator:
    def test_a_function_beside_the_recipe(self, tmp_path, make_episode):
        (tmp_path / "task.py").write_text(
            "from __future__ import annotations\n"
            "from typing import TYPE_CHECKING\n"
            "from pydantic import BaseModel\n"
            "if TYPE_CHECKING:\n    from agentrl.estimators import CreditTable\n"
            "class Mine(BaseModel, extra='forbid'):\n    scale: float = 1.0\n"
            "def mine(table: CreditTable, settings: Mine):\n    return table.step_reward * settings.scale\n"
        )
        credit = load_credit(CreditSettings(use="./task.py:mine", scale=2.0), tmp_path)
        credits, _ = credit.assign([make_episode("a0", "a", 1.0, [("s", 1, 0.5), ("s", 1, None)])])
        assert (credits[0].estimator, credits[0].turn_advantages) == ("mine", [1.0, 2.0])
        with pytest.raises(RecipeError, match="no setting 'scal'"):
            load_credit(CreditSettings(use="./task.py:mine", scal=2.0), tmp_path)
        with pytest.raises(RecipeError, match="has no 'min'"):
            load_credit(CreditSettings(use="./task.py:min"), tmp_path)

    def test_token_credit_is_cut_at_the_episodes(self, make_episode):
        @estimator(granularity="token", source="test", certainty="C")
        def by_token(table):
            return Advantages(np.zeros(table.n_turns), token=np.arange(table.n_tokens, dtype=float))

        credits, _ = load_credit(CreditSettings(use=by_token)).assign(two_groups(make_episode))
        assert [credit.token_advantages for credit in credits] == [[0, 1, 2, 3, 4], [5], [6, 7, 8, 9], []]

    def test_results_are_checked(self, make_episode):
        table = CreditTable.from_episodes(two_groups(make_episode))
        with pytest.raises(CreditError, match=r"'<lambda>': turn has shape \(2,\), not \(4,\)"):
            ESTIMATORS.find(lambda table: np.zeros(2))(table)
        with pytest.raises(CreditError, match=r"episode a1, turn 0: .*turn is nan"):
            ESTIMATORS.find(lambda table: np.array([0, 1, np.nan, 0]))(table)

    def test_a_wrong_signature(self):
        def wrong(*, table):
            return table.step_reward

        with pytest.raises(RecipeError, match=r"credit: wrong takes \(\*, table\), and is called with \(table\)"):
            ESTIMATORS.find(wrong)

    def test_settings_as_parameters(self, make_episode):
        def scaled(table, factor: float = 2.0):
            return table.step_reward * factor

        episodes = [make_episode("a0", "a", 1.0, [("s", 1, 0.5), ("s", 1, None)])]
        for given, turns in [({}, [1.0, 2.0]), ({"factor": 4}, [2.0, 4.0])]:
            credits, _ = load_credit(CreditSettings(use=scaled, **given)).assign(episodes)
            assert credits[0].turn_advantages == turns
        with pytest.raises(RecipeError, match=r"credit.factor: .*valid number.*found 'x'"):
            load_credit(CreditSettings(use=scaled, factor="x"))

    def test_defaults_apply_without_settings(self, make_episode):
        class Settings(BaseModel):
            add: float = 3.0

        def plus(table: CreditTable, settings: Settings) -> np.ndarray:
            return np.full(table.n_turns, settings.add)

        plus.__annotations__["settings"] = Settings
        assert ESTIMATORS.find(plus)(CreditTable.from_episodes(two_groups(make_episode))).turn.tolist() == [3.0] * 4
