"""Real vLLM servers that a training places on a real Ray cluster, one of whose nodes is killed: `make test-vllm`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from agentrl.api.train import train as train_recipe
from agentrl.config.loader import load_recipe
from agentrl.store.run_dir import RunDir
from tests.counting import CODE
from tests.engines.vllm_learning import LEARNING
from tests.engines.vllm_world import PYTHON, small_model, tokens_sampled
from tests.sound import assert_sound
from tests.waiting import until

from .test_ray import SMALL

pytestmark = [
    pytest.mark.family("vllm"),
    pytest.mark.timeout(900),
]

ITERATIONS = 6
MARK = "AGENTRL_TEST"

HELD = """

from pathlib import Path

class Held(Counter):
    async def open(self, task, sandbox):
        await super().open(task, sandbox)
        while (Path(__file__).parent / "hold").exists(): await asyncio.sleep(0.05)
"""


def test_servers_on_a_cluster_are_trained_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv(MARK, str(tmp_path))
    import ray
    from ray.cluster_utils import Cluster
    from ray.util import placement_group_table

    caplog.set_level("INFO", logger="agentrl.distributed.servers")
    small_model(tmp_path / "model")
    (tmp_path / "task.py").write_text(CODE + HELD)
    (tmp_path / "recipe.yaml").write_text(LEARNING)
    run = tmp_path / "run"
    recipe = load_recipe(
        str(tmp_path),
        [
            f"model={{path: {tmp_path / 'model'}}}",
            f"engine={{use: vllm, python: {PYTHON}, replicas: 2}}",
            "scale={use: ray, rollout_workers: 1}",
            "tools=[./task.py:Held]",
            "limits.open_s=500",
            "warm_start={script: hasty, episodes: 60, steps: 150, batch: 8, lr: 2.0e-3}",
            f"train={{iterations: {ITERATIONS}, groups: 4, group_size: 4, lr: 1.0e-3, minibatch: 16}}",
        ],
    )
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": SMALL, "include_dashboard": False},
    )
    served = []

    def kill_a_server_and_wait_for_another() -> None:
        until(lambda: (run / "checkpoints" / "it-00001").exists())
        (tmp_path / "hold").touch()  # episodes wait, so that training is not over before the new server is there
        groups = [each for each in placement_group_table().values() if each["state"] == "CREATED"]
        servers = next(each for each in groups if len(each["bundles"]) == 2)
        (node,) = [each for each in cluster.worker_nodes if each.node_id == servers["bundles_to_node_id"][0]]
        cluster.remove_node(node, allow_graceful=False)
        try:
            until(lambda: caplog.text.count("listens at") == 3)
        finally:
            (tmp_path / "hold").unlink()
        url = caplog.text.split("listens at ")[3].split()[0]
        until(lambda: tokens_sampled(url) > 0)
        served.append(url)

    try:
        for _ in range(4):
            cluster.add_node(num_cpus=1, object_store_memory=SMALL)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        killer = threading.Thread(target=kill_a_server_and_wait_for_another, daemon=True)
        killer.start()
        train_recipe(recipe, out=run)
        killer.join(timeout=10)
    finally:
        ray.shutdown()
        cluster.shutdown()
    until(lambda: not left_behind(tmp_path))
    assert served, "the new server samples, too, after the update that follows"
    with RunDir.read(run) as reader:
        lines = [line for line in reader.metrics() if line["split"] == "train"]
        versions = {
            (episode.iteration, span.version)
            for episode in reader.episodes(split="train")
            for node in episode.nodes
            for span in node.versions
        }
    assert [line["iteration"] for line in lines] == list(range(1, ITERATIONS + 1))
    assert any(line["grad_norm"] > 0 for line in lines)
    assert versions == {(k, k) for k in range(ITERATIONS)}, "every token is of the newest weights"
    assert max(line["mismatch_max"] for line in lines) < 1e-3, "which the engine's log-probabilities show"
    assert_sound(run)


def left_behind(mark: Path) -> list[str]:
    """Processes that the test has started: those of the server whose node was killed, too."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append((process / "comm").read_text())
        except OSError:
            continue
    return found
