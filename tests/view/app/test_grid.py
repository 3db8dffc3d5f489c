"""The grid of episodes, in real Chromium."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.store import RunDir
from tests.store.make import make_episode
from tests.view.app.driving import Screen, served

pytestmark = pytest.mark.slow

LONG = "train/00003/003-find-the-key-of-the-house-by-the-river-and-bring-it-back-before-the-night"


def test_siblings_credit_and_time_are_readable_and_no_column_is_empty(chromium: Any, tmp_path: Any) -> None:
    with (
        RunDir.create(tmp_path / "run", {"recipe": {"name": "house"}}) as run,
        served(tmp_path, tmp_path / "cache") as server,
        chromium.new_context(viewport={"width": 1280, "height": 800}) as context,
    ):
        for member, given in enumerate((0.25, -0.25)):
            id = f"{LONG}#{member}"
            run.add(make_episode(id, group=LONG, split="train", created_at=1_790_000_000.0 + member))
            run.add_credit(id, "grpo", [given] * 4)
        screen = Screen(context.new_page(), server.url).go("run", "run", "episodes").sees("2 of 2 episodes")
        screen.holds(".line", "#1").holds(".head", "credit")
        assert screen.page.evaluate(CUT) == [], "neither the number of a sibling nor a time is cut"
        assert screen.page.locator(".line").first.inner_text().split("\n")[:2] == [LONG, "#1"]
        assert "−0.250" in screen.page.locator(".line").first.inner_text()
        screen.holds("[role=columnheader]", "began").holds("[title='2026-09-21 14:13:21 UTC']", "09-21 14:13:21")
        for name in ("failure", "group"):
            assert screen.page.get_by_role("columnheader", name=name).count() == 0
        run.add(make_episode("alone#0", group="other", status="infra_error"))
        screen.page.get_by_role("columnheader", name="failure").wait_for()
        screen.page.get_by_role("columnheader", name="group").wait_for()
        screen.is_clean()


CUT = """() => [...document.querySelectorAll('.line .name, .line [title$=UTC]')].filter((element) => {
  const [own, cell] = [element, element.closest('[role=gridcell]')];
  return own.getBoundingClientRect().right > cell.getBoundingClientRect().right + 1
    || cell.getBoundingClientRect().right > innerWidth - 16;
}).map((element) => element.innerText)"""
"""Texts of names and times that their cell or the window cuts."""
