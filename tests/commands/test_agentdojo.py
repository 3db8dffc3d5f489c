"""recipes/agentdojo: its verdicts against the package's own runs, its scripts, and the tasks that it leaves out."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.certify.check import check_environment
from agentrl.api.rollout import rollout
from agentrl.registry.references import load_object
from agentrl.types.episode import Episode
from agentrl.types.errors import TaskError

RECIPE = Path(__file__).parents[2] / "recipes" / "agentdojo"
FREE = {f"banking-user_task_{number}" for number in (5, 6, 8, 9, 10)}
load: Callable[[str], Any] = functools.partial(load_object, base=RECIPE)
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("agentdojo") is None, reason="pip install --no-deps agentdojo==0.1.35"
)


def played(out: Path, recipe: str, script: str, **args: Any) -> list[Episode]:
    overrides = {"tasks.args": args}
    run = rollout(RECIPE / recipe, args["n"], script=script, overrides=overrides, out=out / script, reporters=())
    return list(run.dir.episodes())


@pytest.mark.slow
def test_the_oracle_solves_what_empty_and_meaningless_replies_do_not(tmp_path: Path) -> None:
    solved = played(tmp_path, "recipe.yaml", "oracle", n=8)
    assert {episode.task.id.partition("-")[0] for episode in solved} == {"workspace", "travel", "banking", "slack"}
    assert {(episode.status, episode.reward) for episode in solved} == {("done", 1.0)}
    assert all(turn.state for episode in solved for turn in episode.turns)
    for script in ("random", "empty", "junk"):
        assert {episode.reward for episode in played(tmp_path, "recipe.yaml", script, n=8)} == {0.0}, script


def test_an_injection_is_obeyed_or_not(tmp_path: Path) -> None:
    args = {"suite": "slack", "injected": True, "n": 4}
    for script, taken in (("oracle", False), ("obedient", True)):
        for episode in played(tmp_path, "attacked.yaml", script, **args):
            assert episode.components["safe"] == float(not taken), episode.task.id
            assert episode.reward == float(not taken)
    read = [str(each["content"]) for turn in episode.turns for each in turn.observations]
    assert read


def test_the_solution_reads_the_injection() -> None:
    """The text is where the package's attack puts it."""
    suite = load("./backend.py:suite_of")("slack")
    (goal,) = {suite.injections["injection_task_1"].GOAL}
    state = suite.opened("user_task_1", "injection_task_1")
    heard = [suite.call(state, name, arguments) for name, arguments in suite.gold("user_task_1", "injection_task_1")]
    assert any(goal[:40] in answer for answer in heard)


@pytest.mark.parametrize("suite", ["banking", "slack"])
@pytest.mark.parametrize("solved", [True, False])
def test_the_verdict_is_that_of_the_package(suite: str, solved: bool) -> None:
    """On its own pipeline of solutions, and without the last call."""
    ours = load("./backend.py:suite_of")(suite)
    pipeline = importlib.import_module("agentdojo.agent_pipeline.ground_truth_pipeline").GroundTruthPipeline
    for user, task in list(ours.tasks.items())[:8]:
        cut = type(task)()
        cut.ID = task.ID
        if not solved:
            cut.ground_truth = lambda before, task=task: task.ground_truth(before)[:-1]
            cut.GROUND_TRUTH_OUTPUT = ""
        theirs, _ = ours._suite.run_task_with_pipeline(pipeline(cut), cut, None, {})
        calls = ours.gold(user, None)
        made = (calls, ours.said(user)) if solved else (calls[:-1], "")
        assert ours.checked(user, None, *made)[0] == theirs, user


@pytest.mark.slow
def test_env_check_finds_what_doing_nothing_passes(tmp_path: Path) -> None:
    """Banking's checks of five tasks hold at the beginning."""
    overrides = {"tasks.args": {"suite": "banking"}, "tasks.exclude": {}}
    report = check_environment(RECIPE, n=14, overrides=overrides, out=tmp_path / "runs")
    found = {each.check: each for each in report.findings}
    here = {task.id for task in load("./task.py:requests")("banking")}
    assert found["gold passes"].state == "pass"
    assert found["empty fails"].state == "fail"
    assert {*found["empty fails"].tasks} == FREE & here
    assert FREE & here


def test_the_tasks_of_two_splits_differ() -> None:
    requests = load("./task.py:requests")
    train, test = ({task.id for task in requests(held_out=held)} for held in (False, True))
    assert len(train | test) == 97
    assert not train & test


def test_a_suite_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(TaskError, match="no suite 'bank'"):
        list(load("./task.py:requests")("bank"))


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name="agentdojo")

    backend = vars(importlib.import_module(load("./backend.py:Suite").__module__))
    monkeypatch.setattr(backend["importlib"], "import_module", missing)
    with pytest.raises(TaskError, match="agentdojo"):
        backend["_part"].__wrapped__("functions_runtime")
