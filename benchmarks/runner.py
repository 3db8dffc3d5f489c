"""Cost of an episode runner, ours and a peer's: `python -m benchmarks.runner`.

A mock model server in a process of its own answers at once or after 50 ms. Every arm plays the same episodes in a
process of its own, so that its CPU seconds are its own; the arms of a scenario run one after another. The last line is
JSON.

`--profile` plays the first scenario once under a profiler and shows where a turn of ours goes.

`--beside CHECKOUT` compares with another commit: both play the first scenario at the same time, each on a core of its
own, and swap the cores in every round. What else the machine does then costs both the same.

The latency bound is the time that the model alone would take: turns x latency, when all episodes are in flight at once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pstats
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.harness import ROOT, Benchmark, Missing, Report, Row
from benchmarks.peers.tokenizer import tokenizer_in
from benchmarks.peers.venv import python_of

BUILD = ROOT / "build" / "benchmarks"
WARMUP = 16


@dataclass(frozen=True)
class Scenario:
    """So many episodes of so many turns, with a model that takes so long.

    Attributes:
        peers: whether the peer plays too, or only the floor and we.
    """

    name: str
    episodes: int
    turns: int
    concurrency: int
    latency_s: float
    peers: bool = True

    @property
    def bound_s(self) -> float:
        """Seconds that the model alone takes."""
        return self.turns * self.latency_s * self.episodes / self.concurrency


SCENARIOS = (
    Scenario("0 ms", 256, 5, 256, 0.0),
    Scenario("50 ms", 256, 5, 256, 0.05),
    Scenario("30 turns", 64, 30, 64, 0.0),
    Scenario("1,000 at 1 s", 1_000, 3, 1_000, 1.0, peers=False),
    Scenario("10,000 at 1 s", 10_000, 3, 10_000, 1.0, peers=False),
)
SMOKE = Scenario("smoke", 6, 3, 3, 0.01)

ARMS = {  # name: (module, its arguments, the peer that must be installed for it)
    "bare aiohttp": ("bare_arm", [], None),
    "agentrl": ("agentrl_arm", [], None),
    "verifiers": ("verifiers_arm", ["eval"], "verifiers"),
    "verifiers, TrainClient": ("verifiers_arm", ["train"], "verifiers"),
}


class Played(Row):
    """An arm's best round in a scenario, and what follows from it: `bound_ratio` is its time in that of the model."""

    scenario: str
    arm: str
    wall_s: float
    cpu_s: float
    right: int
    stored_bytes: int
    grown_bytes: int
    peak_bytes: int
    cpu_ms_turn: float
    episodes_s: float
    bound_ratio: float | None
    grown_kb_episode: float


PARTS = {  # of a turn: the file and the name of the function that does it, all that it calls included
    "render the prompt: the chat template, tokens, their proof": ("agentrl/chat/thread.py", "prompt"),
    "of it, the chat template itself": ("jinja2/environment.py", "render"),
    "ask the engine: JSON, choice of a server, checks of the reply": ("agentrl/types/engine.py", "sample"),
    "of it, aiohttp": ("aiohttp/client.py", "__aenter__"),
    "read the reply: text of its tokens, calls in it, faults": ("agentrl/chat/renderer.py", "read"),
    "run the calls": ("rollouts/conversation/calls.py", "run"),
    "score the episode": ("agentrl/rollouts/attempt.py", "score"),
    "store the episode": ("rollouts/groups/stored.py", "keep"),
}


class Failed(Exception):
    """An arm did something wrong."""


Rows = dict[tuple[str, str], Played]

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Played,
    kind="compare",
    beside="verifiers 0.4.0, and bare aiohttp",
    smoke={"rounds": 1},
    runs=("--rounds 1",),
    minutes=7,
    peers=("verifiers",),
)


