"""`agentrl credit` as a user runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.api.credit import credit
from agentrl.api.run_dirs import begin_run
from agentrl.cli import app
from agentrl.commands.credit import print_credit
from agentrl.config.loader import load_recipe
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import StoreError
from tests.command import agentrl
from tests.sound import assert_sound
from tests.store.make import make_episode

pytestmark = pytest.mark.slow


def test_a_stored_run_is_credited_again(counting: Path) -> None:
    here = counting.parent
    roll = ("rollout", "counting", "--n", "8", "--group-size", "4", "--script", "hasty", "--out", "run")
    agentrl(*roll, "--set", "credit={use: dr_grpo, weighting: turn}", cwd=here)
    for estimator in ("gigpo", "salt", "step_grpo"):
        refused = agentrl("credit", "run", "--estimator", estimator, cwd=here, ok=False).stderr
        assert f"no turn has a recorded state, which estimator '{estimator}' needs" in refused
        assert "a rollout records states only if the credit of its recipe reads them" in refused
        assert f"--set credit={estimator}" in refused
    agentrl(*roll[:-1], "keyed", "--set", "credit=gigpo", cwd=here)
    table = agentrl("credit", "keyed", "--estimator", "gigpo", "--set", "gamma=0.9", "--limit", "2", cwd=here).stdout
    assert "gamma=0.9" in table
    assert "episode" in table
    assert "step" in table
    assert "(2 of 8 episodes" in table
    keyed = json.loads(agentrl("credit", "keyed", "--set", "gamma=0.9", "--json", cwd=here).stdout)["episodes"]
    of_turns = [value for each in keyed for value in each["turn_advantages"]]
    assert "states: 100% of the turns acted on a state that another episode of the task met" in table
    assert f"gigpo, highest credit: {max(of_turns):+.3f}  " in table
    assert f"gigpo, lowest credit: {min(of_turns):+.3f}  " in table

    found = json.loads(agentrl("credit", "run", "--json", "--set", "singleton=raw", cwd=here).stdout)
    assert (found["estimator"], found["settings"]["weighting"]) == ("dr_grpo", "turn"), "the run's own"
    assert found["settings"]["singleton"] == "raw"
    assert len(found["episodes"]) == 8
    with RunDir.read(here / "run") as run:
        assert all(run.credit(id) is None for id in run.ids()), "nothing is written unless asked"
        rewards = {row.id: row.reward for row in run.rows()}
        turns = {row.id: row.turns for row in run.rows()}
    # By hand: every turn of a group counts once.
    for group in ("count0", "count1"):
        members = [one for one in found["episodes"] if group in one["episode_id"]]
        total = sum(turns[one["episode_id"]] for one in members)
        mean = sum(rewards[one["episode_id"]] * turns[one["episode_id"]] for one in members) / total
        for one in members:
            assert one["turn_advantages"] == [rewards[one["episode_id"]] - mean] * turns[one["episode_id"]]

    agentrl("credit", "run", "--estimator", "rloo", "--save", cwd=here)
    assert "credit by rloo (agentrl credit --save)" in agentrl("show", "run", "count1#0", cwd=here).stdout
    assert_sound(here / "run")


def test_rewards_that_were_given_later_can_be_credited(counting: Path) -> None:
    here = counting.parent
    agentrl("rollout", "counting", "--n", "8", "--group-size", "4", "--script", "hasty", "--out", "run", cwd=here)
    doubled = [*("--recipe", "counting", "--name", "doubled"), "--set", "rewards.exact.weight=2"]
    agentrl("rescore", "run", *doubled, cwd=here)
    one, two = (
        json.loads(agentrl("credit", "run", "--estimator", "dr_grpo", "--json", *more, cwd=here).stdout)["episodes"]
        for more in ((), ("--rewards", "doubled"))
    )
    assert any(any(episode["turn_advantages"]) for episode in one)
    assert [episode["turn_advantages"] for episode in two] == [
        [2 * a for a in episode["turn_advantages"]] for episode in one
    ]
    agentrl("credit", "run", "--estimator", "rloo", "--rewards", "doubled", "--save", cwd=here)
    assert "rewards 'doubled')" in agentrl("show", "run", "count1#0", cwd=here).stdout


def test_an_estimator_of_the_users_own_lies_beside_the_recipe(counting: Path) -> None:
    """The example of docs/credit.md, as it stands."""
    page = (Path(__file__).parents[2] / "docs" / "credit.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (counting / "mine.py").write_text(example)
    here = counting.parent
    agentrl("rollout", "counting", "--n", "4", "--script", "hasty", "--out", "run", cwd=here)
    own = ["--estimator", "./mine.py:mine", "--set", "bonus=0.5", "--json"]
    for cwd, run in ((here, "run"), (counting, "../run")):
        found = json.loads(agentrl("credit", run, *own, cwd=cwd).stdout)
        assert (found["estimator"], found["settings"]) == ("mine", {"bonus": 0.5})
    with RunDir.read(here / "run") as reader:
        rewards = {row.id: row.reward or 0.0 for row in reader.rows()}
    for one in found["episodes"]:  # no call is malformed, so every turn has the bonus
        assert one["turn_advantages"][-1] == pytest.approx(rewards[one["episode_id"]] + 0.5)


def test_evaluations_come_last(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run") as run:
        for split in ("eval", "train", "rollout"):
            for iteration in (1, 0):
                run.add(make_episode(f"{split}/{iteration}", split=split, iteration=iteration, reward=1.0))
    ordered = [each.episode_id for each in credit(tmp_path / "run", "grpo").credits]
    assert ordered == ["rollout/0", "rollout/1", "train/0", "train/1", "eval/0", "eval/1"]


def test_evaluations_are_not_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunDir.create(tmp_path / "run") as run:
        for split, reward in (("eval", 1.0), ("eval", 0.0), ("train", 0.5)):
            run.add(make_episode(f"{split}/{reward}", split=split, reward=reward, turns=1))
    print_credit([credit(tmp_path / "run", "returns")], 10)
    shown = capsys.readouterr().out
    assert "train/0.5" in shown
    assert "eval/" not in shown
    assert "(2 episodes of evaluations, which are not trained on, are not listed; --json has them)" in shown


def test_groups_that_teach_nothing_are_counted(counting: Path) -> None:
    here = counting.parent
    roll = ["rollout", "counting", "--n", "8", "--script"]
    agentrl(*roll, "oracle", "--group-size", "4", "--out", "flat", cwd=here)
    agentrl(*roll, "hasty", "--out", "single", "--set", "credit=gigpo", cwd=here)
    flat, single, alone = (
        agentrl("credit", run, "--estimator", estimator, cwd=here).stdout
        for run, estimator in (("flat", "grpo"), ("single", "gigpo"), ("single", "nsr"))
    )
    assert "zero-variance groups: 2 of 2; equal rewards, so only credit of turns can differ" in flat
    assert "add(by=1)" in flat or "add()" in flat
    assert "one episode" not in flat
    assert "groups of one episode: 8 of 8;" in single
    assert "--group-size 4" in single
    assert "groups" not in alone, "it compares nothing"


def test_what_does_not_fit_is_explained(counting: Path) -> None:
    here = counting.parent
    agentrl("rollout", "counting", "--n", "4", "--script", "hasty", "--out", "run", cwd=here)
    for arguments, message in (
        (["--estimator", "gigo"], "did you mean 'gigpo'?"),
        (["--estimator", "gigpo", "--set", "gama=1"], "did you mean 'gamma'?"),
        (["--estimator", "gigpo", "--set", "gamma"], "write path.to.key=value"),
        (["--estimator", "igpo"], "the gold answer was not scored"),
        (["--rewards", "agian"], "has no rewards 'agian'"),
        (["--episode", "nobody"], "no credited episode has 'nobody'"),
    ):
        failed = agentrl("credit", "run", *arguments, cwd=here, ok=False)
        assert failed.returncode == 1
        assert message in failed.stderr
        assert "Traceback" not in failed.stderr


def test_stages_are_credited_apart(tmp_path: Path) -> None:
    stages = "stages=[{name: explore, rl: {credit: grpo}}, {name: learn, rl: {credit: rloo}}]"
    with begin_run(tmp_path / "run", load_recipe("quickstart", [stages, "warm_start=null"]), "train") as run:
        for stage, rewards in (("explore", (1.0, 0.0)), ("learn", (1.0, 0.5))):
            for number, reward in enumerate(rewards):
                id = f"{stage}/train/{number}"
                run.add(make_episode(id, group=f"{stage}/train", split="train", iteration=0, reward=reward))
    with pytest.raises(StoreError, match=r"several stages.*\n.*--stage explore\|learn"):
        credit(tmp_path / "run")
    with pytest.raises(StoreError, match=r"no stage 'learm'.*\n.*learn"):
        credit(tmp_path / "run", stage="learm")
    learned = credit(tmp_path / "run", stage="learn")
    assert learned.credit.estimator.name == "rloo"
    assert [one.episode_id for one in learned.credits] == ["learn/train/0", "learn/train/1"]
    every = credit(tmp_path / "run", "grpo")
    assert [(batch["stage"], batch["iteration"]) for batch in every.batches] == [("explore", 0), ("learn", 0)]
    shown = json.loads(agentrl("credit", "run", "--stage", "explore", "--json", cwd=tmp_path).stdout)
    assert (shown["estimator"], len(shown["episodes"])) == ("grpo", 2)


def test_estimators_stand_side_by_side(counting: Path) -> None:
    here = counting.parent
    agentrl("rollout", "counting", "--n", "8", "--group-size", "4", "--script", "hasty", "--out", "beside", cwd=here)
    table = agentrl("credit", "beside", "--estimator", "grpo,returns", "--limit", "2", cwd=here).stdout
    assert table.split()[:7] == ["episode", "reward", "turn", "role", "grpo", "returns", "did"]
    found = json.loads(agentrl("credit", "beside", "--estimator", "grpo,returns", "--json", cwd=here).stdout)
    assert [each["estimator"] for each in found] == ["grpo", "returns"]
    refused = agentrl("credit", "beside", "--estimator", "grpo,returns", "--save", cwd=here, ok=False).stderr
    assert "for one estimator" in refused


def test_several_estimators_stand_side_by_side_and_groups_with_signal_come_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunDir.create(tmp_path / "run") as run:
        for group, rewards in (("flat", (1.0, 1.0)), ("mixed", (0.5, 0.5, 0.0, 1.0))):
            for number, reward in enumerate(rewards):
                run.add(make_episode(f"train/{group}#{number}", group=group, turns=1, split="train", reward=reward))
    results = [credit(tmp_path / "run", name) for name in ("grpo", "dr_grpo")]
    print_credit(results, 10)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["episode", "reward", "turn", "role", "grpo", "dr_grpo", "did"]
    mixed = [f"train/mixed#{number}" for number in range(4)]
    assert [line.split()[0] for line in lines[1:7]] == [*mixed, "train/flat#0", "train/flat#1"], "whole groups"
    assert lines[3].split()[3:6] == ["agent", "-1.414", "-0.500"] or lines[3].split()[3:5] == ["agent", "-1.225"]
    assert "zero-variance groups: 1 of 2" in lines[-1]
    for wrong in ("grpo,", "grpo,grpo"):
        done = CliRunner().invoke(app, ["credit", str(tmp_path / "run"), "--estimator", wrong])
        assert done.exit_code == 2
        assert "different names with commas between" in done.output
