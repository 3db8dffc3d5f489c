"""`python -m benchmarks.runner`: what an episode runner costs, ours and a peer's, side by side in one run.

A mock model server in a process of its own answers at once or after 50 ms. Every arm plays the same episodes in a
process of its own, so that its CPU seconds are its own; the arms of a scenario run one after another. The last line is
JSON.

The latency bound is the time that the model alone would take: turns x latency, when all episodes are in flight at once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers.tokenizer import tokenizer_in
from benchmarks.peers.venv import Missing, python_with

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "benchmarks"
VERIFIERS = "verifiers==0.4.0"
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

ARMS = {  # name: (module, its arguments, what must be installed for it)
    "bare aiohttp": ("bare_arm", [], None),
    "agentrl": ("agentrl_arm", [], None),
    "verifiers": ("verifiers_arm", ["eval"], VERIFIERS),
    "verifiers, TrainClient": ("verifiers_arm", ["train"], VERIFIERS),
}

Rows = dict[tuple[str, str], dict[str, Any]]


@contextmanager
def mock_server(tokenizer: Path, turns: int, latency_s: float) -> Iterator[str]:
    """The URL of a mock server of its own process."""
    argv = [sys.executable, "-m", "benchmarks.mock_server", "--tokenizer", str(tokenizer)]
    argv += ["--turns", str(turns), "--latency", str(latency_s)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.stdin.close()
            server.wait(timeout=30)


def play(arm: str, scenario: Scenario, url: str, tokenizer: Path, out: Path) -> dict[str, Any]:
    """What an arm measured of itself, and what follows from it.

    Raises:
        Missing: it cannot run here, or did not finish its episodes rightly.
    """
    module, more, package = ARMS[arm]
    python = sys.executable if package is None else python_with(package, BUILD / "venvs")
    argv = [python, "-m", f"benchmarks.peers.{module}", *more, "--url", url, "--tokenizer", str(tokenizer)]
    argv += ["--out", str(out), "--episodes", str(scenario.episodes), "--turns", str(scenario.turns)]
    argv += ["--concurrency", str(scenario.concurrency), "--warmup", str(WARMUP)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    ran = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    if ran.returncode != 0:
        raise Missing(f"it failed: {ran.stderr.strip()[-600:]}")
    row: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    if row["right"] != scenario.episodes:
        raise Missing(f"{row['right']} of {scenario.episodes} episodes ended rightly")
    turns = scenario.episodes * scenario.turns
    return {
        **row,
        "cpu_ms_turn": 1e3 * row["cpu_s"] / turns,
        "episodes_s": scenario.episodes / row["wall_s"],
        "bound_ratio": row["wall_s"] / scenario.bound_s if scenario.bound_s else None,
        "grown_kb_episode": row["grown_bytes"] / min(scenario.episodes, scenario.concurrency) / 1024,
    }


def measure(scenarios: list[Scenario], arms: list[str], rounds: int, say: Console) -> tuple[Rows, dict[str, str]]:
    """The best of `rounds` by arm and scenario (least CPU: the rest is other people's work), and who could not run."""
    rows: Rows = {}
    missing: dict[str, str] = {}
    tokenizer = tokenizer_in(BUILD / "tokenizer")
    for scenario in scenarios:
        with (
            mock_server(tokenizer, scenario.turns, scenario.latency_s) as url,
            tempfile.TemporaryDirectory(prefix="agentrl-benchmark-") as folder,
        ):
            for number in range(rounds):
                for arm in arms:
                    if arm in missing or (ARMS[arm][2] is not None and not scenario.peers):
                        continue
                    out = Path(folder) / f"{list(ARMS).index(arm)}-{number}"
                    try:
                        row = play(arm, scenario, url, tokenizer, out)
                        if ARMS[arm][0] == "agentrl_arm":
                            check_run(out)
                    except (Missing, subprocess.TimeoutExpired) as error:
                        missing[arm] = f"{scenario.name}: {error}"
                        continue
                    best = rows.get((scenario.name, arm))
                    if best is None or row["cpu_s"] < best["cpu_s"]:
                        rows[scenario.name, arm] = row
        say.print(table(scenario, rows, arms))
    return rows, missing


def check_run(out: Path) -> None:
    """Has `agentrl check` look at what was stored.

    Raises:
        Missing: it found something.
    """
    argv = [sys.executable, "-m", "agentrl.cli", "check", str(out)]
    ran = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise Missing(f"agentrl check: {(ran.stdout + ran.stderr).strip()[-600:]}")


def table(scenario: Scenario, rows: Rows, arms: list[str]) -> Table:
    """One scenario for people."""
    head = f"{scenario.episodes:,} episodes x {scenario.turns} turns, {scenario.concurrency:,} at once"
    made = Table(title=f"{head}, model latency {1e3 * scenario.latency_s:g} ms", title_justify="left")
    for name in ("", "CPU ms a turn", "episodes/s", "x latency bound", "KB an episode in flight", "MB stored"):
        made.add_column(name, justify="left" if not name else "right")
    for arm in arms:
        if (row := rows.get((scenario.name, arm))) is not None:
            bound = "" if row["bound_ratio"] is None else f"{row['bound_ratio']:.2f}"
            made.add_row(
                arm,
                f"{row['cpu_ms_turn']:.3f}",
                f"{row['episodes_s']:.1f}",
                bound,
                f"{row['grown_kb_episode']:.1f}",
                f"{row['stored_bytes'] / 1e6:.2f}",
            )
    return made


def budgets(rows: Rows) -> list[dict[str, Any]]:
    """What was promised, and whether it holds."""
    found = []

    def at_most(what: str, scenario: str, value: float | None, limit: float) -> None:
        if value is not None:
            row = {"what": what, "scenario": scenario, "value": round(value, 3), "at_most": limit}
            found.append({**row, "kept": value <= limit})

    for scenario in ("0 ms", "50 ms", "30 turns"):
        if ours := rows.get((scenario, "agentrl")):
            at_most("CPU ms a turn", scenario, ours["cpu_ms_turn"], 0.5)
            peer = rows.get((scenario, "verifiers, TrainClient"))
            share = ours["cpu_ms_turn"] / peer["cpu_ms_turn"] if peer else None
            at_most("CPU a turn, of verifiers' TrainClient path", scenario, share, 0.1)
    if ours := rows.get(("50 ms", "agentrl")):
        at_most("wall, of the latency bound", "50 ms", ours["bound_ratio"], 2.5)
    few, many = rows.get(("1,000 at 1 s", "agentrl")), rows.get(("10,000 at 1 s", "agentrl"))
    if few and many:
        share = many["grown_kb_episode"] / few["grown_kb_episode"]
        at_most("memory an episode: 10,000 in flight, of 1,000", "10,000 at 1 s", share, 1.1)
    return found


def main() -> int:
    """Runs the scenarios; 1 if a budget is exceeded or an arm could not run."""
    parser = argparse.ArgumentParser(description="What an episode runner costs, ours and a peer's.")
    parser.add_argument("--only", action="append", choices=[s.name for s in SCENARIOS], help="a scenario; repeatable")
    parser.add_argument("--arm", action="append", choices=list(ARMS), help="an arm; repeatable")
    parser.add_argument("--rounds", type=int, default=2, help="the best of so many is taken (default 2)")
    options = parser.parse_args()
    arms = options.arm or list(ARMS)
    say = Console(width=120)
    chosen = [scenario for scenario in SCENARIOS if not options.only or scenario.name in options.only]
    rows, missing = measure(chosen, arms, options.rounds, say)
    for arm, reason in missing.items():
        say.print(f"{arm} could not run: {reason}", markup=False)
    found = budgets(rows)
    for budget in found:
        word = "kept" if budget["kept"] else "EXCEEDED"
        say.print(f"{word:9}{budget['what']} ({budget['scenario']}): {budget['value']} of {budget['at_most']}")
    result = {
        "benchmark": "runner",
        "machine": {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "python": platform.python_version()},
        "rows": [{"scenario": scenario, "arm": arm, **row} for (scenario, arm), row in rows.items()],
        "budgets": found,
        "missing": missing,
    }
    print(json.dumps(result))
    return int(bool(missing) or not all(budget["kept"] for budget in found))


if __name__ == "__main__":
    raise SystemExit(main())
