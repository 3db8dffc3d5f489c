"""A backend that dies, or restarts, in the middle of a run: what the command says, and what the next one adds."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl
from tests.sandbox import dockerd

pytestmark = [pytest.mark.slow, pytest.mark.family("sandbox")]

CODE = '''
import subprocess
from pathlib import Path
from agentrl import Task, Tool, tool
from agentrl.engines.scripted import Say

HERE = Path(__file__).parent

class Work(Tool):
    """In its 20th call the disaster happens, once."""
    needs_sandbox = True
    calls = 0
    async def open(self, task, sandbox):
        self.sandbox = sandbox
    @tool
    async def work(self) -> str:
        "Runs a program."
        Work.calls += 1
        disaster = HERE / "disaster.sh"
        if Work.calls == 20 and disaster.exists():
            disaster.rename(HERE / "happened.sh")
            subprocess.run(["bash", str(HERE / "happened.sh")], check=True)
        return (await self.sandbox.exec("echo done")).text

def tasks():
    return [Task.of(f"t{k}", "Work.") for k in range(40)]

def worker(task, rng):
    yield Say(calls=[("work", {})])
    yield Say("done")

def right(task, episode):
    return 1.0
'''
RECIPE = """
name: outage
tasks: ./task.py:tasks
tools: [./task.py:Work]
sandbox: {use: BACKEND}
rewards: {right: ./task.py:right}
scripts: {worker: ./task.py:worker}
limits: {backoff_s: 0.05, sandbox_s: SECONDS}
concurrency: 4
"""


def make(here: Path, backend: str, disaster: str, seconds: float) -> Callable[..., subprocess.CompletedProcess[str]]:
    (here / "task.py").write_text(CODE)
    (here / "recipe.yaml").write_text(RECIPE.replace("BACKEND", backend).replace("SECONDS", f"{seconds}"))
    (here / "disaster.sh").write_text(disaster)
    more = ["rollout", "recipe.yaml", "--script", "worker", "--out", "run"]
    return lambda n, **options: agentrl(*more, "--n", str(n), cwd=here, **options)


def statuses(here: Path) -> Counter[str]:
    with RunDir.read(here / "run") as run:
        return Counter(row.status for row in run.rows())


@pytest.fixture(scope="module")
def engine_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a container engine that tests may kill, if they start it again; `start.sh` does."""
    pytest.importorskip("docker", reason="the package docker is missing: pip install 'agentrl-framework[docker]'")
    if why := dockerd.why_not():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("own", numbered=True)
    dockerd.start(folder, f"unix://{folder}/sock")
    dockerd.import_images(f"unix://{folder}/sock")
    yield folder
    dockerd.stop(folder)


def test_a_namespace_backend_that_dies_stops_the_run_and_the_same_command_completes_it(
    tmp_path: Path, public_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = public_folder / "tmp"
    temporary.mkdir(mode=0o755)
    monkeypatch.setenv("TMPDIR", str(temporary))
    run = make(tmp_path, "namespace", f"rm -rf {temporary}", 5)
    stopped_then_completed(tmp_path, run, temporary.mkdir, "own files are gone", "set TMPDIR")


@pytest.mark.parametrize("kill", dockerd.KILLS)
def test_a_container_engine_that_dies_stops_the_run_and_the_same_command_completes_it(
    tmp_path: Path, engine_folder: Path, kill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = f"unix://{engine_folder}/sock"
    monkeypatch.setenv("DOCKER_HOST", host)
    run = make(tmp_path, "docker", dockerd.KILLS[kill].format(folder=engine_folder), 5)
    stopped_then_completed(
        tmp_path, run, lambda: dockerd.start(engine_folder, host), "no container engine answers", "dockerd"
    )


def stopped_then_completed(
    here: Path, run: Callable[..., subprocess.CompletedProcess[str]], mend: Callable[[], object], *told: str
) -> None:
    stopped = run(40, ok=False)
    assert stopped.returncode == 1, stopped.stdout
    for each in ("episodes in a row failed", "limits.sandbox_failures", "run the same command again", *told):
        assert each in stopped.stderr
    assert "Traceback" not in stopped.stderr
    before = statuses(here)
    assert before["done"] >= 20 - 4, "of four at a time"
    assert sum(before.values()) <= 20 + 12, before
    mend()
    run(40)
    assert statuses(here)["done"] == 40


@pytest.mark.parametrize("kill", dockerd.KILLS)
def test_a_container_engine_that_restarts_costs_few_episodes_and_no_result(
    tmp_path: Path, engine_folder: Path, kill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{engine_folder}/sock")
    killed = dockerd.KILLS[kill].format(folder=engine_folder)
    run = make(tmp_path, "docker", f"{killed}\n(sleep 1; exec setsid bash {engine_folder}/start.sh) &\n", 60)
    done = run(40)
    assert statuses(tmp_path) == {"done": 40}
    assert "reward mean 1.000" in done.stdout
    left = ["docker", "ps", "-aq", "--filter", "label=agentrl.owner"]
    assert subprocess.run(left, capture_output=True, check=True).stdout == b"", "close() removes what it could not then"
