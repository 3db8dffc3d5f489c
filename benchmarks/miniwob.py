"""Episodes a second of MiniWoB++'s click-test-2, ours beside BrowserGym's: `python -m benchmarks.miniwob`.

Ours is a whole rollout of recipes/miniwob: scheduler, eight episodes at a time, environment, oracle, record. BrowserGym
plays the same page, without a record, in as many processes as there are cores, one episode at a time each; it is
installed into an environment of its own. The two take turns: what else the machine does meets both. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from agentrl.api.rollout import rollout
from agentrl.store.run_dir import RunDir
from benchmarks.peers.venv import Missing, python_with

PEER = "browsergym-miniwob==0.14.3"
VENVS = Path("runs/venvs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=400, help="of ours")
    parser.add_argument("--peer-episodes", type=int, default=8, help="of each process of BrowserGym")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--venvs", type=Path, default=VENVS, help="where BrowserGym is installed")
    given = parser.parse_args()
    print(json.dumps(compare(given.episodes, given.peer_episodes, given.repeats, given.venvs)))


def compare(episodes: int = 400, peer_episodes: int = 8, repeats: int = 3, venvs: Path = VENVS) -> dict[str, Any]:
    """Medians of episodes a second of both, and their ratio."""
    try:
        peer: str | None = python_with(PEER, venvs)
    except Missing as why:
        print(f"BrowserGym is left out: {why}")
        peer = None
    mine, theirs = [], []
    for _ in range(repeats):
        mine.append(ours(episodes))
        theirs += [browsergym(peer, peer_episodes)] if peer else []
        print(f"click-test-2: agentrl {mine[-1]:.1f} episodes/s", f"BrowserGym {theirs[-1]:.2f}" if peer else "")
    rates = {"agentrl": statistics.median(mine), "browsergym": statistics.median(theirs) if theirs else None}
    times = rates["agentrl"] / rates["browsergym"] if rates["browsergym"] else None
    return {"episodes_per_s": rates, "times": times, "load": os.getloadavg()[0]}


def ours(episodes: int) -> float:
    """Episodes a second, with the start of the browser. Nearly all are solved, or the number is worth nothing."""
    overrides = [f"tasks.args={{families: click-test-2, seeds: {episodes}}}", "concurrency=8"]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        rollout("miniwob", episodes, agent="oracle", overrides=overrides, out=Path(folder) / "run", reporters=())
        seconds = time.perf_counter() - began
        with RunDir.read(Path(folder) / "run") as run:
            solved = sum(row.reward == 1.0 for row in run.rows())
    assert solved >= 0.97 * episodes, f"{solved} of {episodes} are solved"  # a button may lie all under the other
    return episodes / seconds


def browsergym(python: str, episodes: int) -> float:
    """Episodes a second of one process for each core, without the start of the browsers."""
    installed = importlib.util.find_spec("miniwob")
    assert installed is not None
    assert installed.origin is not None
    arm, pages = Path(__file__).parent / "browsergym_arm.py", Path(installed.origin).parent / "html"
    argv = [python, str(arm), str(episodes), str(pages)]
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(os.cpu_count() or 1)]
    told = [json.loads(each.communicate()[0].strip().splitlines()[-1]) for each in running]
    return sum(episodes / each["seconds"] for each in told)


if __name__ == "__main__":
    main()
