"""Group rewards from the recipe to the stored episodes: rollout, resume, training, evaluation, scoring again."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrl
from agentrl.store.check import check
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import AgentRLError
from tests.command import agentrl as command
from tests.command import python
from tests.sound import assert_sound

GROUP_CODE = '''
from pathlib import Path

def turns_taken(group):
    """1 for the shortest members; notes each call in a file."""
    with open(Path(__file__).with_name("calls"), "a") as calls:
        print(*[e.id for e in group], file=calls)
    least = min(len(e.turns) for e in group)
    return [float(len(e.turns) == least) for e in group]

def fragile(group):
    if Path(__file__).with_name("broken").exists():
        raise ValueError("broken")
    return turns_taken(group)
'''
TRAINING = """\
agent: {format: tags, max_turns: 4, describe_tools: false}
model: {scratch: {hidden: 16, layers: 1, heads: 1, vocab_size: 300, max_context: 128}}
sampling: {max_tokens: 6}
warm_start: {script: hasty, episodes: 8, steps: 4, batch: 8, lr: 3.0e-3}
train: {iterations: 3, groups: 2, group_size: 3, minibatch: 6, lr: 1.0e-3}
eval: {episodes: 4, every: 2}
"""


@pytest.fixture
def grouped(counting: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(counting.parent)
    (counting / "task.py").write_text((counting / "task.py").read_text() + GROUP_CODE)
    recipe = (counting / "recipe.yaml").read_text()
    recipe = recipe.replace("{exact: ./task.py:exact}", "{exact: ./task.py:exact, least: ./task.py:turns_taken}")
    (counting / "recipe.yaml").write_text(recipe)
    return counting


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def rollout(n: int = 12, **more):
    return agentrl.rollout("counting", n, group_size=3, script="hasty", out="run", reporters=(), **more)


def rewards_of(path: Path | str) -> dict[str, float | None]:
    with RunDir.read(path) as run:
        assert {row.id: row.reward for row in run.rows()} == {e.id: e.reward for e in run.episodes()}
        return {episode.id: episode.reward for episode in run.episodes()}


def test_a_rollout_scores_each_group_once_after_its_last_member(grouped: Path) -> None:
    rollout()
    assert len(calls(grouped)) == 4
    assert all(line.split() == sorted(line.split()) and len(line.split()) == 3 for line in calls(grouped))
    with RunDir.read("run") as run:
        for episode in run.episodes():
            assert not episode.pending
            assert episode.reward == episode.components["exact"] + episode.components["least"]
        assert len({run.group_scores(row.id).group_id for row in run.rows()}) == 4
        best = max(run.rows(), key=lambda row: row.reward)
        assert run.rows(min_reward=best.reward, order="reward", descending=True)[0].reward == best.reward
    assert_sound("run")
    rollout()  # nothing is missing: nothing is scored again
    assert len(calls(grouped)) == 4


def test_the_index_is_rebuilt_with_the_scores_of_groups(grouped: Path) -> None:
    rollout()
    before = rewards_of("run")
    for path in Path("run").glob("index.sqlite*"):
        path.unlink()
    assert rewards_of("run") == before
    with RunDir.open("run"):
        pass
    assert rewards_of("run") == before
    assert_sound("run")


KILLED = """
import os, signal, sys
import agentrl
from agentrl.store.check import check
from agentrl.store.run_dir import RunDir

real, left = getattr(RunDir, sys.argv[1]), int(sys.argv[2])

def deadly(self, *args):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, *args)

setattr(RunDir, sys.argv[1], deadly)
agentrl.rollout("counting", 12, group_size=3, script="hasty", out="run", reporters=())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("point", "after"), [("add_scores", 0), ("add_scores", 2), ("add", 4)])
def test_a_kill_between_members_and_their_group_is_filled_in(grouped: Path, point: str, after: int) -> None:
    done = python("-c", KILLED, point, str(after), ok=False)
    assert done.returncode == -9
    report = check("run")
    assert report.ok, report.as_text()
    if point == "add_scores":
        assert any("wait for the score of their group" in note for note in report.notes)
    stored = len(rewards_of("run"))
    rollout()
    assert len(rewards_of("run")) == 12 >= stored
    assert None not in rewards_of("run").values()
    assert_sound("run")
    whole = agentrl.rollout("counting", 12, group_size=3, script="hasty", out="whole", reporters=())
    assert rewards_of("run") == rewards_of(whole.path)


