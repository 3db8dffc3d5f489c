"""Trainer ranks that agentrl starts: the training that torchrun's would be, also after one of them died."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from agentrl.config.loader import load_recipe
from agentrl.distributed.handle import WorkerDied
from agentrl.distributed.process import ProcessHandle, ProcessLauncher
from agentrl.distributed.ranks import LaunchedRanks, trainer_ranks
from agentrl.training.parallel.ranks import Ranks
from agentrl.types.errors import RankDied, RankFailed, RankUnreachable, RecipeError
from tests.command import python
from tests.counting import metrics
from tests.meanwhile import when
from tests.waiting import stop

from .conftest import train_on_two_ranks

TWO = ("--set", "scale.use=process", "--set", "scale.trainer_ranks=2")


def command(recipe: Path, out: str, *more: str) -> list[str]:
    return ["-m", "agentrl.cli", "train", str(recipe), "--out", str(recipe.parent / out), *more]


def run(arguments: list[str], timeout: float | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return python(*arguments, ok=False, timeout=timeout, **environment)


def launched_ranks(held: Path) -> Iterator[int]:
    """The processes of launched ranks with `held` in their environment."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            launched = b"agentrl.distributed.process" in (process / "cmdline").read_bytes()
            mine = os.fsencode(str(held)) in (process / "environ").read_bytes()
        except OSError:
            continue
        if launched and mine:
            yield int(process.name)


def killed_at(checkpoint: Path) -> AbstractContextManager[None]:
    """Kills the launched ranks of the command with HOLD=`checkpoint` when it has written the checkpoint; once."""

    def kill() -> None:
        for rank in launched_ranks(checkpoint):
            os.kill(rank, signal.SIGKILL)

    return when(checkpoint.exists, kill)


@pytest.mark.slow
@pytest.mark.family("distributed")
def test_torchrun_starts_the_ranks_of_one_training(trainable: Path) -> None:
    """Those of agentrl come to the same numbers: test_scale_chaos.py."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run([*torchrun, *command(trainable, "torchrun", "--set", "train.iterations=3")])
    assert done.returncode == 0, done.stderr[-3000:]
    train_on_two_ranks(trainable, "forks", "train.iterations=3")
    assert metrics(trainable.parent / "torchrun") == metrics(trainable.parent / "forks")


@pytest.mark.slow
@pytest.mark.family("distributed")
def test_a_rank_that_dies_ends_the_training_if_it_may_not_start_again(trainable: Path) -> None:
    first = trainable.parent / "ours" / "checkpoints" / "it-00001"
    held = ("--set", "tools=[./task.py:Held]", "--set", "scale.restarts=0")
    with killed_at(first):
        done = run(command(trainable, "ours", *held, *TWO), HOLD=str(first))
    assert done.returncode == 1
    assert "scale.trainer_ranks: ended before the training did: trainer rank 1: its process" in done.stderr
    assert "was killed by SIGKILL\n  -> the same command resumes from the last checkpoint" in done.stderr


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.family("distributed")
@pytest.mark.parametrize("by", [kill, stop])
async def test_a_rank_that_is_gone_when_all_is_trained_fails_nothing(
    trainable: Path, monkeypatch: pytest.MonkeyPatch, by: Callable[[int], None]
) -> None:
    monkeypatch.setattr("agentrl.distributed.ranks.TOLD_S", 1.0)
    monkeypatch.setenv("HOLD", str(trainable))
    recipe = load_recipe(str(trainable), ["scale.use=process", "scale.trainer_ranks=2"])
    lost = []

    async def training() -> None:
        lost.extend(launched_ranks(trainable))
        by(lost[0])

    async with trainer_ranks(recipe.scale, recipe.base, Ranks(), cuda=False) as launched:
        await launched.train(training())
        with suppress(ProcessLookupError):
            os.kill(lost[0], signal.SIGKILL)


async def test_ranks_are_asked_for_where_they_can_be(trainable: Path) -> None:
    with pytest.raises(RecipeError, match="trainer ranks need their own processes"):
        load_recipe(str(trainable), ["scale.trainer_ranks=2"])
    with pytest.raises(RecipeError, match="'rank_gpus' belongs to ray"):
        load_recipe(str(trainable), ["scale.use=process", "scale.trainer_ranks=2", "scale.rank_gpus=1"])
    with pytest.raises(RecipeError, match="nothing runs there"):
        load_recipe(str(trainable), ["scale.use=ray"])
    recipe = load_recipe(str(trainable), ["scale.use=process", "scale.trainer_ranks=2"])
    with pytest.raises(RecipeError, match="torchrun has started the ranks already"):
        async with trainer_ranks(recipe.scale, recipe.base, Ranks(rank=0, size=2), cuda=False):
            pass


class Meeting(ProcessLauncher):
    """Starts nothing until all ranks are asked for; then none starts."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.all = asyncio.Event()

    async def spawn(self, name: str, cls: type, *args: object) -> ProcessHandle:
        self.asked.append(name)
        if len(self.asked) == 2:
            self.all.set()
        await self.all.wait()
        raise WorkerDied("no room", place=name)


async def test_ranks_start_at_the_same_time(trainable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Meeting()

    async def open_launcher(*_: object) -> Meeting:
        return launcher

    monkeypatch.setattr("agentrl.distributed.ranks.open_launcher", open_launcher)
    recipe = load_recipe(str(trainable), ["scale.use=process", "scale.trainer_ranks=3"])
    with pytest.raises(RankDied, match=r"did not start: trainer rank \d: no room"):
        async with trainer_ranks(recipe.scale, recipe.base, Ranks(), cuda=False):
            pass
    assert launcher.asked == ["trainer rank 1", "trainer rank 2"]


@pytest.mark.slow
def test_a_reservation_imports_no_torch() -> None:
    code = "import sys, agentrl.distributed.ray_cluster as it; it.GpuReservation; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout == "False\n"
    )


GONE = RankUnreachable(
    "the other trainer ranks cannot be reached, waiting for the next call: connection closed by peer"
)


@pytest.mark.parametrize(
    ("follower", "raised"),
    [(GONE, RankDied), (None, RankDied), (RankFailed("out of memory, trainer.step"), RankFailed)],
    ids=["unreachable", "left", "out-of-memory"],
)
async def test_a_rank_whose_death_nobody_reports_died(
    monkeypatch: pytest.MonkeyPatch, follower: RankFailed | None, raised: type[Exception]
) -> None:
    """A cluster can report a lost node later than the collective fails: the training restarts all the same."""
    monkeypatch.setattr("agentrl.distributed.ranks.TOLD_S", 0.05)

    async def ends(error: Exception | None) -> None:
        if error is not None:
            raise error

    launched = LaunchedRanks(Ranks(), [asyncio.create_task(ends(follower))], restarts=1)
    with pytest.raises(raised) as caught:
        await launched.train(ends(GONE))
    assert type(caught.value) is raised
