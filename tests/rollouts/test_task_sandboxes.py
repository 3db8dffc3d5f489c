"""Sandboxes of a task's own: what a task may change, and which ones are made for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from agentrl.config.tasks import TaskSettings
from agentrl.curriculum.task_source import load_tasks
from agentrl.engines.scripted import Say
from agentrl.rollouts.rescorer import Rescorer
from agentrl.rollouts.runner import LocalRunner, check_expected
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.sandbox.pool import Pool
from agentrl.sandbox.task_specs import TaskSpecs
from agentrl.store.run_dir import RunDir
from agentrl.tools.base import Tool, tool
from agentrl.types.errors import TaskError
from agentrl.types.sandbox import Backend, SandboxSpec
from agentrl.types.task import Task
from tests.command import agentrl
from tests.rollouts.world import collect, make_context, make_parts
from tests.store.make import make_episode

HERE = __name__
SPEC = SandboxSpec(memory_mb=64, env={"A": "1", "B": "2"}, files={"a": "x"}, setup=("one",))


def test_a_task_changes_some_keys() -> None:
    specs = TaskSpecs(SPEC)
    changes: dict[str, Any] = {"env": {"B": "3"}, "files": {"b": "y"}, "setup": ["two"], "image": "agentrl/swe"}
    merged = specs.of(Task.of("t", "", sandbox=changes))
    assert merged == SandboxSpec(
        memory_mb=64, env={"A": "1", "B": "3"}, files={"a": "x", "b": "y"}, setup=("two",), image="agentrl/swe"
    )
    assert specs.of(Task.of("u", "", sandbox=changes)) is merged
    assert specs.of(Task.of("v", "")) is SPEC


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"imgae": "x"}, r"task 't7': sandbox has no key 'imgae'\n.*'image'"),
        ({"memory_mb": 1}, r"task 't7': sandbox.memory_mb: .*32.* found 1"),
        ({"files": ["a"]}, r"task 't7': sandbox.files"),
    ],
)
def test_changes_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        TaskSpecs(SPEC).of(Task.of("t7", "", sandbox=changes))


class Inside(Tool):
    """Needs a sandbox."""

    needs_sandbox = True

    @tool
    async def inside(self) -> str:
        """Look."""
        return "in"


class Outside(Tool):
    """Needs none."""

    @tool
    async def outside(self) -> str:
        """Look."""
        return "out"


async def test_a_pool_is_told_the_spec_of_each_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = make_parts(tmp_path, tools=[f"{HERE}:Inside", f"{HERE}:Outside"], sandbox={"spec": {"memory_mb": 64}})
    told: list[SandboxSpec] = []
    pool = Pool.__new__(Pool)
    monkeypatch.setattr(Pool, "prefetch", lambda self, schedule: told.extend(schedule))
    context = make_context(parts, quiet, backend=pool)
    tasks = [
        Task.of("a", ""),
        Task.of("b", "", sandbox={"image": "agentrl/swe"}),
        Task.of("c", "", tools=["outside"]),
        Task.of("d", "", tools=["inside"], sandbox={"image": "agentrl/swe"}),
    ]
    LocalRunner(context).expect([EpisodeSpec(task.id, task.id, task) for task in tasks])
    assert [spec.image for spec in told] == [None, "agentrl/swe", "agentrl/swe"]
    assert told[1] is told[2]
    with pytest.raises(TaskError, match="task 'e': there is no tool 'upside'"):
        check_expected(context, [EpisodeSpec("e", "e", Task.of("e", "", tools=["upside"]))])
    with pytest.raises(TaskError, match="task 'f': sandbox has no key"):
        check_expected(context, [EpisodeSpec("f", "f", Task.of("f", "", sandbox={"x": 1}))])


def quiet(task: Task, rng: Any) -> Any:
    yield Say("a")


class Notes:
    """A backend that notes the specs, and makes nothing."""

    name = "notes"

    def __init__(self) -> None:
        self.specs: list[SandboxSpec] = []

    async def create(self, spec: SandboxSpec, *, label: str = "") -> Any:
        self.specs.append(spec)
        return self

    async def close(self) -> None:
        """Nothing to free."""


async def looks(task: Task, sandbox: Any, fresh_sandbox: Any) -> float:
    return 1.0


async def test_an_episode_and_its_rewards_have_the_sandbox_of_the_task(tmp_path: Path) -> None:
    rewards = {"looks": {"use": f"{HERE}:looks"}}
    parts = make_parts(tmp_path, tools=[f"{HERE}:Inside"], sandbox={"spec": {"memory_mb": 64}}, rewards=rewards)
    backend = Notes()
    context = make_context(parts, quiet, backend=backend)
    tasks = [Task.of("a", ""), Task.of("b", "", sandbox={"env": {"X": "1"}})]
    episodes = await collect(context, [EpisodeSpec(task.id, task.id, task) for task in tasks])
    assert [episode.reward for episode in episodes] == [1.0, 1.0]
    assert [(spec.memory_mb, spec.env) for spec in backend.specs] == [(64, {})] * 2 + [(64, {"X": "1"})] * 2


async def fresh_looks(task: Task, fresh_sandbox: Any) -> float:
    return 1.0


async def test_a_reward_given_again_has_the_sandbox_of_the_task(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, rewards={"looks": {"use": f"{HERE}:fresh_looks"}})
    episode = msgspec.structs.replace(make_episode("e"), task=Task.of("b", "", sandbox={"env": {"X": "1"}}))
    backend, specs = Notes(), TaskSpecs(SPEC)
    rescorer = Rescorer(parts.rewards, lambda id: episode, parts.recipe.limits, (), cast(Backend, backend), specs)
    assert (await rescorer.play("e"))[0].reward == 1.0
    assert [spec.env for spec in backend.specs] == [{"A": "1", "B": "2", "X": "1"}]


def test_fields_of_a_file(tmp_path: Path) -> None:
    rows = [
        {"q": "Where?", "fns": ["left", {"name": "f"}], "box": {"image": "x"}, "tools": "data"},
        {"q": "Who?", "fns": None, "box": None},
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = TaskSettings.model_validate({"jsonl": "t.jsonl", "prompt": "{q}", "tools": "fns", "sandbox": "box"})
    first, second = load_tasks(settings, tmp_path, 0).tasks
    defined = {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}
    assert first.tools == ["left", {"type": "function", "function": defined}]
    assert (first.sandbox, first.data["tools"]) == ({"image": "x"}, "data")
    assert (second.tools, second.sandbox) == (None, None)
    (tmp_path / "t.jsonl").write_text(json.dumps({"q": "?", "fns": "left", "box": {}}))
    with pytest.raises(TaskError, match=r"tools is 'left'"):
        load_tasks(settings, tmp_path, 0)


@pytest.mark.parametrize(
    "given",
    [
        {"tools": "left"},
        {"tools": [1]},
        {"tools": [{"name": "f", "parameters": {"enum": {1, 2}}}]},
        {"sandbox": ["x"]},
        {"sandbox": {"files": {1: 2}}},
        {"gold": {1, 2}},
    ],
)
def test_what_a_task_cannot_hold(given: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match="task 't7'"):
        Task.of("t7", "", **given)


TASKS = """
from agentrl import Task

