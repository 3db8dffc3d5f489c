"""`web` and `gui` in containers of the shipped images, which are built first: minutes each (`make test-envs`)."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl

pytestmark = [
    pytest.mark.family("envs"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="building an image needs debootstrap"),
    pytest.mark.timeout(3000),
]

TEA = '''
import re
from agentrl import Environment, Say, Task

PAGE = """<!doctype html><title>Tea</title><label>Bags <input id=bags></label>
<button onclick="document.title = 'Ordered ' + bags.value">Order</button>"""

def orders(n=2):
    for k in range(n):
        files = {"site/index.html": PAGE}
        yield Task.of(f"order{k}", f"Order {k + 1} bags of tea.", bags=k + 1, sandbox={"files": files})

class Served(Environment):
    """The site, on a port of the sandbox."""

    needs_sandbox = True

    async def open(self, task, sandbox):
        command = ["python3", "-u", "-m", "http.server", "8000", "--bind", "127.0.0.1", "--directory", "site"]
        self.server = await sandbox.spawn(command)
        await self.server.read()  # it says that it serves

def ordered(task, tools):
    return float(tools[1].page.title == f"Ordered {task.data['bags']}")

def oracle(task, rng):
    page = yield Say(calls=[("open", {"url": "/"})])
    page = yield Say(calls=[("type", {"id": number(page, "Bags"), "text": str(task.data["bags"])})])
    yield Say(calls=[("click", {"id": number(page, "Order")})])
    yield Say(calls=[("screenshot", {})])
    yield Say("Done.")

def number(messages, words):
    return int(re.search(rf'\\[(\\d+)\\] \\w+ "{words}', str(messages[-1]["content"]))[1])
'''
TEA_RECIPE = """
name: tea
tasks: ./task.py:orders
agent: {max_turns: 8, format: hermes}
tools: [./task.py:Served, {web: {url: "http://127.0.0.1:8000/", where: sandbox}}]
rewards: {ordered: ./task.py:ordered}
scripts: {oracle: ./task.py:oracle}
"""


def note() -> tuple[str, str]:
    """The task of docs/gui.md."""
    page = (Path(__file__).parents[2] / "docs" / "gui.md").read_text()
    code, recipe = (text for _, text in re.findall(r"```(python|yaml)\n(.*?)```", page, re.DOTALL)[:2])
    return code, recipe.replace('{file}"}', '{file}", start_s: 60}')  # a cold container on a busy machine


@pytest.mark.parametrize(("image", "written"), [("browser", lambda: (TEA, TEA_RECIPE)), ("desktop", note)])
def test_an_episode_in_a_container_of_the_image(
    docker_host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, image: str, written: object
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    agentrl("sandbox", "build", image, cwd=tmp_path, timeout=2000)
    code, recipe = written()  # type: ignore[operator]
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "task.py").write_text(code)
    (tmp_path / "own" / "recipe.yaml").write_text(recipe)
    there = ["--set", "sandbox.use=docker", "--set", f"sandbox.spec.image=agentrl/{image}"]
    more = [*there, "--set", "concurrency=1", "--set", "limits.sandbox_s=300", "--set", "limits.open_s=300"]
    agentrl("rollout", "own", "--n", "2", "--script", "oracle", "--out", "run", *more, cwd=tmp_path, timeout=900)
    with RunDir.read(tmp_path / "run") as run:
        episodes = list(run.episodes())
    assert [episode.reward for episode in episodes] == [1.0, 1.0]
    images = [len(call.images) for episode in episodes for turn in episode.turns for call in turn.calls]
    assert sum(images) >= 2, "screenshots came out of the container"
