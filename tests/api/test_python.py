"""`agentrl.rollout`, `train` and `eval` from Python: in a script, within a running event loop, in a notebook."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import RecipeError, StoreError
from agentrl.types.reporter import Reporter
from tests.commands.conftest import counting, trainable
from tests.counting import CODE, HELD
from tests.works import Works

__all__ = ["counting", "trainable"]


class Diary(Reporter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def started(self, run: Any) -> None:
        self.told.append(f"{run.command} {'continues' if run.continues else 'begins'}")

    def episode(self, episode: Any) -> None:
        self.told.append(episode.id.rpartition("-")[2])

    def metrics(self, line: Any) -> None:
        self.told.append(f"{line['split']} {line['iteration']}")

    def ended(self, error: BaseException | None) -> None:
        self.told.append("ended")


@pytest.fixture(autouse=True)
def _within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_recipe_by_path_by_name_or_loaded(counting: Path) -> None:
    by_path = agentrl.rollout(counting, 4, script="oracle", reporters=())
    assert by_path.path == Path("runs/counting-oracle")
    assert [row.reward for row in by_path.episodes] == [1.0] * 4
    assert by_path.recipe.name == "counting"
    by_name = agentrl.rollout("counting", 4, script="oracle", out="other", reporters=())
    assert sorted(row.id for row in by_name.episodes) == sorted(row.id for row in by_path.episodes)
    loaded = agentrl.load_recipe("counting", ["agent.max_turns=2"])
    run = agentrl.rollout(
        loaded, 5, script="oracle", overrides={"limits": {"retries": 1}, "concurrency": 2}, out="third", reporters=()
    )
    assert max(len(run.episode(row.id).turns) for row in run.episodes) == 2
    assert (run.recipe.limits.retries, run.recipe.concurrency, run.recipe.agent.max_turns) == (1, 2, 2)
    assert loaded.concurrency == 64
    with pytest.raises(RecipeError, match="--set agent.max_turn=3: agent.max_turn: unknown key"):
        agentrl.rollout(loaded, overrides={"agent.max_turn": 3})


def test_the_same_call_again_continues(counting: Path) -> None:
    first, again = Diary(), Diary()
    agentrl.rollout(counting, 3, script="oracle", reporters=[first])
    run = agentrl.rollout(counting, 5, script="oracle", reporters=[again])
    assert first.told == ["rollout begins", "count0#0", "count1#0", "count2#0", "ended"]
    assert again.told == ["rollout continues", "count3#0", "count4#0", "ended"]
    assert len(run.episodes) == 5
    with pytest.raises(StoreError, match="holds a run that differs in script"):
        agentrl.rollout(counting, 5, script="hasty", out=run.path)


@pytest.mark.slow
async def test_a_running_event_loop_is_no_obstacle(trainable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of it: rollout, training and evaluation, while the loop of the caller waits."""
    rolled = agentrl.rollout(trainable, 3, script="oracle", reporters=())
    assert rolled.summary().splits["rollout"].reward == (1.0, 1.0, 1.0)
    diary = Diary()
    trained = agentrl.train(trainable, overrides={"train.iterations": 1}, reporters=[diary])
    assert trained is not None
    assert diary.told[0] == "train begins"
    assert [told for told in diary.told if told[:5] in ("train", "eval ")][1:] == ["eval 0", "train 1", "eval 1"]
    assert (trained.path / "curve.png").exists()
    measured = agentrl.eval(trained, 6, reporters=())
    assert (measured.metrics[-1]["episodes"], measured.metrics[-1]["iteration"]) == (6, 1)
    assert {turn.split for turn in trained.turns} == {"demo", "train", "eval"}
    assert capsys.readouterr().out == ""
    agentrl.rollout(trainable, 4, script="oracle")
    assert "3 of 4 episodes are stored already\nepisodes (1)\n1/1" in capsys.readouterr().out
    await asyncio.sleep(0)


async def test_a_stored_run_is_scored_and_credited_again(counting: Path) -> None:
    run = agentrl.rollout(counting, 8, script="hasty", group_size=4, reporters=())
    recorded = [row.reward for row in run.episodes]
    doubled = agentrl.rescore(run, name="doubled", overrides={"rewards.exact.weight": 2})
    assert doubled["components"]["reward"]["new"] == pytest.approx(2 * sum(map(float, recorded)) / 8)  # type: ignore[arg-type]
    assert [row.reward for row in run.episodes] == recorded
    once, twice = (
        agentrl.credit(str(run.path), "dr_grpo", overrides={"weighting": "turn"}, rewards=name)
        for name in (None, "doubled")
    )
    assert once.credit.settings.model_dump()["weighting"] == "turn"
    assert [one.turn_advantages for one in twice.credits] == [
        [2 * value for value in one.turn_advantages] for one in once.credits
    ]
    assert {turn.advantage for turn in run.turns} == {None}
    agentrl.credit(run, "rloo", save=True)
    assert None not in {turn.advantage for turn in run.turns}
    with RunDir.create(Path("bare")):
        pass
    with pytest.raises(RecipeError, match="bare: names no recipe"):
        agentrl.rescore("bare")


