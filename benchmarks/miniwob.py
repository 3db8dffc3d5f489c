"""Episodes a second of MiniWoB++'s click-test-2, ours and BrowserGym's: `python -m benchmarks.miniwob`.

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
import sys
import tempfile
import time
from pathlib import Path

from agentrl.api.rollout import rollout
from agentrl.store.run_dir import RunDir
from benchmarks.browser import must_have_chromium
from benchmarks.harness import ROOT, Benchmark, Missing, Report, Row
from benchmarks.peers.venv import python_of

PEER = "BrowserGym 0.14.3"


class Rate(Row):
    """Episodes a second, in each repeat."""

    arm: str
    episodes_per_s: list[float]


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Rate,
    kind="compare",
    beside=PEER,
    smoke={"episodes": 8, "repeats": 1},
    runs=("--episodes 200",),
    minutes=4,
    peers=("browsergym",),
)


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--episodes", type=int, default=400, help="of ours")
    parser.add_argument("--peer-episodes", type=int, default=8, help="of each process of BrowserGym")
    parser.add_argument("--repeats", type=int, default=3)
    return BENCHMARK.run(parser, measure)


def measure(given: argparse.Namespace, report: Report) -> None:
    must_have_chromium()
    if importlib.util.find_spec("miniwob") is None:
        raise Missing("no pages: pip install --no-deps miniwob")
    peer = None
    if given.smoke:
        report.leave_out(PEER)
    else:
        try:
            peer = python_of("browsergym")
        except Missing as why:
            report.miss(PEER, str(why))
    report.plan(given.repeats)
    mine, theirs = [], []
    for _ in range(given.repeats):
        mine.append(ours(given.episodes))
        theirs += [browsergym(peer, given.peer_episodes)] if peer else []
        print(f"click-test-2: agentrl {mine[-1]:.1f} episodes/s", f"BrowserGym {theirs[-1]:.2f}" if peer else "")
        report.done("repeats")
    report.row(Rate(arm="agentrl", episodes_per_s=mine))
    if theirs:
        report.row(Rate(arm=PEER, episodes_per_s=theirs))
        medians = [(name, statistics.median(rates)) for name, rates in (("agentrl", mine), (PEER, theirs))]
        report.ratio("episodes/s of click-test-2", *medians)


def ours(episodes: int) -> float:
    """Episodes a second, with the start of the browser. Nearly all are solved, or the number is worth nothing."""
    overrides = [f"tasks.args={{families: click-test-2, seeds: {episodes}}}", "concurrency=8"]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        rollout("miniwob", episodes, script="oracle", overrides=overrides, out=Path(folder) / "run", reporters=())
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
    arm, pages = ROOT / "benchmarks" / "peers" / "browsergym_arm.py", Path(installed.origin).parent / "html"
    argv = [python, "-P", str(arm), str(episodes), str(pages)]
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(os.cpu_count() or 1)]
    told = [json.loads(each.communicate()[0].strip().splitlines()[-1]) for each in running]
    return sum(episodes / float(each["seconds"]) for each in told)


if __name__ == "__main__":
    sys.exit(main())
