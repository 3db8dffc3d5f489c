"""The soak, made short: sandboxes killed and cancelled at random moments leave nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from agentrl.sandbox.namespace.backend import NamespaceBackend
from agentrl.types.errors import SandboxError
from agentrl.types.sandbox import SandboxSpec
from tests.sandbox.test_backend import processes_with
from tests.waiting import until_async

pytestmark = [pytest.mark.slow, pytest.mark.family("backends")]

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("more", [[], ["--pool", "3"]], ids=["fresh", "pooled"])
def test_sixty_cycles_leave_nothing(more: list[str]) -> None:
    argv = [sys.executable, "-m", "benchmarks.soak", "--cycles", "60", "--kill", "0.3", *more]
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False, env=dict(os.environ)
    )
    assert done.stdout, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["problems"] == [], result
    came_to = result["rows"][0]["came_to"]
    assert came_to["attacked"] > 0
    assert came_to["cancelled"] > 0
    assert sum(came_to.get(how, 0) for how in ("ok", "cancelled", "lost")) == 60


BROKEN = """
import benchmarks.soak as soak
from agentrl.sandbox.linux import cgroups
from agentrl.sandbox.namespace import backend as namespace
{fault}
raise SystemExit(soak.main())
"""


FAULTS = {
    "cgroups": "cgroups.Cgroup.remove = lambda self: True",
    "descriptors": """
old, count = namespace.NamespaceSandbox.destroy, iter(range(1000))
async def destroy(self):
    if next(count) % 3:
        await old(self)
namespace.NamespaceSandbox.destroy = destroy
""",
    "memory": """
old, kept = soak.Soak._cycle, []
def cycle(self, number):
    kept.append(bytearray(1 << 20))
    return old(self, number)
soak.Soak._cycle = cycle
""",
}


@pytest.mark.parametrize("left", FAULTS)
def test_the_soak_sees_what_is_left(left: str) -> None:
    argv = [sys.executable, "-c", BROKEN.format(fault=FAULTS[left]), "--cycles", "24", "--kill", "0"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout, done.stderr
    assert done.returncode == 1
    assert any(left in problem for problem in json.loads(done.stdout.splitlines()[-1])["problems"])


async def test_a_bubblewrap_killed_while_it_starts_leaves_no_child(backend: NamespaceBackend) -> None:
    backend.preflight(SandboxSpec())
    for looks in range(0, 360, 30):
        starting = asyncio.create_task(backend.create(SandboxSpec()))
        while not (begun := list(backend._alive)) or begun[0]._tree._process is None:
            await asyncio.sleep(0)
        pid = begun[0]._tree._process.pid
        for _ in range(looks):  # each time a little later, while the loop stands still: it must not notice
            Path(f"/proc/{pid}/stat").read_bytes()
        os.kill(pid, signal.SIGKILL)
        with suppress(SandboxError):
            await (await starting).close()
    folder = f"{backend._host._folder}/"
    await until_async(lambda: not processes_with(folder))