def test_a_group_that_cannot_be_scored_is_told_and_scored_by_the_same_command(grouped: Path) -> None:
    (grouped / "broken").touch()
    use = {"rewards.least.use": "./task.py:fragile"}
    rollout(overrides={**use, "limits.user_errors": 8})
    assert set(rewards_of("run").values()) == {None}
    with RunDir.read("run") as run:
        failures = run.failures()
    assert [(f["group"] is None, f["status"], f["final"]) for f in failures] == [(False, "user_error", True)] * 4
    assert "task.py" in failures[0]["place"]
    (grouped / "broken").unlink()
    rollout(overrides={**use, "limits.user_errors": 8})
    assert None not in rewards_of("run").values()


def test_too_many_groups_that_fail_stop_the_run(grouped: Path) -> None:
    (grouped / "broken").touch()
    with pytest.raises(AgentRLError, match=r"(?s)ValueError: broken.*limits.user_errors"):
        rollout(overrides={"rewards.least.use": "./task.py:fragile", "limits.user_errors": 1})


def test_failed_members_are_absent(grouped: Path) -> None:
    code = (grouped / "task.py").read_text()
    once = 'def exact(task, episode):\n    assert not (episode.id.endswith("#1") and task.id == "count0"), "fails"\n'
    (grouped / "task.py").write_text(code.replace("def exact(task, episode):\n", once))
    rollout()
    assert sorted(len(line.split()) for line in calls(grouped)) == [2, 3, 3, 3]
    (grouped / "task.py").write_text(code)
    rollout()  # the failed member runs again, and the group that it joins is scored again
    assert [len(line.split()) for line in calls(grouped)[4:]] == [3]
    assert sum(reward is None for reward in rewards_of("run").values()) == 1  # the episode that failed


@pytest.mark.slow
def test_a_stored_run_is_scored_again_by_group(grouped: Path) -> None:
    plain = {"rewards": {"exact": "./task.py:exact"}}
    agentrl.rollout("counting", 12, group_size=3, script="hasty", out="plain", reporters=(), overrides=plain)
    from agentrl.api.rescore import rescore

    result = rescore("plain", "counting")
    assert result["scored"] == 12
    assert not result["failed"]
    whole = rollout()
    with RunDir.read(whole.path) as run:
        expected = [e.components["least"] for e in run.episodes()]
    assert result["components"]["least"]["new"] == pytest.approx(sum(expected) / 12)
    lines = (Path("plain") / "rewards" / "again.jsonl").read_text().splitlines(keepends=True)
    (Path("plain") / "rewards" / "again.jsonl").write_text("".join(lines[:-2]))  # killed within the last group
    assert rescore("plain", "counting") == result
    assert len((Path("plain") / "rewards" / "again.jsonl").read_text().splitlines()) == 13
    assert command("rescore", "run", "--recipe", "counting", "--name", "same", cwd=grouped.parent).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 2])
def test_training_and_evaluation_credit_the_scored_groups(grouped: Path, staleness: int) -> None:
    (grouped / "recipe.yaml").write_text((grouped / "recipe.yaml").read_text() + TRAINING)
    more = {"train.max_staleness": staleness} | ({"train.importance": {"high": 2}} if staleness else {})
    agentrl.train("counting", out="run", overrides=more, reporters=())
    with RunDir.read("run") as run:
        trained = list(run.episodes(split="train"))
        assert len(trained) == 18
        assert all(e.reward == e.components["exact"] + e.components["least"] for e in trained)
        assert all(run.credit(e.id) is not None for e in trained)
        evaluated = list(run.episodes(split="eval"))
        assert evaluated
        assert not any(e.pending for e in evaluated)
        lines = [line for line in run.metrics() if line["split"] == "train"]
    first = [e for e in trained if e.group_id in lines[0]["trained_groups"]]
    assert lines[0]["reward"] == pytest.approx(sum(e.reward for e in first) / len(first))
    assert_sound("run")


@pytest.mark.slow
def test_workers_play_and_the_driver_scores_the_groups(grouped: Path) -> None:
    alone = rewards_of(rollout().path)
    more = {"scale": {"use": "process", "rollout_workers": 2}}
    run = agentrl.rollout("counting", 12, group_size=3, script="hasty", out="workers", reporters=(), overrides=more)
    assert rewards_of(run.path) == alone
