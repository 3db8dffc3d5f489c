"""Who breaks a sandbox decides what becomes of the episode: a policy that does loses, harm from outside is retried."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.engines.scripted import Say, ScriptedEngine
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.sandbox.namespace.backend import NamespaceBackend
from agentrl.tools.base import tool
from agentrl.tools.builtin.shell import Shell
from agentrl.types.episode import Episode
from agentrl.types.sandbox import Backend, Sandbox, SandboxBroken, SandboxLost, SandboxSpec
from agentrl.types.task import Task
from tests.rollouts.world import collect, make_parts
from tests.sandbox.attacks import ATTACKS, FATAL
from tests.waiting import limits as doubled
from tests.waiting import stop

pytestmark = [pytest.mark.slow, pytest.mark.family("sandbox")]

SPEC = {"memory_mb": 128, "pids": 64, "disk_mb": 64}
SOLVE = "touch /work/solved"
OOM = "python3 -c 'x = bytearray(b\"x\" * (1 << 30))'; sleep 0.3"
PATIENCE_S = 120.0
HARMS = ["kill", "stop", "container kill", "container removed", "container paused"]
HARMED: list[str] = []
"""Harms that were done to toolboxes."""


@pytest.fixture
def where(either: Backend) -> Backend:
    """Each backend, if it limits memory."""
    either.preflight(SandboxSpec(**SPEC))  # type: ignore[arg-type]
    if either.capabilities.memory in ("none", "rlimit"):
        pytest.skip("the memory of a sandbox is not limited here")
    return either


async def harm(sandbox: Any, kind: str) -> None:
    """What an operator, or an accident, does to a sandbox."""
    if not kind.startswith("container"):
        toolbox = await toolbox_of(sandbox)
        if kind == "kill":
            os.kill(toolbox, signal.SIGKILL)
        else:
            stop(toolbox)
        HARMED.append(kind)
        return
    name = sandbox._container.name
    calls = {
        "container kill": lambda api: api.kill(name),
        "container removed": lambda api: api.remove_container(name, force=True),
        "container paused": lambda api: api.pause(name),
    }
    await sandbox._backend.engine.call(calls[kind])


async def toolbox_of(sandbox: Any) -> int:
    if not hasattr(sandbox, "_container"):
        return int(sandbox._tree.init_pid)
    about = await sandbox._backend.engine.call(lambda api: api.inspect_container(sandbox._container.name))
    return int(about["State"]["Pid"])


class HarmedShell(Shell):
    """A shell whose sandbox comes to harm when the command says so."""

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        await super().open(task, sandbox)
        self.sandbox = sandbox

    @tool
    async def shell(self, command: str) -> str:
        """Runs a command.

        Args:
            command: what to run, or a kind of harm.
        """
        if command in HARMS:
            await harm(self.sandbox, command)
            command = "true"
        return (await self.session.run(command, timeout_s=self.command_s)).text


def says(task: Task, rng: Any) -> Any:
    """Runs the commands of the task, one a turn, and says that it is done."""
    for command in task.data["commands"]:
        yield Say(calls=[("shell", {"command": command})])
    yield Say(text="done")


def spec(name: str, *commands: str) -> EpisodeSpec:
    state = [{"command": "test -f /work/solved", "exit": 0}]
    return EpisodeSpec(name, name, Task.of(name, "Make the file.", commands=list(commands), state=state))


async def play(
    tmp_path: Path,
    where: Backend,
    specs: list[EpisodeSpec],
    *,
    shell: str = "shell",
    timeout_s: float = 3,
    **recipe: Any,
) -> tuple[dict[str, Episode], list[dict[str, Any]]]:
    """The episodes by name, and the failures that the runner reported."""
    settings = {
        "tools": [{"use": shell, "timeout_s": timeout_s}],
        "sandbox": {"use": where.name, "spec": SPEC, "pool": 0},
        "rewards": {"solved": {"use": "state_check"}},
        **recipe,
    }
    parts = make_parts(tmp_path, **settings)
    failures: list[dict[str, Any]] = []
    renderer = parts.renderer(ByteTokenizer())
    context = parts.context(ScriptedEngine(says, renderer, renderer.parser), renderer, where)
    episodes = await collect(context, specs, concurrency=8, failures=failures)
    return {episode.id: episode for episode in episodes}, failures


class PatientShell(Shell):
    """Ends attacks soon, unless they end by themselves: what needs the time gets it on a busy machine, too."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(PATIENCE_S)
        self.soon_s = timeout_s

    @tool
    async def shell(self, command: str) -> str:
        """Runs a command.

        Args:
            command: what to run.
        """
        self.command_s = PATIENCE_S if command in (SOLVE, ATTACKS[FATAL]) else self.soon_s
        return await super().shell(command)


