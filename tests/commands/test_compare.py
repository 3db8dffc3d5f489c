"""`agentrl diff` and `agentrl plot`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agentrl.cli import app
from agentrl.commands import compare as _  # noqa: F401  (binds the picture that conftest.py leaves out)
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import StoreError
from agentrl.view.compare import compare
from tests.command import agentrl
from tests.store.make import make_episode


def command(*words: object) -> Result:
    """Runs a command in this process. Errors that it raises on purpose are raised here."""
    done = CliRunner().invoke(app, [str(word) for word in words], terminal_width=160)
    if isinstance(done.exception, StoreError):
        raise done.exception
    return done


def shown(*words: object) -> str:
    done = command(*words)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[RunDir, RunDir]]:
    """Runs A and B, which have two of three tasks in common."""
    infos = [{"command": "train", "recipe": {"name": "house", "train": {"lr": lr}}} for lr in (1e-4, 1e-5)]
    with RunDir.create(tmp_path / "a", infos[0]) as a, RunDir.create(tmp_path / "b", infos[1]) as b:
        for run, rewards in ((a, {"t1": 0.0, "t2": 1.0, "t3": 1.0}), (b, {"t1": 1.0, "t2": 0.5, "t4": 1.0})):
            for task, reward in rewards.items():
                run.add(make_episode(f"train/0/{task}", group=task, turns=2, reward=reward, split="train"))
                run.add_metrics({"split": "train", "iteration": len(run.metrics()), "success": reward, "odd": 7.0})
        yield a, b


def test_two_runs_are_compared(two: tuple[RunDir, RunDir]) -> None:
    found = compare(*two)
    differing = {each.key: (each.a, each.b) for each in found.settings}
    assert differing.pop("train.lr") == (1e-4, 1e-5)
    assert not differing, "the same code and versions"
    assert found.split == "train"
    assert [(pair.task, pair.a, pair.b) for pair in found.tasks] == [("task-t1", 0.0, 1.0), ("task-t2", 1.0, 0.5)]
    assert (found.won, found.lost, found.tied) == (1, 1, 0)
    assert found.metrics["success"] == (1.0, 1.0)
    assert found.counts["train/reward"] == (pytest.approx(2 / 3), pytest.approx(2.5 / 3))


def test_of_evaluations_the_last_one_counts_and_they_come_first(two: tuple[RunDir, RunDir]) -> None:
    for run, last in zip(two, (0.0, 1.0), strict=True):
        for iteration, reward in ((0, 1.0), (4, last)):
            run.add(make_episode(f"eval/{iteration}/t", group="t", split="eval", iteration=iteration, reward=reward))
    found = compare(*two)
    assert found.split == "eval"
    assert [(pair.a, pair.b, pair.episodes_a) for pair in found.tasks] == [(0.0, 1.0, 1)]
    assert compare(*two, split="train").split == "train"
    with pytest.raises(StoreError, match=r"no scored episode of the split 'evil'.*\n.*'eval'"):
        compare(*two, split="evil")


def test_a_comparison_is_shown(two: tuple[RunDir, RunDir]) -> None:
    text = shown("diff", two[0].path, two[1].path, "--limit", "1")
    assert "train.lr" in text
    assert "train: 2 tasks in both; B is better in 1, worse in 1, equal in 0" in text
    assert "task-t1" in text
    assert "task-t2" not in text
    assert "(1 of 2 tasks; --limit shows more, --json all)" in text
    assert "(1 more metrics; --json shows all)" in text
    assert "the same configuration, code and versions" in shown("diff", two[0].path, two[0].path)


def test_empty_runs_are_compared_and_have_nothing_to_plot(tmp_path: Path) -> None:
    RunDir.create(tmp_path / "empty").close()
    assert "no task is scored in both runs" in shown("diff", tmp_path / "empty", tmp_path / "empty")
    with pytest.raises(StoreError, match="the run has no metrics"):
        command("plot", tmp_path / "empty")
    with pytest.raises(StoreError, match="neither a success nor a reward"):
        command("plot", tmp_path / "empty", "--out", tmp_path / "curve.png")


def test_metrics_are_plotted(two: tuple[RunDir, RunDir]) -> None:
    text = shown("plot", two[1].path)
    assert "success  1.000 -> 1.000" in text
    assert "(1 more metrics; --metric NAME plots one: odd)" in text
    assert "odd  7.000 -> 7.000" in shown("plot", two[1].path, "--metric", "odd")
    with pytest.raises(StoreError, match=r"no metric 'sucess'\n.*did you mean 'success'"):
        command("plot", two[1].path, "--metric", "sucess")


def test_the_learning_curve_is_a_picture(two: tuple[RunDir, RunDir], tmp_path: Path) -> None:
    assert shown("plot", two[1].path, "--out", tmp_path / "new" / "curve.png").strip() == f"{tmp_path}/new/curve.png"
    assert (tmp_path / "new" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert command("plot", two[1].path, "--out", "curve.txt").exit_code == 2


def test_chosen_metrics_are_a_picture(two: tuple[RunDir, RunDir], tmp_path: Path) -> None:
    words = ("--metric", "odd", "--metric", "success", "--out", tmp_path / "new" / "two.svg")
    assert shown("plot", two[1].path, *words).strip() == f"{tmp_path}/new/two.svg"
    drawn = (tmp_path / "new" / "two.svg").read_text()
    assert drawn.index("<!-- odd -->") < drawn.index("<!-- success -->"), "a panel each, in the order of the options"
    with pytest.raises(StoreError, match="no metric 'sucess'"):
        command("plot", two[1].path, "--metric", "sucess", "--out", tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_the_plot_opens_with_success(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run") as run:
        run.add_metrics({"split": "train", "iteration": 1, "turns": 2.0, "kl_old": 0.1, "reward": 0.5, "success": 0.4})
    found = json.loads(shown("plot", tmp_path / "run", "--json"))
    assert [*found["curves"]] == ["success", "reward", "turns", "kl_old"]


@pytest.mark.parametrize("words", [["diff", "RUN", "RUN"], ["plot", "RUN"], ["show", "RUN"], ["credit", "RUN"]])
def test_what_is_no_run_of_this_version_is_refused(words: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [str(run) if word == "RUN" else word for word in words]
    with pytest.raises(StoreError, match="there is no such folder"):
        command(*words)
    run.mkdir()
    with pytest.raises(StoreError, match="not a run directory"):
        command(*words)
    (run / "run.json").write_text(json.dumps({"format": 99, "versions": {"agentrl": "9.0"}}))
    with pytest.raises(StoreError, match=r"the run has format 99.*\n.*agentrl 9\.0"):
        command(*words)
    assert [path.name for path in run.iterdir()] == ["run.json"], "nothing is written"


def test_a_torn_shard_is_left_as_it_is(two: tuple[RunDir, RunDir]) -> None:
    for run in two:
        run.close()
    (shard,) = (two[0].path / "episodes").iterdir()
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-5])
    (two[0].path / "index.sqlite").unlink()
    text = shown("diff", two[0].path, two[1].path)
    assert "train: 2 tasks in both" in text
    assert ["train/episodes", "2", "3", "+1"] in [line.split() for line in text.splitlines()], "one was torn"
    assert shard.read_bytes() == whole[:-5]
    assert "success" in shown("plot", two[0].path)


@pytest.mark.slow
def test_two_rollouts_are_compared_from_the_shell(counting: Path) -> None:
    here = counting.parent
    for name, script in (("a", "hasty"), ("b", "oracle")):
        agentrl("rollout", "counting", "--n", "6", "--script", script, "--out", name, cwd=here)
    found = json.loads(agentrl("diff", "a", "b", "--json", cwd=here).stdout)
    assert [each["key"] for each in found["settings"]] == ["script"]
    assert (found["split"], found["won"] + found["lost"] + found["tied"]) == ("rollout", 6)
    assert found["counts"]["episodes"] == [6, 6]
    failed = agentrl("plot", "a", "--json", cwd=here, ok=False)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "the run has no metrics" in failed.stderr