def tasks(tools=None, sandbox=None):
    yield Task.of("fine", "Go.")
    yield Task.of("t7", "Go.", tools=tools, sandbox=sandbox)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("tools", "named"), [("[answer]", "null"), ("[answer, shell]", "[answer]")])
def test_a_sandbox_that_no_tool_has_is_refused(tmp_path: Path, tools: str, named: str) -> None:
    (tmp_path / "task.py").write_text(TASKS)
    (tmp_path / "recipe.yaml").write_text(f"name: x\ntasks: ./task.py:tasks\ntools: {tools}\n")
    override = f"tasks.args={{tools: {named}, sandbox: {{memory_mb: 64}}}}"
    done = agentrl("recipe", "check", ".", "--set", override, cwd=tmp_path, ok=False)
    assert "task 't7': it changes the sandbox, and its episodes have none" in done.stderr


@pytest.mark.slow
def test_a_program_in_the_sandbox_has_that_of_the_task(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASKS)
    agent = "agent: {program: [python3, -c, pass], where: sandbox}"
    (tmp_path / "recipe.yaml").write_text(f"name: x\ntasks: ./task.py:tasks\n{agent}\n")
    agentrl("recipe", "check", ".", "--set", "tasks.args={sandbox: {env: {A: b}}}", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tasks.args={tools: [shel]}", "task 't7': there is no tool 'shel'"),
        ("tasks.args={sandbox: {imag: x}}", "task 't7': sandbox has no key 'imag'"),
        ("tasks.args={sandbox: {image: agentrl/nowhere}}", "task 't7'"),
        ("tasks.args={sandbox: {image: 'debian:12'}}", "task 't7', sandbox.spec.image"),
    ],
)
def test_recipe_check_names_the_task(tmp_path: Path, override: str, message: str) -> None:
    (tmp_path / "task.py").write_text(TASKS)
    (tmp_path / "recipe.yaml").write_text("name: x\ntasks: ./task.py:tasks\ntools: [shell]\n")
    done = agentrl("recipe", "check", ".", "--set", override, cwd=tmp_path, ok=False)
    assert done.returncode == 1
    assert message in done.stderr


@pytest.mark.slow
def test_a_task_whose_image_is_not_there_fails_at_once(tmp_path: Path) -> None:
    """Not after `limits.sandbox_s`, which is longer than this test may take."""
    script = "\ndef quiet(task, rng):\n    yield Say('a')\n"
    (tmp_path / "task.py").write_text(TASKS.replace("import Task", "import Say, Task") + script)
    recipe = "name: x\ntasks: ./task.py:tasks\ntools: [shell]\nlimits: {sandbox_s: 3600}\n"
    (tmp_path / "recipe.yaml").write_text(f"{recipe}scripts: {{quiet: ./task.py:quiet}}\n")
    wrong = ("--set", "tasks.args={sandbox: {image: agentrl/nowhere}}")
    agentrl("rollout", ".", "--n", "2", "--script", "quiet", "--out", "run", *wrong, cwd=tmp_path, ok=False)
    with RunDir.read(tmp_path / "run") as run:
        fine, failed = sorted(run.episodes(), key=lambda episode: episode.task.id)
    assert (fine.status, failed.status, failed.attempt) == ("done", "infra_error", 0)
    assert failed.error is not None
    assert failed.error.message.startswith("task 't7': there is no sandbox image 'agentrl/nowhere'")
