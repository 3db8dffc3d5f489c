"""Live forks of episodes with a sandbox: its files as they are, or the calls again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentrl.engines.scripted import Say
from agentrl.rollouts.agent import ToolAgent
from agentrl.store import RunDir, check
from agentrl.types.episode import in_order
from tests.rollouts.world import collect, make_context, make_parts, specs

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from agentrl.sandbox.namespace.backend import NamespaceBackend

HERE = "tests.sandbox.test_forks"


class Touches(ToolAgent):
    """Writes a file itself, and forks here."""

    forks = 1

    async def run(self, session: Any) -> None:
        await self.take_turn(session)
        await session.sandbox.write("own", b"of the agent")
        async with session.fork() as fork:
            assert fork.sandbox is not session.sandbox
            await fork.sandbox.write("fork", b"of the fork")
            await ToolAgent.run(self, fork)
        await ToolAgent.run(self, session)


def looks(task: Any, rng: Any) -> Any:
    yield Say(calls=[("create_file", {"path": "a", "content": "x\n"})])
    yield Say(calls=[("view_file", {"path": "."})])
    yield Say("Done.")


@pytest.mark.parametrize(("snapshots", "seen"), [(True, {"a", "fork", "own"}), (False, {"a", "fork"})])
async def test_a_fork_has_the_files(tmp_path: Path, backend: NamespaceBackend, snapshots: bool, seen: set[str]) -> None:
    """Without snapshots the calls of the record run again: what the agent did itself is not among them."""
    parts = make_parts(
        tmp_path,
        agent=f"{HERE}:Touches",
        tools=["files"],
        sandbox={"use": "namespace", "spec": {"snapshots": snapshots}},
    )
    before = len(backend.snapshots)  # other tests share the backend
    with RunDir.create(tmp_path / "run") as run:
        context = make_context(parts, looks, backend=backend)
        await collect(context, [replace(each, split="rollout") for each in specs(1)], run=run)
        trunk, fork = in_order(run.episodes())
    assert (report := check(tmp_path / "run")).ok, report.as_text()
    listed = [set(each.turns[1].calls[0].result.split()) & {"a", "fork", "own"} for each in (trunk, fork)]
    assert listed == [{"a", "own"}, seen]
    assert len(backend.snapshots) == before, "it ends with its sandbox"
