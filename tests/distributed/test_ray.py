"""A real Ray cluster of several nodes on this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.rollout import rollout
from agentrl.config.scale import ScaleSettings
from agentrl.distributed import pulse
from agentrl.distributed.handle import ResourceRequest, WorkerDied
from agentrl.distributed.ray_cluster import RayLauncher
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import AgentRLError
from tests.counting import metrics
from tests.meanwhile import when
from tests.sound import assert_sound
from tests.waiting import stop, wait_for_end

from .conftest import train_on_two_ranks
from .test_pulse import Works
from .test_trainer_ranks import command, run
from .test_worker_pool import contents

pytestmark = [pytest.mark.slow, pytest.mark.family("distributed")]

SMALL = 80 << 20
"""Bytes of a node's object store: about the least that Ray takes."""

WORKERS = 2


START_S = 120
"""Patience with a node that starts: Ray's own 30 s are short where others load the machine."""


def add_node(cluster: Any) -> None:
    cluster.add_node(wait=False, num_cpus=2, num_gpus=1, object_store_memory=SMALL)  # Ray only counts GPUs
    cluster.wait_for_nodes(START_S)


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    """A head without CPUs, and a node for each worker, with room for one more: who dies, dies with a node."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": SMALL, "include_dashboard": False},
    )
    try:
        for _ in range(WORKERS):
            add_node(made)
        ray.init(address=made.address, log_to_driver=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def raylet(node: Any) -> int:
    """Number of the process that starts the workers of a node."""
    return int(node.all_processes["raylet"][0].process.pid)


def parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("PPid:")[1].split()[0])


ON_RAY = ["scale.use=ray", f"scale.rollout_workers={WORKERS}"]


def test_a_node_that_is_killed_costs_no_episode(cluster, counting: Path) -> None:  # type: ignore[no-untyped-def]
    here, recipe = counting.parent, str(counting)
    run = here / "run"

    def half_done() -> bool:
        return len([*counting.glob("waits-*")]) == 12

    def kill() -> None:
        worker = int(next(counting.glob("waits-*")).read_text())
        (node,) = [each for each in cluster.worker_nodes if raylet(each) == parent(worker)]
        cluster.remove_node(node, allow_graceful=False)
        wait_for_end(worker)  # a moment after its node; it must not see `go`
        (counting / "go").touch()

    with when(half_done, kill):
        rollout(recipe, 24, overrides=[*ON_RAY, "tools=[./task.py:Gated]", "concurrency=24"], script="oracle", out=run)
    add_node(cluster)
    with RunDir.read(run) as reader:
        rows, failures = reader.rows(), reader.failures()
    assert len(rows) == 24
    assert {(row.status, row.reward) for row in rows} == {("done", 1.0)}
    assert failures, "the node died in the middle of episodes"
    assert {failure["kind"] for failure in failures} == {"WorkerDied"}
    assert len({failure["message"].split(":")[0] for failure in failures}) == 1, "only its worker died"
    assert_sound(run)


def test_trainer_ranks_on_a_cluster_outlive_a_node(cluster, trainable: Path) -> None:  # type: ignore[no-untyped-def]
    from ray.util import placement_group_table

    here, held = trainable.parent, ("--set", "train.iterations=2", "--set", "tools=[./task.py:Held]")
    train_on_two_ranks(trainable, "alone", "train.iterations=2")
    first = here / "ray" / "checkpoints" / "it-00001"

    def kill() -> None:
        groups = [each for each in placement_group_table().values() if each["state"] == "CREATED"]
        ranks = next(each for each in groups if len(each["bundles"]) == 2)
        doomed = ranks["bundles_to_node_id"][1]
        (node,) = [each for each in cluster.worker_nodes if each.node_id == doomed]
        cluster.remove_node(node, allow_graceful=False)

    more = ("scale.use=ray", f"scale.address={cluster.address}", "scale.trainer_ranks=2", "scale.rank_gpus=0.5")
    settings = (part for each in more for part in ("--set", each))
    with when(first.exists, kill):
        done = run(command(trainable, "ray", *held, *settings), HOLD=str(first))
    add_node(cluster)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "restarting from the last checkpoint" in done.stderr
    assert metrics(here / "ray") == metrics(here / "alone")


def test_ray_plays_what_the_driver_would(cluster, counting: Path) -> None:  # type: ignore[no-untyped-def]
    here, recipe = counting.parent, str(counting)
    two = ["scale.use=ray", "scale.rollout_workers=2"]
    for out, overrides in (("alone", []), ("ray", two)):
        rollout(recipe, 16, overrides=overrides, script="hasty", out=here / out)
    assert contents(here / "ray") == contents(here / "alone")
    assert_sound(here / "ray")


async def test_an_actor_that_is_frozen_is_killed_and_its_place_is_free(cluster, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(pulse, "PING_S", 0.05)
    monkeypatch.setattr(pulse, "SILENT_S", 5.0)
    launcher = RayLauncher(ScaleSettings(use="ray"), ResourceRequest("scale.rollout_workers", count=1))
    await launcher.open()
    handle = await launcher.spawn("frozen", Works)
    waits = asyncio.create_task(handle.call("waits"))
    assert await handle.call("blocks", 0.5) == "done"
    pid = await handle.call("where")
    stop(pid)
    with pytest.raises(WorkerDied, match="frozen: its process did not answer for 5 s, and was killed"):
        await waits
    with pytest.raises(WorkerDied, match="did not answer"):
        await handle.call("where")
    await handle.close()
    wait_for_end(pid)
    again = await launcher.spawn("again", Works)
    assert await again.call("where") != pid
    await again.close()
    await launcher.close()


def test_too_many_workers_for_the_cluster_are_refused(cluster, counting: Path) -> None:  # type: ignore[no-untyped-def]
    many = ["scale.use=ray", "scale.rollout_workers=50", "scale.start_s=2"]
    with pytest.raises(
        AgentRLError,
        match=r"scale.rollout_workers: not enough resources on the cluster: 50 with 1 CPUs each are requested",
    ):
        rollout(counting, 2, overrides=many, script="oracle", out=counting.parent / "run")
