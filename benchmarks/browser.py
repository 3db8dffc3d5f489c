"""Operations of the browser driver, and what episodes leave behind: `python -m benchmarks.browser`.

Page-open, click, tree and screenshot run alternately through the driver and with Playwright alone, on the same pages;
printed is the median of each, and their ratio. Then episodes with random actions run on pages that behave and pages
that do not; the browser is killed once. Every episode is accounted for, and processes and memory are compared between
the first and the last tenth. Whole episodes beside BrowserGym: `benchmarks/miniwob.py`. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.tools.builtin.web import launching
from agentrl.tools.builtin.web.client import BrowserLost
from agentrl.tools.builtin.web.launching import Launch, open_context
from agentrl.tools.builtin.web.tool import Web
from agentrl.types.errors import ToolError
from agentrl.types.task import Task
from benchmarks.harness import Benchmark, Missing, Report, Row
from tests.tools.builtin.web.site import site

PAGES = ["article", "forms", "list", "shop", "widgets"]
PATHS = [f"/pages/{name}.html" for name in PAGES] + [
    "/",
    "/later",
    "/alert",
    "/popups",
    "/file",
    "/away",
    "/unload",
    "/cut",
]


class Operation(Row):
    """Medians in ms."""

    operation: str
    ours_ms: float
    bare_ms: float


class Soak(Row):
    """Episodes, and processes and memory of the first and the last tenth of them."""

    episodes: int
    endings: dict[str, int]
    processes: tuple[int, int]
    memory_mb: tuple[int, int]
    episodes_per_s: float


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Operation | Soak,
    kind="compare",
    beside="bare Playwright",
    smoke={"rounds": 2, "episodes": 4, "contexts": 2},
    runs=("--rounds 60 --episodes 40",),
    minutes=2,
)


async def latencies(address: str, rounds: int, report: Report) -> list[Operation]:
    """Medians of four operations, ours and bare."""
    from playwright.async_api import async_playwright

    settings = Launch().settings()
    took: dict[str, list[float]] = {}

    async def timed(name: str, work: Callable[[], Awaitable[Any]]) -> None:
        began = time.perf_counter()
        await work()
        took.setdefault(name, []).append((time.perf_counter() - began) * 1000)

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=settings["executable"], args=settings["args"])
        bare = await (await browser.new_context(viewport={"width": 1024, "height": 768})).new_page()
        ours = await open_context(viewport=[1024, 768], allow=[address.removeprefix("http://")])
        for number in range(rounds):
            url = f"{address}/pages/{PAGES[number % len(PAGES)]}.html?{number}"

            async def ours_open(url: str = url) -> None:
                await ours.do("goto", url=url)

            async def bare_open(url: str = url) -> None:
                await bare.goto(url)

            pair = [
                ("open", ours_open, bare_open),
                ("tree", lambda: ours.do("tree"), lambda: bare.locator("body").aria_snapshot()),
                ("screenshot", ours.screenshot, bare.screenshot),
            ]
            for name, our_work, bare_work in pair:
                arms = [(f"{name}/ours", our_work), (f"{name}/bare", bare_work)]
                for arm, work in arms if number % 2 else reversed(arms):
                    await timed(arm, work)
            # A page of its own: the tree of the bare arm has already put Playwright's scripts into the one before.
            await ours.do("goto", url=f"{address}/later")
            await bare.goto(f"{address}/later")
            found = (await ours.do("elements"))[0]["id"]
            arms = [
                ("click/ours", lambda found=found: ours.do("click", element=found)),
                ("click/bare", lambda: bare.locator("button").click()),
            ]
            for arm, work in arms if number % 2 else reversed(arms):
                await timed(arm, work)
            report.done("operations")
        await ours.close()
        await browser.close()
    medians = {arm: round(statistics.median(values), 2) for arm, values in took.items()}
    return [
        Operation(operation=name, ours_ms=medians[f"{name}/ours"], bare_ms=medians[f"{name}/bare"])
        for name in ("open", "click", "tree", "screenshot")
    ]


async def episode(address: str, number: int) -> str:
    """A random agent's episode; how it ended."""
    rng = random.Random(number)
    tool = Web(url=address + rng.choice(PATHS), load_s=3, settle_s=1, max_tabs=3)
    try:
        await tool.open(Task.of(f"e{number}", "Look around."), None)
        for _ in range(rng.randint(1, 5)):
            with suppress(ToolError):  # the model would be told
                await act(tool, rng)
    except BrowserLost:
        return "infra_error"
    finally:
        await tool.close()
    return "done"


