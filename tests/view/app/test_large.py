"""The viewer on long runs: of 2,000 turns in every CI, of a million in the family `view`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from agentrl.store.reader import RunReader
from benchmarks.large_run import ready
from tests.view.app.driving import Screen, served

pytestmark = pytest.mark.slow

TURNS = 20
KEPT = Path(__file__).parents[3] / "build/benchmarks/view"
"""Where `python -m benchmarks.view` keeps its run, which takes minutes to write."""


def test_a_run_of_2000_turns(chromium: Any, tmp_path: Path) -> None:
    _drive(chromium, ready(tmp_path, 100, TURNS), tmp_path / "cache", 100)


@pytest.mark.family("view")
@pytest.mark.timeout(5400)
def test_a_run_of_a_million_turns(chromium: Any, tmp_path: Path) -> None:
    _drive(chromium, ready(KEPT, 50_000, TURNS), tmp_path / "cache", 50_000)


def _drive(chromium: Any, run: Path, cache: Path, episodes: int) -> None:
    """Looks at every screen of a run, before and after its texts are indexed."""
    all_of_them, newest = f"{episodes:,} of {episodes:,} episodes", f"train/{(episodes - 1) // 8}#{(episodes - 1) % 8}"
    with RunReader(run) as reader:
        phrase = '"' + " ".join(reader.get(newest).turns[7].text.split()[:3]) + '"'
    with served(run, cache) as server, chromium.new_context(viewport={"width": 1280, "height": 800}) as context:
        screen = Screen(context.new_page(), server.url)
        screen.go("run", run.name, "overview").sees("Distribution")
        screen.until("() => document.querySelectorAll('canvas').length >= 4")
        screen.go("run", run.name, "episodes").sees(all_of_them).sees(newest)
        server.library.run(run.name).texts.finish()
        screen.page.reload()
        screen.sees(all_of_them).sees(newest).until("() => !document.querySelector('.foot .warn')")
        assert screen.page.locator(".line").count() < 100  # those in view, and some more
        screen.page.get_by_role("grid").focus()
        screen.keys("End").holds(".line.on", "train/0#0").keys("Enter").holds("h2", "train/0#0").sees(f"{TURNS} turns")
        screen.holds(f"#turn-{TURNS - 1}")
        screen.keys("t").holds(".tokens span").keys("t").holds("#turn-0").keys("g").sees("siblings")
        some = f"() => !document.querySelector('.foot').innerText.startsWith('{all_of_them}')"
        screen.go("run", run.name, "episodes", query=f"?q={quote(phrase)}").sees("where it is found").until(some)
        screen.page.locator(".hits summary").click()
        screen.holds(".hits mark")
        screen.go("run", run.name, "episodes", query="?tool=search&reward_min=1&sort=id").holds(".line a").until(some)
        screen.go("run", run.name, "failures").sees("Slowest episodes")
        screen.go("run", run.name, "overview").sees("Reward components")
        screen.is_clean()