@contextmanager
def mock_server(tokenizer: Path, turns: int, latency_s: float) -> Iterator[str]:
    """The URL of a mock server of its own process."""
    argv = [sys.executable, "-m", "benchmarks.peers.mock_server", "--tokenizer", str(tokenizer)]
    argv += ["--turns", str(turns), "--latency", str(latency_s)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.stdin.close()
            server.wait(timeout=30)


def play(
    arm: str, scenario: Scenario, url: str, tokenizer: Path, out: Path, root: Path = ROOT, core: int | None = None
) -> Played:
    """What an arm measured of itself, and what follows from it.

    Args:
        root: the checkout whose code plays.
        core: the only one that it uses.

    Raises:
        Missing: it cannot be installed.
        Failed: it did not finish its episodes rightly.
    """
    module, more, peer = ARMS[arm]
    python = sys.executable if peer is None else python_of(peer)
    argv = [python, "-m", f"benchmarks.peers.{module}", *more, "--url", url, "--tokenizer", str(tokenizer)]
    argv += ["--out", str(out), "--episodes", str(scenario.episodes), "--turns", str(scenario.turns)]
    argv += ["--concurrency", str(scenario.concurrency), "--warmup", str(WARMUP)]
    if core is not None:
        argv = ["taskset", "-c", str(core), *argv]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if root != ROOT:
        environment["PYTHONPATH"] = str(root)
    ran = subprocess.run(argv, cwd=root, env=environment, capture_output=True, text=True, timeout=900, check=False)
    if ran.returncode != 0:
        raise Failed(f"it failed: {ran.stderr.strip()[-600:]}")
    row: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    if row["right"] != scenario.episodes:
        raise Failed(f"{row['right']} of {scenario.episodes} episodes ended rightly")
    turns = scenario.episodes * scenario.turns
    return Played(
        **row,
        scenario=scenario.name,
        arm=arm,
        cpu_ms_turn=1e3 * row["cpu_s"] / turns,
        episodes_s=scenario.episodes / row["wall_s"],
        bound_ratio=row["wall_s"] / scenario.bound_s if scenario.bound_s else None,
        grown_kb_episode=row["grown_bytes"] / min(scenario.episodes, scenario.concurrency) / 1024,
    )


def measure(scenarios: list[Scenario], arms: list[str], rounds: int, say: Console, report: Report) -> Rows:
    """The best of `rounds` by arm and scenario (least CPU: the rest is other people's work)."""
    rows: Rows = {}
    cannot: set[str] = set()
    jobs = [(each, arm) for each in scenarios for arm in arms if each.peers or ARMS[arm][2] is None]
    report.plan(rounds * len(jobs))
    tokenizer = tokenizer_in(BUILD / "tokenizer")
    for scenario in scenarios:
        with (
            mock_server(tokenizer, scenario.turns, scenario.latency_s) as url,
            tempfile.TemporaryDirectory(prefix="agentrl-benchmark-") as folder,
        ):
            for number, arm in itertools.product(range(rounds), [arm for each, arm in jobs if each == scenario]):
                out = Path(folder) / f"{list(ARMS).index(arm)}-{number}"
                try:
                    if arm not in cannot:
                        row = play(arm, scenario, url, tokenizer, out)
                        best = rows.setdefault((scenario.name, arm), row)
                        rows[scenario.name, arm] = min(best, row, key=lambda each: each.cpu_s)
                        if ARMS[arm][0] == "agentrl_arm":
                            check_run(out)
                except Missing as why:
                    report.miss(arm, str(why))
                    cannot.add(arm)
                except (Failed, subprocess.TimeoutExpired) as error:
                    report.problem(f"{arm}, {scenario.name}: {error}")
                    cannot.add(arm)
                report.done(f"{scenario.name}: {arm}")
        say.print(table(scenario, rows, arms))
    return rows


def check_run(out: Path) -> None:
    """Has `agentrl check` look at what was stored.

    Raises:
        Failed: it found something.
    """
    argv = [sys.executable, "-m", "agentrl.cli", "check", str(out)]
    ran = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise Failed(f"agentrl check: {(ran.stdout + ran.stderr).strip()[-600:]}")


def beside(checkout: Path, scenario: Scenario, rounds: int, say: Console, report: Report) -> None:
    """Plays a scenario in this checkout and in another one, both at the same time."""
    tokenizer, roots, cores = tokenizer_in(BUILD / "tokenizer"), (ROOT, checkout), sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        report.miss("another commit", "it needs two cores")
        return
    report.plan(rounds)
    pairs: list[list[Played]] = []
    with (
        mock_server(tokenizer, scenario.turns, scenario.latency_s) as ours,
        mock_server(tokenizer, scenario.turns, scenario.latency_s) as theirs,
        tempfile.TemporaryDirectory(prefix="agentrl-benchmark-") as folder,
        ThreadPoolExecutor(2) as both,
    ):
        for number in range(rounds):
            started = [
                both.submit(play, "agentrl", scenario, url, tokenizer, Path(folder) / f"{number}-{k}", root, core)
                for k, (url, root, core) in enumerate(
                    zip((ours, theirs), roots, cores[:: 1 if number % 2 else -1], strict=True)
                )
            ]
            pairs.append([each.result() for each in started])
            report.done(f"round {number}")
    ratios = sorted(mine.cpu_s / other.cpu_s for mine, other in pairs)
    say.print(f"CPU of a turn in that of {checkout}, by round: {' '.join(f'{each:.3f}' for each in ratios)}")
    mine, other = (sum(pair[k].cpu_ms_turn for pair in pairs) / rounds for k in (0, 1))
    for k, name in enumerate(("agentrl", str(checkout))):
        report.row(msgspec.structs.replace(min((pair[k] for pair in pairs), key=lambda each: each.cpu_s), arm=name))
    report.ratio(f"CPU ms a turn, {scenario.name}", ("agentrl", mine), (str(checkout), other))


def table(scenario: Scenario, rows: Rows, arms: list[str]) -> Table:
    """One scenario for people."""
    head = f"{scenario.episodes:,} episodes x {scenario.turns} turns, {scenario.concurrency:,} at once"
    made = Table(title=f"{head}, model latency {1e3 * scenario.latency_s:g} ms", title_justify="left")
    for name in ("", "CPU ms a turn", "episodes/s", "x latency bound", "KB an episode in flight", "MB stored"):
        made.add_column(name, justify="left" if not name else "right")
    for arm in arms:
        if (row := rows.get((scenario.name, arm))) is not None:
            made.add_row(
                arm,
                f"{row.cpu_ms_turn:.3f}",
                f"{row.episodes_s:.1f}",
                "" if row.bound_ratio is None else f"{row.bound_ratio:.2f}",
                f"{row.grown_kb_episode:.1f}",
                f"{row.stored_bytes / 1e6:.2f}",
            )
    return made


def profile(say: Console) -> None:
    """Shows the share of each part in the CPU time of a turn. The profiler makes small functions look dearer."""
    scenario, tokenizer = SCENARIOS[0], tokenizer_in(BUILD / "tokenizer")
    with (
        mock_server(tokenizer, scenario.turns, scenario.latency_s) as url,
        tempfile.TemporaryDirectory(prefix="agentrl-benchmark-") as folder,
    ):
        os.environ["PROFILE"] = stats = str(Path(folder) / "stats")
        play("agentrl", scenario, url, tokenizer, Path(folder) / "run")
        found: dict[tuple[str, int, str], Any] = pstats.Stats(stats).stats  # type: ignore[attr-defined]
    total = sum(own for _, _, own, _, _ in found.values())
    made = Table(title=f"A turn, {scenario.name}", title_justify="left")
    made.add_column("part")
    made.add_column("share", justify="right")
    for part, (file, function) in PARTS.items():
        inclusive = [each[3] for (at, _, name), each in found.items() if at.endswith(file) and name == function]
        made.add_row(part, f"{100 * max(inclusive) / total:.0f} %")
    calls = sum(each[1] for each in found.values())
    made.add_row("function calls a turn", f"{calls / scenario.episodes / scenario.turns:,.0f}")
    say.print(made)


def compare(rows: Rows, report: Report) -> None:
    """Ratios to the other arms, and promises."""
    for (scenario, arm), row in rows.items():
        report.row(row)
        if (ours := rows.get((scenario, "agentrl"))) and arm != "agentrl":
            report.ratio(f"CPU ms a turn, {scenario}", ("agentrl", ours.cpu_ms_turn), (arm, row.cpu_ms_turn))
    for scenario in ("0 ms", "50 ms", "30 turns"):
        if ours := rows.get((scenario, "agentrl")):
            if bare := rows.get((scenario, "bare aiohttp")):
                share = ours.cpu_ms_turn / bare.cpu_ms_turn
                report.budget(f"CPU of a turn, {scenario}, in that of bare aiohttp", share, at_most=5.0)
            if peer := rows.get((scenario, "verifiers, TrainClient")):
                share = ours.cpu_ms_turn / peer.cpu_ms_turn
                report.budget(f"CPU of a turn, {scenario}, in that of verifiers' TrainClient", share, at_most=0.1)
    if (ours := rows.get(("50 ms", "agentrl"))) and (bare := rows.get(("50 ms", "bare aiohttp"))):
        report.budget("seconds, 50 ms, in those of bare aiohttp", ours.wall_s / bare.wall_s, at_most=2.5)
    few, many = rows.get(("1,000 at 1 s", "agentrl")), rows.get(("10,000 at 1 s", "agentrl"))
    if few and many:
        share = many.grown_kb_episode / few.grown_kb_episode
        report.budget("memory of an episode, 10,000 in flight in that of 1,000", share, at_most=1.1)


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--only", action="append", choices=[s.name for s in SCENARIOS], help="a scenario; repeatable")
    parser.add_argument("--arm", action="append", choices=list(ARMS), help="an arm; repeatable")
    parser.add_argument("--rounds", type=int, default=2, help="the best of so many is taken (default 2)")
    parser.add_argument("--beside", type=Path, help="a checkout of another commit to compare with")
    parser.add_argument("--profile", action="store_true", help="show where a turn of ours goes, and measure nothing")
    if "--profile" in sys.argv:
        profile(Console(width=120))
        return 0
    return BENCHMARK.run(parser, measure_all)


def measure_all(given: argparse.Namespace, report: Report) -> None:
    if given.beside is not None:
        beside(given.beside.resolve(), SCENARIOS[0], given.rounds, Console(width=120), report)
        return
    arms = given.arm or list(ARMS)
    chosen = [scenario for scenario in SCENARIOS if not given.only or scenario.name in given.only]
    if given.smoke:
        chosen = [SMOKE]
        for arm in [arm for arm in arms if ARMS[arm][2]]:
            arms.remove(arm)
            report.leave_out(arm)
    compare(measure(chosen, arms, given.rounds, Console(width=120), report), report)
    if given.smoke:
        beside(ROOT, SMOKE, 1, Console(width=120), report)


if __name__ == "__main__":
    sys.exit(main())
