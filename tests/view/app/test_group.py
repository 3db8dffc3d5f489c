"""What a group of eight episodes tells about credit, in real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.store import RunDir
from agentrl.view.web.server import ViewServer
from tests.store.make import make_episode
from tests.view.app.driving import Screen, served

pytestmark = pytest.mark.slow

ALIKE, MIXED = "train/000000-alike", "train/000001-mixed"


@pytest.fixture(scope="module")
def two_groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewServer]:
    """Two groups of eight: in one all have the same reward, in the other one alone has succeeded."""
    folder = tmp_path_factory.mktemp("groups")
    with RunDir.create(folder / "run", {"recipe": {"name": "house"}}) as run:
        for group, rewards in ((ALIKE, [1.0] * 8), (MIXED, [0.0] * 7 + [1.0])):
            for member, reward in enumerate(rewards):
                id = f"{group}#{member}"
                given = 0.0 if group == ALIKE else reward - 1 / 8
                run.add(make_episode(id, group=group, reward=reward, components={"found": reward}, split="train"))
                run.add_credit(id, "grpo", [given] * 4, {"episode": [given] * 4})
    with served(folder, folder / "cache") as server:
        yield server


@pytest.fixture
def page(chromium: Any, two_groups: ViewServer) -> Iterator[Screen]:
    with chromium.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light") as context:
        yield Screen(context.new_page(), two_groups.url)


def test_a_credit_of_0_says_why_and_leads_to_the_episode_among_its_siblings(page: Screen) -> None:
    reason = "all 8 episodes of the group have reward 1.00: no signal"
    page.go("run", "run", "episode", f"{ALIKE}#2").holds("#turn-0 header .why", reason).holds(".facts .why", reason)
    page.is_clean()
    page.page.locator("#turn-1 .why").click()
    page.holds(".siblings tr.on", "#2").holds(".group-table th.on", "#2").sees("no signal").is_clean()
    page.go("run", "run", "episode", f"{MIXED}#7").holds("#turn-0 .credit", "+0.875")
    assert page.page.locator(".why").count() == 0
    page.holds(".facts .chip.accent", "#7").page.locator(".facts .chip", has_text="#3").click()
    page.holds("h2", f"{MIXED}#3").holds(".facts .chip.accent", "#3")
    page.go("run", "run", "episode", f"{MIXED}#7").holds("h2", f"{MIXED}#7")
    page.keys("g").holds(".siblings tr.on", "#7")


def test_eight_siblings_are_read_side_by_side(page: Screen) -> None:
    for query in ("", "?by=state&estimator=grpo"):
        page.go("run", "run", "group", MIXED, query=query).holds("#row-0")
        for width in (800, 1280):
            page.page.set_viewport_size({"width": width, "height": 800})
            page.until(f"() => innerWidth === {width} && document.documentElement.scrollWidth <= innerWidth")
            lines = page.page.locator(".siblings tbody tr")
            assert lines.count() == 8
            cells = [cell.split() for cell in lines.nth(7).locator("td").all_inner_texts()]
            assert cells[:3] == [["#7"], ["1"], ["+0.875"]]
            assert page.page.evaluate(HIDDEN, ".siblings") == 0
        assert page.page.evaluate(HIDDEN, ".group-table") == 0, "all eight columns fit 1280 pixels"


HIDDEN = """(name) => {
  const box = document.querySelector(name).parentElement;
  return box.scrollWidth - box.clientWidth;
}"""
"""The pixels of a table that its box does not show."""
