"""Response times of the viewer on a large run: `python -m benchmarks.view`.

A synthetic run is written, `agentrl view` serves it as a process of its own, and requests go through HTTP, as those of
the page. Told are the medians and the slowest of each request, the memory of the server, and the time to index all
texts. With playwright and Chromium, the time until rows and curves are on the screen, too. The last line is JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from agentrl.tools.builtin.web.launching import Launch, find_chromium
from agentrl.types.errors import AgentRLError
from agentrl.types.stdlib import piped
from benchmarks.harness import Benchmark, Report, Row
from benchmarks.large_run import RARE, ready


class Request(Row):
    """Times of a request in ms.

    Attributes:
        cpu_ms: mean processor time of the server, which does not depend on what else the machine does.
    """

    request: str
    median_ms: float
    slowest_ms: float
    cpu_ms: float
    kilobytes: float


class Sizes(Row):
    """The run, and what the viewer takes for it.

    Attributes:
        opened_ms: from the first request until 50 rows and all curves have arrived, before anything was indexed.
        index_s: time to index all texts.
        server_mib: resident memory at most, before and after that.
    """

    episodes: int
    turns: int
    run_mib: float
    index_mib: float
    opened_ms: float
    index_s: float
    server_mib: float
    indexed_server_mib: float


class OnScreen(Row):
    """Milliseconds in Chromium from the URL until something is drawn."""

    what: str
    ms: float


BENCHMARK = Benchmark(
    file=__file__,
    about=__doc__,
    rows=Request | Sizes | OnScreen,
    kind="measure",
    beside="its own promises",
    smoke={"episodes": 100, "repeats": 2},
)

_LONG_MS = 600_000
"""For what shall appear on the screen: the limit only ends a hang."""

_REQUESTS: dict[str, tuple[str, Mapping[str, Any], float]] = {
    "50 rows": ("episodes", {"limit": 50}, 300),
    "50 rows, sorted by reward": ("episodes", {"limit": 50, "sort": "reward", "desc": 1}, 300),
    "50 rows in the middle": ("episodes", {"limit": 50, "offset": 20_000}, 300),
    "filter: reward": ("episodes", {"reward_max": 0.5, "limit": 50}, 300),
    "filter: failures": ("episodes", {"error": "any", "limit": 50}, 300),
    "filter: iterations and turns": ("episodes", {"iteration_min": 3, "turns_min": 10, "limit": 50}, 300),
    "filter: tool": ("episodes", {"tool": "search", "limit": 50}, 300),
    "filter: component": ("episodes", {"component": "exact_match", "component_min": 1, "limit": 50}, 300),
    "filter: full text": ("episodes", {"q": RARE, "limit": 50}, 300),
    "full text: a rare word": ("search", {"q": RARE}, 300),
    "full text: a beginning": ("search", {"q": "ab*"}, 300),
    "curves": ("metrics", {}, 300),
    "head": ("head", {}, 1000),
    "facets": ("facets", {}, 1000),
    "updates": ("updates", {}, 300),
}
"""Each request: its endpoint, its parameters, and the promised time in ms."""


def main() -> int:
    """Measures."""
    parser = BENCHMARK.parser()
    parser.add_argument("--episodes", type=int, default=50_000)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--run", type=Path, help="a run that an earlier call has written")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks/view"))
    return BENCHMARK.run(parser, measure)


def measure(given: argparse.Namespace, report: Report) -> None:
    """Writes the run, and asks the viewer."""
    if given.run is None:
        report.say(f"writing {given.episodes} episodes of {given.turns} turns, unless they are there")
    path = given.run.resolve() if given.run else ready(given.out, given.episodes, given.turns)
    report.plan(len(_REQUESTS) + 3)
    cache = given.out / "cache"
    for old in (cache / "view").glob("*.sqlite*"):
        old.unlink()
    with _served(path, cache) as viewer:
        began = time.monotonic()
        for name in ("runs", "head", "metrics", "episodes"):
            viewer.ask(name, {"limit": 50})
        opened = 1000 * (time.monotonic() - began)
        report.done("opened")
        before = viewer.peak_mib()
        index_s = _indexed(viewer, began)
        report.done("indexed")
        after = viewer.peak_mib()
        for title, (name, asked, _) in _REQUESTS.items():
            report.row(_request(viewer, title, name, asked, given.repeats))
            report.done(title)
        peak = viewer.peak_mib()
        _on_screen(report, viewer.url, path.name)
        report.done("on screen")
    report.row(
        Sizes(
            episodes=given.episodes,
            turns=given.turns,
            run_mib=_mib(path),
            index_mib=_mib(cache),
            opened_ms=round(opened, 1),
            index_s=round(index_s, 1),
            server_mib=before,
            indexed_server_mib=max(after, peak),
        )
    )
    _promises(report)


def _promises(report: Report) -> None:
    """Compares with what the viewer shall be."""
    for row in report.rows:
        match row:
            case Request(request=title, median_ms=took):
                report.budget(f"{title}, ms", took, at_most=_REQUESTS[title][2])
            case OnScreen(what=what, ms=took):
                report.budget(f"{what} on screen, ms", took, at_most=2000)
            case Sizes(opened_ms=opened, indexed_server_mib=peak):
                report.budget("opened, ms", opened, at_most=2000)
                report.budget("memory of the server, MiB", peak, at_most=300)


class _Viewer:
    """A viewer in a process of its own, as a browser sees it."""

    def __init__(self, process: subprocess.Popen[str], url: str, run: str) -> None:
        self.process, self.url, self._run = process, url, run
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600)
        self._connection.request("GET", f"/?{parts.query}")
        response = self._connection.getresponse()
        response.read()
        self._cookie = (response.headers["Set-Cookie"] or "").partition(";")[0]

    def ask(self, name: str, asked: Mapping[str, Any]) -> bytes:
        """The response of an endpoint."""
        query = urlencode({"run": self._run, **asked})
        self._connection.request("GET", f"/api/{name}?{query}", headers={"Cookie": self._cookie})
        response = self._connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise RuntimeError(f"api/{name}?{query}: {response.status} {data[:500]!r}")
        return data

    def cpu_ms(self) -> float:
        """The processor time that the server has taken."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self) -> float:
        """The most memory that the server had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return round(int(line.split()[1]) / 1024, 1)


@contextmanager
def _served(path: Path, cache: Path) -> Iterator[_Viewer]:
    command = [sys.executable, "-m", "agentrl.cli", "view", str(path), "--no-open", "--port", "0", "--json"]
    env = {**os.environ, "AGENTRL_CACHE": str(cache.absolute())}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    try:
        told, text = piped(process.stdout), ""
        while not text.rstrip().endswith("}"):
            if not (line := told.readline()):
                raise RuntimeError("the viewer has not started")
            text += line
        yield _Viewer(process, json.loads(text)["url"], path.name)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def _indexed(viewer: _Viewer, began: float) -> float:
    """Waits until all texts are indexed. Returns the time since the first request."""
    while (index := json.loads(viewer.ask("updates", {}))["index"])["state"] == "building":
        time.sleep(0.2)
    if index["state"] == "failed":
        raise RuntimeError(index["problem"])
    return time.monotonic() - began


def _request(viewer: _Viewer, title: str, name: str, asked: Mapping[str, Any], repeats: int) -> Request:
    """Asks several times; each time for rows that no earlier answer can have held."""
    times, size, spent = [], 0, viewer.cpu_ms()
    for k in range(repeats):
        fresh = {"duration_min": -1 - k} if name == "episodes" else {}
        began = time.monotonic()
        size = len(viewer.ask(name, {**asked, **fresh}))
        times.append(1000 * (time.monotonic() - began))
    median, slowest = round(statistics.median(times), 1), round(max(times), 1)
    cpu = round((viewer.cpu_ms() - spent) / repeats, 1)
    return Request(request=title, median_ms=median, slowest_ms=slowest, cpu_ms=cpu, kilobytes=round(size / 1000, 1))


def _on_screen(report: Report, url: str, run: str) -> None:
    """Draws the screens in Chromium."""
    try:
        from playwright.sync_api import sync_playwright

        find_chromium()
    except (ImportError, AgentRLError) as error:
        report.miss("times on the screen", str(error))
        return
    settings = Launch().settings()
    base = url.partition("?")[0]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=settings["executable"], args=settings["args"])
        page = browser.new_page(viewport={"width": 1280, "height": 1800})  # 50 rows are in view
        page.set_default_timeout(_LONG_MS)
        page.goto(url)
        page.wait_for_selector("canvas")
        for what, place, wanted in (
            ("four curves", "overview", "canvas >> nth=3"),
            ("50 rows", "episodes", ".line a >> nth=49"),
        ):
            page.goto("about:blank")
            began = time.monotonic()
            page.goto(f"{base}#/run/{run}/{place}")
            page.wait_for_selector(wanted, state="attached")
            report.row(OnScreen(what=what, ms=round(1000 * (time.monotonic() - began), 1)))
        browser.close()


def _mib(path: Path) -> float:
    return round(sum(each.stat().st_size for each in path.rglob("*") if each.is_file()) / (1 << 20), 1)


if __name__ == "__main__":
    raise SystemExit(main())
