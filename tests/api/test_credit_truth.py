"""Which estimator is truest: the statistics, `agentrl.credit_truth`, and benchmarks.credit_truth."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import agentrl
from agentrl.api.credit import credit
from agentrl.api.forks.agreement import MeasuredTurn, agreements, ceiling, interval, ranks, resampled, spearman
from agentrl.api.forks.truth import cost_of, measurable
from agentrl.api.rollout import rollout
from agentrl.api.run import Run
from agentrl.commands.probe import probe as probe_command
from agentrl.config.credit import CreditSettings
from agentrl.estimators.registry import ESTIMATORS, load_credit
from agentrl.types.errors import AgentRLError, StoreError
from benchmarks.credit_truth import ESTIMATORS as COMPARED
from benchmarks.credit_truth import HERE, WORLDS, Estimated, Measured, compared, credit_of, draw, probe_all
from tests.command import agentrl as command
from tests.store.make import make_episode


def turn(episode: str, index: int, worth: float, error: float = 0.1, last: bool = False) -> MeasuredTurn:
    return MeasuredTurn(episode, index, worth, error, (worth, worth), last)


def test_ranks_of_ties_are_shared() -> None:
    assert ranks([3.0, 1.0, 3.0, 2.0]).tolist() == [3.5, 1.0, 3.5, 2.0]


@pytest.mark.parametrize(("b", "expected"), [([1, 4, 9, 16], 1.0), ([4, 3, 2, 1], -1.0), ([5, 5, 5, 5], 0.0)])
def test_rank_correlation(b: list[float], expected: float) -> None:
    assert spearman(np.array([1, 2, 3, 4]), np.array(b)) == pytest.approx(expected)


def test_rank_correlation_with_ties() -> None:
    assert spearman([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(0.9486832980505138)


def test_a_sample_has_whole_episodes() -> None:
    episodes = ["a", "b", "a", "c", "b", "a"]
    for at in resampled(episodes, samples=50):
        counts = np.bincount(at, minlength=6)
        assert counts[0] == counts[2] == counts[5]
        assert counts[1] == counts[4]
        assert counts[0] + counts[1] + counts[3] == 3, "as many as there are"
    assert [each.tolist() for each in resampled(episodes)] == [each.tolist() for each in resampled(episodes)]
    assert resampled(["a", "a"]) == []
    assert interval(np.array([])) is None


def test_a_true_estimator_is_told_from_a_false_one() -> None:
    rng = np.random.default_rng(1)
    worth = rng.normal(size=60)
    turns = [turn(f"e{k // 4}", k % 4, w, last=k % 4 == 3) for k, w in enumerate(worth)]
    noise = rng.normal(size=60)
    found = agreements(turns, {"noise": noise, "exact": worth, "near": worth + 0.3 * noise, "none": np.zeros(60)})
    assert [*found][:2] == ["exact", "near"]
    assert found["exact"].spearman == pytest.approx(1)
    assert found["exact"].interval == pytest.approx((1, 1))
    low, high = found["noise"].interval or (0, 0)
    assert low < found["noise"].spearman < high
    assert high - low > 0.2
    assert [name for name, each in found.items() if each.behind] == [*found][1:]
    assert found["exact"].sign == 1
    assert found["none"].spearman == 0
    assert found["none"].sign == 0
    same = agreements(turns, {"one": worth, "other": 2 * worth})
    assert not any(each.behind for each in same.values()), "equal ranks are not told apart"


def test_last_turns_can_be_left_out() -> None:
    """Their worth holds the episode's own reward, which an estimator of outcomes reads."""
    turns = [turn(f"e{k}", t, [0.3, -0.3, 0.0][t] if k else [-0.3, 0.3, 0.0][t]) for k in range(2) for t in range(2)]
    turns += [turn(f"e{k}", 2, float(k), last=True) for k in range(2)]
    outcome = [0.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    found = agreements(turns, {"outcome": outcome})["outcome"]
    assert found.spearman > 0.3
    assert found.inner == 0


def test_what_one_episode_cannot_say() -> None:
    found = agreements([turn("e", 0, 0.0), turn("e", 1, 0.05, last=True)], {"a": [1.0, 2.0]})["a"]
    assert found == type(found)(spearman=pytest.approx(1), interval=None, inner=None, sign=None, behind=False)


def test_the_ceiling_is_that_of_two_halves() -> None:
    turns = [MeasuredTurn("e", k, 0.0, 0.0, halves, False) for k, halves in enumerate([(1, 1), (2, 3), (3, 2), (4, 4)])]
    assert ceiling(turns) == pytest.approx((2 * 0.8 / 1.8) ** 0.5)
    assert ceiling([MeasuredTurn("e", k, 0.0, 0.0, (k, -k), False) for k in range(3)]) == 0


def test_episodes_are_chosen_from_groups_with_both_rewards() -> None:
    def made(id: str, group: str, reward: float, **more: Any) -> Any:
        episode = make_episode(id, group=group, turns=2)
        return msgspec.structs.replace(episode, reward=reward, **{"split": "rollout", **more})

    given = [made(f"a{k}", "a", 1.0) for k in range(3)] + [made(f"b{k}", "b", float(k % 2)) for k in range(3)]
    given += [made("c0", "c", 1.0, split="eval"), made("c1", "c", 0.0, status="user_error")]
    assert [each.id for each in measurable(given, 9)] == ["b0", "b1", "a0", "a1"]
    assert [each.id for each in measurable(given, 3)] == ["b0", "b1", "a0"]
    trained = [made(f"t{k}", f"t{k}", 1.0, split="train", iteration=k) for k in range(3)]
    assert [each.id for each in measurable(trained, 9)] == ["t2"], "the newest policy played these alone"


def test_credit_of_judges_has_no_known_cost() -> None:
    episodes = [make_episode("e", turns=2)]
    judged = [
        msgspec.structs.replace(
            each, turns=[msgspec.structs.replace(turn, rewards={"wrong": 0.0}) for turn in each.turns]
        )
        for each in episodes
    ]
    for name, given, tokens in (("capo", judged, None), ("grpo", episodes, 0.0)):
        cost = cost_of(load_credit(CreditSettings(use=name)), given, None)
        assert cost.tokens == tokens
        assert cost.cpu_ms >= 0


def test_the_worlds_and_estimators_are_there() -> None:
    assert {each["use"] for each in COMPARED.values()} == {*ESTIMATORS.built_in}
    assert len(WORLDS) >= 5
    for world in WORLDS.values():
        settings = [f"{key}={value}" for key, value in world.settings.items()]
        assert agentrl.load_recipe(world.recipe, overrides=settings).train is not None


@pytest.mark.slow
def test_turns_of_the_kitchen_are_probed(tmp_path: Path) -> None:
    played = rollout(HERE / "kitchen", 16, group_size=4, script="cook", out=tmp_path / "played", reporters=())
    probed, tokens = probe_all(played, 8, 2, tmp_path)
    assert tokens > 0
    lengths = {episode.id: len(episode.turns) for episode in played.whole_episodes()}
    assert len({turn.episode for turn in probed}) == 2
    for episode in {turn.episode for turn in probed}:
        assert [turn.turn for turn in probed if turn.episode == episode] == list(range(lengths[episode]))
    restored = next(Run(tmp_path / "probe-0").whole_episodes())
    assert restored.turns[0].saved == [[0, False]]
    found, left_out = compared(played, probed)
    assert -1 <= found["rloo"].spearman <= 1
    assert found["rloo"].sign is not None
    assert found["rloo"].low is not None
    assert found["rloo"].tokens == 0
    assert "gold answer" in left_out["igpo"], "a script has no probabilities"
    # The same states in another run: credit that remembers begins with those that trained.
    before = rollout(
        HERE / "kitchen", 16, overrides=["seed=1"], group_size=4, script="cook", out=tmp_path / "before", reporters=()
    )
    alone, remembering = (credit_of(played, "gagpo, decay 0.5", run) for run in (None, as_trained(before)))
    assert alone == {each.episode_id: each.turn_advantages for each in credit(played, "gagpo").credits}
    assert alone != remembering
    row = Measured(
        world="kitchen", seed=0, success=0.5, turns=2, episodes=2, ceiling=0.5, probe_tokens=1, left_out={},
        estimators={name: each for name, each in found.items() if isinstance(each, Estimated)},
    )  # fmt: skip
    draw({"kitchen": [row]}, tmp_path / "cost.png")
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")


def as_trained(run: Run) -> Run:
    """The run, with its episodes as those of a training."""
    episodes = [msgspec.structs.replace(episode, split="train") for episode in run.whole_episodes()]
    return SimpleNamespace(whole_episodes=lambda: episodes)  # type: ignore[return-value]


@pytest.mark.slow
def test_probe_says_which_estimator_is_truest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = rollout(
        HERE / "kitchen", 16, overrides=["credit.gamma=0.9"], group_size=4, script="cook", out=tmp_path / "run",
        reporters=(),
    )  # fmt: skip
    how = {"n": 6, "episodes": 2, "out": tmp_path / "truth", "reporters": ()}
    found = agentrl.credit_truth(run, estimators=["grpo", "gigpo", "gagpo"], **how)
    assert {*found.estimators} == {"grpo", "gigpo", "gagpo"}
    assert found.episodes == len(found.runs) == 2
    assert found.own == "gigpo"
    assert found.left_out == {}
    resumed = [each for path in found.runs for each in Run(path).whole_episodes()]
    assert len(resumed) == 6 * found.turns
    assert found.tokens == sum(each.sampled_tokens for each in resumed)
    own = {each.episode_id: each.turn_advantages for each in credit(run).credits}
    assert own != {each.episode_id: each.turn_advantages for each in credit(run, "gigpo").credits}
    # Run again, it resumes no episode. Without names, it compares every estimator that the columns allow.
    shared: dict[str, Any] = {"episodes": 2, "plot": None, "as_json": False, "out": tmp_path / "truth"}
    probe_command(run.path, None, 6, estimator="grpo, gagpo,gigpo", **shared, reporters=())
    text = capsys.readouterr().out
    assert "gigpo (as in the run)" in text
    assert f"{found.turns} turns of 2 episodes, 6 resumed before each ({found.tokens:,} tokens sampled)" in text
    assert f"truest here: {next(iter(found.estimators))}" in text
    more = ["--n", "6", "--episodes", "2", "--out", str(tmp_path / "truth"), "--json"]
    whole = json.loads(command("probe", str(run.path), *more, cwd=tmp_path).stdout)
    assert whole["estimators"]["gigpo"]["spearman"] == pytest.approx(found.estimators["gigpo"].spearman)
    assert "there are no values" in whole["left_out"]["gae"]
    assert len(whole["estimators"]) > 20
    for episode, changes, words in (
        (None, {"estimator": "gae"}, "there are no values"),
        (None, {"estimator": "grpoo"}, "did you mean 'grpo'"),
        (None, {"estimator": None, "plot": Path("x.svg")}, "name the episode"),
        (next(iter(own)), {"estimator": "grpo,gigpo"}, "leave out the episode: agentrl probe RUN --estimator grpo,"),
    ):
        with pytest.raises(AgentRLError) as refused:
            probe_command(run.path, episode, 6, **{**shared, **changes}, reporters=())
        assert words in str(refused.value)


@pytest.mark.slow
def test_a_run_that_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    evaluated = rollout(
        HERE / "kitchen", 2, script="cook", overrides=["rewards={}"], out=tmp_path / "run", reporters=()
    )
    with pytest.raises(StoreError, match="holds no scored episode"):
        agentrl.credit_truth(evaluated, out=tmp_path / "truth", reporters=())