@pytest.mark.slow
async def test_sandboxes_work_within_a_running_event_loop() -> None:
    run = agentrl.rollout("quickstart", 4, script="random", overrides={"tasks.args.seed": 1}, reporters=())
    assert {row.status for row in run.episodes} <= {"done", "truncated"}
    assert sum(row.calls for row in run.episodes) > 4


@pytest.fixture
def kernel(counting: Path) -> Iterator[Any]:
    """A Jupyter kernel beside the recipe."""
    from jupyter_client.manager import start_new_kernel

    path = os.pathsep.join([str(Path(agentrl.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    manager, client = start_new_kernel(
        kernel_name="python3",
        startup_timeout=300,
        cwd=str(counting.parent),
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run_cell(client: Any, code: str) -> tuple[str, dict[str, Any]]:
    """What a cell prints and shows, and the reply."""
    shown: list[str] = []

    reply = client.execute_interactive(code, output_hook=lambda message: shown.append(shown_by(message)))
    return "".join(shown), reply["content"]


@pytest.mark.slow
def test_in_a_notebook(kernel: Any) -> None:
    _, client = kernel
    said, reply = run_cell(client, "import agentrl\nrun = agentrl.rollout('counting', 5, script='oracle')\nrun")
    assert reply["status"] == "ok", reply
    assert "5/5" in said
    assert said.endswith("Run('runs/counting-oracle')")
    said, reply = run_cell(client, "run.turns.to_pandas().groupby('episode').size().sum()")
    assert reply["status"] == "ok", reply
    assert "15" in said
    said, _ = run_cell(client, "import asyncio\nawait asyncio.sleep(0)\nlen(agentrl.open_run(run.path).calls)")
    assert said == "15"


OF_A_CELL = """
from agentrl import Tool, ToolResult, tool

class Doubling(Tool):
    async def open(self, task, sandbox): self.count, self.to = 1, task.data["to"]
    @tool
    async def add(self) -> ToolResult:
        "Doubles."
        self.count *= 2
        return ToolResult(str(self.count), done=self.count >= self.to)

agentrl.rollout('counting', 2, script='oracle', overrides={'tools': ['__main__:Doubling']}, out='own').calls[0].result
"""


@pytest.mark.slow
def test_a_tool_that_a_cell_defines(kernel: Any) -> None:
    _, client = kernel
    said, reply = run_cell(client, f"import agentrl\n{OF_A_CELL}")
    assert reply["status"] == "ok", reply
    assert said.endswith("'2'")


@pytest.mark.slow
def test_the_stop_button_of_a_notebook(kernel: Any, counting: Path) -> None:
    """What has ended is kept, and the same call goes on."""
    manager, client = kernel
    (counting / "task.py").write_text(CODE + HELD)
    (hold := counting.parent / "hold").touch()
    call = "agentrl.rollout('counting', 5, script='oracle', overrides={'tools': ['./task.py:Held']}, out='slow')"
    code = f"import agentrl\nlen({call}.episodes)"
    sent = client.execute(code, stop_on_error=False)  # else the kernel aborts what comes within 0.1 s of the error
    until_printed(client, "1/5")
    manager.interrupt_kernel()
    reply = reply_to(client, sent)
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    assert "finished work is kept in slow: the same command continues" in reply["evalue"]
    said, reply = run_cell(client, "print(len(agentrl.open_run('slow').episodes))")
    assert reply["status"] == "ok", reply
    assert int(said) == 1
    hold.unlink()
    said, reply = run_cell(client, code)
    assert reply["status"] == "ok", reply
    assert "1 of 5 episodes are stored already" in said
    assert said.endswith("5")


def shown_by(message: Any) -> str:
    content = message["content"]
    return str(content.get("text") or content.get("data", {}).get("text/plain", ""))


def until_printed(client: Any, text: str) -> None:
    printed = ""
    while text not in printed:
        printed += shown_by(client.get_iopub_msg(timeout=None))


def reply_to(client: Any, sent: str) -> dict[str, Any]:
    while True:
        message = client.get_shell_msg(timeout=None)
        if message["parent_header"].get("msg_id") == sent:
            content: dict[str, Any] = message["content"]
            return content


@pytest.fixture
def searching(counting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The counting recipe with a library to search, whose index is not cached."""
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    (counting / "library.jsonl").write_text('{"id": "a", "title": "", "text": "some words"}\n')
    return counting


SEARCH = ["tools=[./task.py:Counter, {search: {corpus: ./library.jsonl}}]"]


def test_a_run_tells_of_the_index_that_its_tools_build(searching: Path) -> None:
    agentrl.rollout(searching, 2, script="oracle", overrides=SEARCH, reporters=[works := Works()])
    assert works.of("words of the search index") == [(0, 1), (1, 1)]


async def test_it_does_so_in_a_notebook(searching: Path) -> None:
    agentrl.rollout(searching, 2, script="oracle", overrides=SEARCH, reporters=[works := Works()])
    assert works.of("words of the search index") == [(0, 1), (1, 1)]
