"""The recipe that needs nothing, with tools that end the process they run in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import python
from tests.counting import CODE, RECIPE, TINY
from tests.lean import no_curves

__all__ = ["no_curves"]

TRAINING = f"""\
{TINY}\
train: {{iterations: 8, groups: 2, group_size: 3, minibatch: 6, lr: 1.0e-3}}
eval: {{episodes: 4, every: 5}}
"""
DEADLY = '''

import os, signal, time
from pathlib import Path

class Deadly(Counter):
    """Kills its process in the first call for the tasks named, as often as `times` says."""
    def __init__(self, tasks: list, times: int = 1, delay: float = 0.0):
        super().__init__(delay); self.tasks, self.times = tasks, times
    async def open(self, task, sandbox):
        await super().open(task, sandbox)
        for k in range(self.times if task.id in self.tasks else 0):
            try: os.close(os.open(Path(__file__).parent / f"died-{task.id}-{k}", os.O_CREAT | os.O_EXCL))
            except FileExistsError: continue
            os.kill(os.getpid(), signal.SIGKILL)

class Held(Counter):
    """Plays no episode once the checkpoint $HOLD exists, until the command was restarted."""
    async def open(self, task, sandbox):
        await super().open(task, sandbox)
        if Path(os.environ.get("HOLD", "none")).exists() and "AGENTRL_RESTARTS" not in os.environ:
            await asyncio.Event().wait()

class Stuck(Counter):
    """Ends no episode but the first."""
    async def open(self, task, sandbox):
        await super().open(task, sandbox)
        if task.id != "count0":
            await asyncio.Event().wait()

class Computes(Counter):
    """Computes in the event loop of its process."""
    async def open(self, task, sandbox):
        await super().open(task, sandbox)
        until = time.thread_time() + 0.5
        while time.thread_time() < until: sum(range(1000))

class Gated(Counter):
    """Lets the first twelve pass, and the others, which leave their worker's number, once the file `go` is there."""
    async def open(self, task, sandbox):
        await super().open(task, sandbox)
        if int(task.id.removeprefix("count")) < 12: return
        here = Path(__file__).parent
        (here / f"note-{task.id}").write_text(str(os.getpid()))
        (here / f"note-{task.id}").rename(here / f"waits-{task.id}")
        while not (here / "go").exists():
            await asyncio.sleep(0.01)

class Flood(Counter):
    @tool
    async def flood(self) -> str:
        "A lot of text."
        return self.__class__.__name__ * 10_000

def flooding(task, rng):
    yield Say(calls=[("flood", {})])
    yield from oracle(task, rng)
'''


@pytest.fixture
def counting(tmp_path: Path) -> Path:
    """The folder of the recipe; the parent is where commands run."""
    folder = tmp_path / "counting"
    folder.mkdir()
    (folder / "task.py").write_text(CODE + DEADLY)
    (folder / "recipe.yaml").write_text(RECIPE.replace("oracle:", "flooding: ./task.py:flooding, oracle:"))
    return folder


TWO_RANKS = """
import sys
from agentrl.api.train import train
from tests.ranks import fork_ranks
sys.exit(any(fork_ranks(2, lambda: train(sys.argv[1], out=sys.argv[2], overrides=sys.argv[3:]))))
"""


def train_on_two_ranks(recipe: Path, out: str, *overrides: str) -> None:
    """Trains as torchrun does, into `out` beside the recipe."""
    python("-c", TWO_RANKS, str(recipe), str(recipe.parent / out), *overrides, cwd=recipe.parent)


@pytest.fixture
def trainable(counting: Path) -> Path:
    """With all that a small training needs."""
    recipe = counting / "recipe.yaml"
    recipe.write_text(recipe.read_text() + TRAINING)
    return counting
