"""`agentrl train` on two trainer ranks: in turns and beside the trainer, with a critic, killed and begun again."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from agentrl.training.compute_thread import compute_of
from tests.command import python, sets
from tests.counting import metrics
from tests.sound import assert_sound

from .test_train_async import FLOW

SHORT = sets(
    "train.iterations=2", "eval={every: 1, episodes: 6}", "warm_start.steps=4", "warm_start.episodes=8",
    "credit={use: gae}", "train.critic={body: copy, steps: 2}",
)  # fmt: skip


def on_two_ranks(here: Path, *lives: tuple[list[Any] | None, tuple[str, ...]], beside: bool = False) -> list[list[int]]:
    """Trains once for each life; the exit codes of its ranks."""
    told = [
        json.dumps({"ranks": 2, "command": ["train", "counting", *more], "death": death, "beside": beside})
        for death, more in lives
    ]
    done = python("-m", "tests.commands.ranked", *told, cwd=here)
    codes = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(codes) == len(lives), done.stdout + done.stderr
    return codes


def in_order(run: Path) -> list[dict[str, Any]]:
    lines = [{k: v for k, v in line.items() if k not in FLOW} for line in metrics(run)]
    return sorted(lines, key=lambda line: (line["iteration"], line["split"]))


@pytest.mark.slow
def test_beside_the_trainer_killed_or_not_two_ranks_come_to_what_they_do_in_turns(
    trainable: Path, trained_model: Path
) -> None:
    here, short = trainable.parent, (*sets(f"model={{path: {trained_model}}}"), *SHORT)
    codes = on_two_ranks(here, (None, ("--out", "turns", *short)))
    codes += on_two_ranks(
        here,
        (None, ("--out", "beside", *short)),
        (["optimiser step", 4 + 3, True], ("--out", "killed", *short)),
        (None, ("--out", "killed", *short)),
        beside=True,
    )
    assert [each[0] for each in codes] == [0, 0, -9, 0]
    assert [each == [0, 0] for each in codes] == [True, True, False, True]
    turns = in_order(here / "turns")
    assert [(m["split"], m["iteration"]) for m in turns] == [
        ("eval", 0), *((split, k) for k in (1, 2) for split in ("eval", "train")), ("sft", 4)
    ]  # fmt: skip
    assert all(m["value_loss"] > 0 for m in turns if m["split"] == "train")
    assert in_order(here / "beside") == turns
    assert in_order(here / "killed") == turns
    assert_sound(here / "killed")


def test_the_event_loop_goes_on_while_several_ranks_compute_in_turns() -> None:
    """It sees that a rank died, when the collective that waits for that one does not."""
    told, threads = threading.Event(), []

    def waiting() -> bool:
        threads.append(threading.current_thread())
        return told.wait(60)

    async def main() -> bool:
        compute = compute_of(2)
        computing = asyncio.create_task(compute.call(waiting))
        await asyncio.sleep(0)
        told.set()
        heard = await computing
        await compute.close()
        return heard

    assert asyncio.run(main())
    threads[0].join(timeout=60)  # it says that it ends a moment before it does
    assert not threads[0].is_alive()