async def test_no_episode_of_a_policy_that_breaks_sandboxes_vanishes(tmp_path: Path, where: Backend) -> None:
    losing = [spec(name, attack, attack, "echo here") for name, attack in ATTACKS.items()]
    losing += [spec("again", ATTACKS[FATAL])]
    honest = [spec(f"honest {k}", SOLVE) for k in range(6)]
    shell = "tests.sandbox.test_sabotage:PatientShell"
    episodes, failures = await play(tmp_path, where, losing + honest, shell=shell, timeout_s=1)
    assert [failure for failure in failures if failure["status"] != "close_failed"] == []
    assert {name: (e.status, e.reward) for name, e in episodes.items() if "honest" in name} == {
        each.id: ("done", 1.0) for each in honest
    }
    assert {name: e.reward for name, e in episodes.items() if "honest" not in name} == {each.id: 0.0 for each in losing}
    fatal = {name: e for name, e in episodes.items() if name == FATAL or "again" in name}
    assert {name: (e.status, e.stop) for name, e in fatal.items()} == dict.fromkeys(
        fatal, ("truncated", "sandbox_broken")
    )
    assert all("its programs took all its memory" in e.notes["solved"] for e in fatal.values())


@pytest.mark.parametrize(
    ("either", "kind"),
    [(name, kind) for name in ("namespace", "docker") for kind in HARMS if name == "docker" or "container" not in kind],
    indirect=["either"],
)
@pytest.mark.parametrize("before", [[SOLVE], [OOM]], ids=["", "after-oom"])
async def test_harm_from_outside_is_never_data(
    tmp_path: Path, where: Backend, kind: str, before: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the sandbox has had the kernel kill a program of its own before."""
    monkeypatch.setattr("agentrl.sandbox.toolbox.wire.MARGIN_S", 1.0)
    monkeypatch.setattr("agentrl.sandbox.toolbox.postmortem._LOOK_S", 0.1)
    shell = "tests.sandbox.test_sabotage:HarmedShell"
    limits = {"retries": 1, "backoff_s": 0.0}
    specs = [spec("harmed", *before, kind)]
    episodes, failures = await play(tmp_path, where, specs, shell=shell, timeout_s=1, limits=limits)
    episode = episodes["harmed"]
    assert (episode.status, episode.reward, episode.attempt) == ("infra_error", None, 1)
    assert episode.error is not None
    assert (episode.error.kind, episode.error.stage) == ("SandboxLost", "tools")
    assert [failure["final"] for failure in failures if failure["status"] == "infra_error"] == [False, True]


@pytest.mark.parametrize(
    ("deadline", "shell", "limits"),
    [
        ("tool", "HarmedShell", {}),
        ("wall", "HarmedShell", {"episode_s": 2}),
        ("score", "FreezingShell", {"score_s": 1}),
    ],
)
async def test_a_deadline_in_a_frozen_sandbox_is_never_data(
    tmp_path: Path, where: Backend, deadline: str, shell: str, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever deadline comes before the sandbox is given up."""
    monkeypatch.setattr("agentrl.sandbox.toolbox.wire.MARGIN_S", 3.0)
    monkeypatch.setattr("agentrl.sandbox.toolbox.postmortem._LOOK_S", 0.1)
    if deadline == "tool":
        monkeypatch.setattr("agentrl.tools.builtin.shell.GRACE_S", 0.1)
    shell = f"tests.sandbox.test_sabotage:{shell}"
    specs = [spec("frozen", SOLVE, "stop")]
    HARMED.clear()
    for factor in doubled(1):  # a wall must not come before the harm
        more = {key: factor * seconds for key, seconds in limits.items()}
        episodes, _ = await play(tmp_path, where, specs, shell=shell, timeout_s=1, limits={**more, "retries": 0})
        if HARMED:
            break
    episode = episodes["frozen"]
    assert (episode.status, episode.reward) == ("infra_error", None)
    assert episode.error is not None
    assert episode.error.kind == "SandboxLost"


class FreezingShell(HarmedShell):
    """Returns before the harm is felt."""

    @tool
    async def shell(self, command: str) -> str:
        """Runs a command.

        Args:
            command: what to run, or a kind of harm.
        """
        if command in HARMS:
            await harm(self.sandbox, command)
            return ""
        return await super().shell(command)


async def test_a_sandbox_that_breaks_while_it_is_scored_scores_nothing(tmp_path: Path, where: Backend) -> None:
    rewards = {"solved": {"use": "state_check"}, "tested": {"use": "tests.sandbox.test_sabotage:run_what_was_left"}}
    episodes, failures = await play(tmp_path, where, [spec("later", SOLVE)], rewards=rewards)
    episode = episodes["later"]
    assert failures == []
    assert (episode.status, episode.components) == ("done", {"solved": 1.0, "tested": 0.0})
    assert "its programs took all its memory" in episode.notes["tested"]


async def run_what_was_left(sandbox: Sandbox) -> float:
    """A reward that runs a program of the policy."""
    return float((await sandbox.exec(ATTACKS[FATAL])).ok)


async def test_who_waits_until_the_sandbox_is_too_old_is_scored(tmp_path: Path, backend: NamespaceBackend) -> None:
    for ttl_s in doubled(1.0):
        sandbox = {"use": "namespace", "spec": {**SPEC, "ttl_s": ttl_s}}
        specs = [spec("old", SOLVE, "sleep 1000")]
        episodes, failures = await play(tmp_path, backend, specs, sandbox=sandbox, timeout_s=PATIENCE_S)
        episode = episodes["old"]
        if episode.turns:  # it was not too old before it was there
            break
    assert failures == []
    assert (episode.status, episode.stop, episode.reward) == ("truncated", "wall", 0.0)


async def test_a_sandbox_that_breaks_before_the_agent_is_there_is_a_failed_one(tmp_path: Path, where: Backend) -> None:
    broken = {**SPEC, "setup": [ATTACKS[FATAL]]}
    sandbox = {"use": where.name, "spec": broken, "pool": 0}
    episodes, _ = await play(tmp_path, where, [spec("setup", SOLVE)], sandbox=sandbox, limits={"retries": 0})
    assert (episodes["setup"].status, episodes["setup"].reward) == ("infra_error", None)


async def test_a_broken_sandbox_says_so_to_every_caller(where: Backend) -> None:
    sandbox = await where.create(SandboxSpec(**SPEC), label="mine")  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(SandboxBroken, match=r"mine is gone.*all its memory"):
            await sandbox.exec(ATTACKS[FATAL], timeout_s=30)
    with pytest.raises(SandboxBroken):
        await sandbox.spawn("true")
    assert isinstance((await sandbox.health()).loss, SandboxBroken)


async def test_a_toolbox_that_fails_by_itself_was_not_ended_from_outside(backend: NamespaceBackend) -> None:
    """Whatever makes it fail came from inside; its last word is the evidence."""
    sandbox = await backend.create(SandboxSpec())
    with pytest.raises(SandboxBroken, match="its toolbox failed: KeyError"):
        await sandbox.wire.request("no such operation", {})
    with pytest.raises(SandboxLost):
        await sandbox.exec("true")
