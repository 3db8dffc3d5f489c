"""Harbor tasks with a faulty folder, sandbox or verifier. No sandbox is started."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.integrations.harbor import build, no_installs
from agentrl.integrations.harbor.config import EnvironmentTable, read_task_toml
from agentrl.integrations.harbor.dockerfile import last_workdir, plan_of
from agentrl.integrations.harbor.no_installs import command_of
from agentrl.integrations.harbor.prepare import folder_of, prepare
from agentrl.integrations.harbor.programs import called_in
from agentrl.integrations.harbor.steps import steps_of
from agentrl.integrations.harbor.tasks import as_is_plan, digest, plan_for, tasks
from agentrl.integrations.harbor.tool import Harbor
from agentrl.integrations.harbor.verifier import Missing, StepScore, harbor, verify_step
from agentrl.rewards.grading import Unverified
from agentrl.types.errors import TaskError
from agentrl.types.sandbox import Sandbox, SandboxLost, SandboxStartFailed
from agentrl.types.task import Task
from tests.integrations.scripted import Answer, ScriptedSandbox, failed, said

COLLECT = '[verifier]\nenvironment_mode = "separate"\n[[verifier.collect]]\ncommand = "dump db"\n'
STEPS = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
VERDICT = {"/logs/verifier/reward.txt": b"1"}


def a_folder(folder: Path, toml: str = "", **files: str) -> Path:
    content = {"task.toml": toml, "instruction.md": "Do it.", "tests/test.sh": "true\n", **files}
    for name, text in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def a_task(folder: Path) -> Task:
    return Task.of("job", "Do it.", harbor={"folder": str(folder)})


async def scored(folder: Path, box: ScriptedSandbox, *fresh: ScriptedSandbox, **settings: Any) -> tuple[float, str]:
    left = list(fresh)

    async def opened(**changed: Any) -> Sandbox:
        return left.pop(0)  # type: ignore[return-value]

    found: Any = await harbor(a_task(folder), box, opened, **settings)  # type: ignore[arg-type]
    return found.value, found.note


# --- the reward -------------------------------------------------------------------------------------------------------


async def test_the_reward_file_of_the_verifier_is_the_reward(tmp_path: Path) -> None:
    value, note = await scored(a_folder(tmp_path), ScriptedSandbox(files=dict(VERDICT)))
    assert (value, note) == (1.0, "test.sh: ok, code 0: ")


async def test_a_collect_hook_runs_before_the_artifacts_are_copied_and_may_fail(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, COLLECT)
    broken = ScriptedSandbox({"dump db": failed(3, "no such table")})
    assert await scored(folder, broken) == (0.0, "collect hook 'dump db': nonzero: no such table")
    assert broken.ran == ["sh -c dump db"], "nothing else is run"
    judge = ScriptedSandbox(files=dict(VERDICT))
    assert (await scored(folder, ScriptedSandbox(), judge))[0] == 1.0
    assert "bash /tests/test.sh" in judge.ran


async def test_programs_that_cannot_be_ended_are_no_reward(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    hanging = ScriptedSandbox(processes=3, files=dict(VERDICT))
    assert await scored(folder, hanging) == (0.0, "the agent's programs could not be ended")
    assert (await scored(folder, hanging, end_programs=False))[0] == 1.0


async def test_an_artifact_that_cannot_be_copied_is_no_reward_but_a_lost_sandbox_is_an_error(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, 'artifacts = ["out/made.txt"]\n[verifier]\nenvironment_mode = "separate"\n')
    there: dict[str, Answer] = {"/app/out/made.txt": said("file\n")}
    judge = ScriptedSandbox(files=dict(VERDICT))
    assert (await scored(folder, ScriptedSandbox(there), judge))[0] == 1.0
    assert judge.placed["/app/out"] == ["made.txt"]
    full = ScriptedSandbox(there, broken=OSError("too large"))
    value, note = await scored(folder, full, ScriptedSandbox(files=dict(VERDICT)))
    assert (value, note) == (0.0, "the artifact out/made.txt cannot be copied: too large")
    with pytest.raises(SandboxLost, match="gone"):
        await scored(folder, ScriptedSandbox(there, broken=SandboxLost("gone")), ScriptedSandbox())


async def test_folders_that_cannot_be_cleared_are_no_reward(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    for answers in ({"ls -A": said("planted\n")}, {"chmod -R": failed(1, "planted is busy")}):
        value, note = await scored(folder, ScriptedSandbox(dict(answers), files=dict(VERDICT)))
        assert value == 0.0
        assert "/tests /logs/verifier could not be cleared: planted" in note


async def test_a_sandbox_that_is_lost_while_the_reward_is_read_is_an_error(tmp_path: Path) -> None:
    class Lost(ScriptedSandbox):
        async def read(self, path: str, **settings: Any) -> bytes:
            raise SandboxLost("gone")

    with pytest.raises(SandboxLost):
        await scored(a_folder(tmp_path), Lost())


async def test_a_step_counts_0_if_it_cannot_be_verified(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, STEPS, **{f"steps/{name}/instruction.md": name for name in ("one", "two")})
    (step, _) = steps_of(folder, read_task_toml(folder))
    settings = {"key": "reward", "guard": False, "offline": False}
    hanging: Any = ScriptedSandbox(processes=2)
    assert await verify_step(step, hanging, **settings) == StepScore(0.0, "the agent's programs could not be ended")
    lacking: Any = ScriptedSandbox({"bash /tests": failed(127, "test.sh: line 1: jq: command not found")})
    found = await verify_step(step, lacking, **settings)
    assert (found.value, found.others) == (0.0, {})
    assert "jq: command not found" in found.note
    assert found.missing is not None
    assert (found.missing.code, found.missing.program) == (127, "jq")


# --- the tool ---------------------------------------------------------------------------------------------------------


async def stepped(tmp_path: Path, box: ScriptedSandbox) -> Harbor:
    folder = a_folder(tmp_path, STEPS, **{f"steps/{name}/instruction.md": name for name in ("one", "two")})
    leader = Harbor()
    await leader.open(a_task(folder), box)  # type: ignore[arg-type]
    return leader


async def test_an_agent_cannot_void_a_step_by_its_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unverified(*given: Any) -> None:
        raise Unverified("the verifier raised OSError")

    leader = await stepped(tmp_path, ScriptedSandbox())
    monkeypatch.setattr("agentrl.integrations.harbor.tool.graded", unverified)
    following: Any = await leader.respond(None)  # type: ignore[arg-type]
    assert following.text == "two"
    assert (leader.scores, leader.notes) == ([0.0], ["one: 0 (the verifier raised OSError)"])


async def test_a_forked_episode_continues_with_the_scores_so_far(tmp_path: Path) -> None:
    leader = await stepped(tmp_path, ScriptedSandbox(files=dict(VERDICT)))
    await leader.respond(None)  # type: ignore[arg-type]
    state = await leader.save()
    assert state == {"scores": [1.0], "notes": ["one: 1"], "missing": {}, "failed": False}
    state["missing"] = {"one": {"code": 127, "program": "jq", "said": "test.sh"}}
    fork = await stepped(tmp_path, ScriptedSandbox())
    await fork.restore(state)
    assert (fork.scores, fork.notes, fork.failed) == ([1.0], ["one: 1"], False)
    assert fork.missing == {"one": Missing(127, "jq", "test.sh")}
    assert fork.scores is not state["scores"], "the fork adds to a list of its own"
    await fork.restore({"scores": [], "notes": [], "missing": {}, "failed": True})
    assert await fork.respond(None) is None, "no step follows one that failed"  # type: ignore[arg-type]


async def test_a_task_of_one_step_has_no_state_to_restore(tmp_path: Path) -> None:
    leader = Harbor()
    await leader.open(a_task(a_folder(tmp_path)), ScriptedSandbox())  # type: ignore[arg-type]
    assert await leader.save() is None
    await leader.restore(None)
    assert leader.scores == []


# --- the preparation --------------------------------------------------------------------------------------------------


def test_a_task_of_another_source_names_the_source_that_it_needs() -> None:
    with pytest.raises(TaskError, match="no Harbor task") as refused:
        folder_of(Task.of("other", "x"))
    assert "source: harbor" in (refused.value.remedy or "")


def test_a_folder_that_was_removed_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=f"its folder {tmp_path} is gone"):
        folder_of(a_task(tmp_path))


async def test_an_environment_without_a_dockerfile_is_copied_into_the_workdir(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, **{"environment/data.csv": "1", "environment/more/b": ""})
    box = ScriptedSandbox()
    await prepare(a_task(folder), box)  # type: ignore[arg-type]
    assert box.placed == {"/app": ["data.csv", "more"]}


@pytest.mark.parametrize(
    ("dockerfile", "box", "message"),
    [
        ("COPY data.csv /app/", {"broken": OSError("no space")}, "no space"),
        ("RUN make it", {"answers": {"make it": failed(2, "no rule")}}, "RUN make it ended with nonzero, code 2: no"),
    ],
)
async def test_a_step_of_the_dockerfile_that_fails_is_a_start_that_failed(
    tmp_path: Path, dockerfile: str, box: dict[str, Any], message: str
) -> None:
    lines = f"FROM x\nWORKDIR /app\n{dockerfile}\n"
    folder = a_folder(tmp_path, **{"environment/data.csv": "1", "environment/Dockerfile": lines})
    with pytest.raises(SandboxStartFailed, match=message) as refused:
        await prepare(a_task(folder), ScriptedSandbox(**box))  # type: ignore[arg-type]
    assert refused.value.place == str(folder / "environment" / "Dockerfile")


def test_a_task_without_a_dockerfile_has_an_empty_plan(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    for plan in (plan_for(folder), as_is_plan(folder)):
        assert (plan.image, plan.steps, plan.workdir) == ("", [], "")


# --- the files of a task ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "megabytes"),
    [("2G", 2048), (" 512m", 512), ("1T", 1 << 20), ("2048K", 2), ("1.5GB", 1536), ("1048576", 1), ("", None)],
)
def test_the_older_form_of_memory_has_a_unit(memory: str, megabytes: int | None) -> None:
    assert EnvironmentTable(memory=memory).memory_in_mb == megabytes
    assert EnvironmentTable(memory=memory, memory_mb=7).memory_in_mb == 7


@pytest.mark.parametrize("name", [".", ".."])
def test_a_step_cannot_have_the_name_of_the_folder_itself(tmp_path: Path, name: str) -> None:
    folder = a_folder(tmp_path, f'[[steps]]\nname = "{name}"\n')
    with pytest.raises(TaskError, match=r"steps\.0\.name: .*no name of a folder"):
        read_task_toml(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("FETCH x", "unknown instruction FETCH"),
        ("ADD https://a.example/x /app/x", "copies what is no file of the folder"),
        ("COPY only", "copies what is no file of the folder"),
    ],
)
def test_a_dockerfile_that_cannot_be_replayed_is_refused_by_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(f"FROM x\n{line}\n")
    with pytest.raises(TaskError, match=message) as refused:
        plan_of(path)
    assert refused.value.place == f"{path}:2"
    assert "leave the task out" in (refused.value.remedy or "")


def test_variables_of_the_older_form_are_set(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text("FROM x\nENV PLACE /srv/my data\nWORKDIR /opt/$PLACE\n")
    assert plan_of(path).env == {"PLACE": "/srv/my data"}
    assert last_workdir("FROM x\nENV HOME_OF_IT /srv\nWORKDIR $HOME_OF_IT/in\n") == "/srv/in"


def test_a_quote_behind_a_backslash_opens_nothing(tmp_path: Path) -> None:
    script = tmp_path / "test.sh"
    script.write_text('echo "a \\" quote"\njq .\necho \\"\npytest -q\necho "open\nno_program\n"\n')
    assert called_in(script) == {"jq", "pytest"}


def test_a_link_is_part_of_the_version_of_a_task(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    (folder / "tests" / "link").symlink_to("test.sh")
    versions = {digest(folder), build._hash(folder, "FROM x", [])}
    (folder / "tests" / "link").unlink()
    (folder / "tests" / "link").symlink_to("other.sh")
    assert not versions & {digest(folder), build._hash(folder, "FROM x", [])}


def test_a_from_without_an_image_is_refused_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text("# none\nFROM --platform=linux/amd64\n")
    with pytest.raises(TaskError, match="FROM names no image") as refused:
        build._rewritten(path, None, {})
    assert (refused.value.place, refused.value.remedy) == (f"{path}:2", "mend the line")


def test_without_the_package_docker_no_engine_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    assert build.engine_api("tcp://none.invalid:1") is None
    build.engine_api.cache_clear()


# --- the stub of installers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words", "runs"),
    [
        ("python3", ["check.py", "-v"], ["/py", "check.py", "-v"]),
        ("python", ["-m"], ["/py", "-m"]),
        ("python", ["-m", "pip", "install", "x"], None),
        ("uv", ["sync"], None),
        ("uv", ["run", "--with", "x", "check.py", "1"], ["/py", "check.py", "1"]),
        ("uvx", ["pytest", "--ctrf", "out.json", "-q"], ["/py", "-m", "pytest", "-q"]),
    ],
)
def test_a_call_of_an_installer_runs_its_target_alone(name: str, words: list[str], runs: list[str] | None) -> None:
    assert command_of(name, words, "/py", reports=False) == runs


def test_the_stub_becomes_the_command_and_does_nothing_for_an_install(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[tuple[str, Sequence[str]]] = []
    monkeypatch.setattr(os, "execvp", lambda path, words: became.append((path, words)))
    monkeypatch.setattr(sys, "executable", "/image/python3")
    no_installs.main("uv", ["pip", "install", "pytest"])
    assert became == []
    no_installs.main("python", ["-m", "pytest", "-q"])
    assert became == [("/image/python3", ["/image/python3", "-m", "pytest", "-q"])]
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    no_installs.main("uvx", ["ruff@0.5", "check"])
    assert became[1:] == [("ruff", ["ruff", "check"])]


async def test_an_engine_that_breaks_off_a_build_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = pytest.importorskip(
        "docker", reason="the package docker is missing: pip install 'agentrl-framework[docker]'"
    )
    path = tmp_path / "Dockerfile"
    path.write_text("FROM scratch\n")

    class Engine:
        hooks: dict[str, list[Any]] = {"response": []}
        fault: Exception = ConnectionError("peer reset")

        def inspect_image(self, tag: str) -> None:
            raise docker.errors.ImageNotFound("none")

        def networks(self, names: list[str]) -> list[str]:
            return names

        def build(self, **settings: Any) -> None:
            raise self.fault

        def close(self) -> None: ...

    engine = Engine()
    monkeypatch.setattr(docker, "from_env", lambda **settings: SimpleNamespace(api=engine))
    with pytest.raises(TaskError, match="the container engine broke off: peer reset") as refused:
        build.build(tmp_path, "job", engine, {}, 5.0)
    assert refused.value.place == str(path)
    engine.fault = docker.errors.APIError("500", explanation="no space left")
    with pytest.raises(TaskError, match="its build failed: .*no space left"):
        build.build(tmp_path, "job", engine, {}, 5.0)
    engine.fault = TimeoutError("read timed out")
    with pytest.raises(TaskError, match="did not end within 5 s") as late:
        build.build(tmp_path, "job", engine, {}, 5.0)
    assert "build_timeout_sec" in (late.value.remedy or "")


def test_an_image_that_a_task_names_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {"environment/Dockerfile": "FROM other\nRUN make\n"}
    a_folder(tmp_path, '[environment]\ndocker_image = "depot/job:1"\n', **lines)
    monkeypatch.setattr("agentrl.integrations.harbor.tasks.engine_api", lambda host: "an engine that builds nothing")
    (task,) = tasks(".", tmp_path, build=True)
    assert (task.sandbox or {})["image"] == "depot/job:1"
    assert task.data["harbor"]["as_is"] is True