async def act(tool: Web, rng: random.Random) -> None:
    id = rng.randint(1, 10)
    actions: list[Callable[[], Awaitable[Any]]] = [
        lambda: tool.click(id),
        lambda: tool.type(id, "tea", submit=rng.random() < 0.5),
        lambda: tool.visit(rng.choice(PATHS)),
        lambda: tool.scroll(),
        lambda: tool.back(),
        lambda: tool.extract(),
        lambda: tool.press("Tab"),
        lambda: tool.screenshot(),
    ]
    await rng.choice(actions)()


def family() -> tuple[int, float]:
    """Number and proportional memory (MiB) of the processes below this one."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
        except OSError:
            continue
    left, found, memory = [os.getpid()], 0, 0
    while left:
        pid = left.pop()
        found += 1
        left += parents.get(pid, [])
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        memory += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return found, memory / 1024


async def soak(address: str, episodes: int, contexts: int, report: Report) -> Soak:
    """Random episodes, `contexts` at a time; Chromium's driver is killed half way."""
    endings: Counter[str] = Counter()
    samples: list[tuple[int, float]] = []
    block = max(contexts, episodes // 10)
    began = time.perf_counter()
    for start in range(0, episodes, block):
        gate = asyncio.Semaphore(contexts)

        async def one(number: int, gate: asyncio.Semaphore = gate) -> str:
            async with gate:
                return await episode(address, number)

        running = [asyncio.create_task(one(number)) for number in range(start, min(start + block, episodes))]
        if start <= episodes // 2 < start + block:
            await asyncio.sleep(1)
            for _, process in list(launching._drivers.values()):
                os.kill(process.pid, signal.SIGKILL)
        endings.update(await asyncio.gather(*running))
        await asyncio.sleep(0.5)
        samples.append(family())
        report.done(f"{samples[-1][0]} processes, {samples[-1][1]:.0f} MiB", len(running))
    return Soak(
        episodes=episodes,
        endings=dict(endings),
        processes=(samples[0][0], samples[-1][0]),
        memory_mb=(round(samples[0][1]), round(samples[-1][1])),
        episodes_per_s=round(episodes / (time.perf_counter() - began), 2),
    )


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--rounds", type=int, default=100, help="of each operation")
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--contexts", type=int, default=4, help="episodes at once")
    return BENCHMARK.run(parser, lambda given, report: asyncio.run(measure(given, report)))


async def measure(given: argparse.Namespace, report: Report) -> None:
    must_have_chromium()
    report.plan(given.rounds + given.episodes)
    async with site() as address:
        for found in await latencies(address, given.rounds, report):
            print(f"{found.operation:10} ours {found.ours_ms:7.1f} ms   bare {found.bare_ms:7.1f} ms")
            report.row(found)
            report.ratio(f"ms of {found.operation}", ("browser driver", found.ours_ms), ("Playwright", found.bare_ms))
        left = await soak(address, given.episodes, given.contexts, report)
    report.row(left)
    if sum(left.endings.values()) != given.episodes:
        report.problem(f"{sum(left.endings.values())} of {given.episodes} episodes are accounted for")


def must_have_chromium() -> None:
    """Raises Missing, if there is none."""
    if not shutil.which("chromium-headless-shell") and not shutil.which("chromium"):
        raise Missing("no Chromium: apt-get install chromium-headless-shell")


if __name__ == "__main__":
    sys.exit(main())
