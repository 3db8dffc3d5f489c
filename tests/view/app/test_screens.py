"""Every screen of the viewer, in real Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentrl.store import RunDir
from tests.store.make import make_episode
from tests.view.app.driving import Screen, served

pytestmark = [pytest.mark.slow, pytest.mark.family("screens")]

RUN = "everything"
DESK = "train/000099-desk#0"
GROUP = "train/000003-maze1"

SCREENS = {
    "runs": ([], "everything"),
    "run": (["run", RUN, "overview"], "Reward components"),
    "rollout": (["run", "oracle", "overview"], "Distribution"),
    "empty": (["run", "empty", "overview"], "No episode yet"),
    "episodes": (["run", RUN, "episodes"], "train/000011-maze1#3"),
    "no-episodes": (["run", "empty", "episodes"], "No episode yet"),
    "episode": (["run", RUN, "episode", f"{GROUP}#2"], "Turn 3"),
    "desk": (["run", RUN, "episode", DESK], "Turn 2"),
    "group": (["run", RUN, "group", GROUP], "parts here"),
    "tokens": (["run", RUN, "tokens", f"{GROUP}#2"], "Turn 3"),
    "failures": (["run", RUN, "failures"], "Slowest episodes"),
    "compare": (["run", "oracle", "compare"], "or two estimators"),
}


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_drawn_and_clean(screen: Screen, name: str) -> None:
    place, text = SCREENS[name]
    screen.go(*place).sees(text)
    screen.is_clean()


def test_no_name_or_number_is_broken_in_the_list_of_runs(chromium: Any, tmp_path: Path) -> None:
    argv = ["agentrl", "train", *(f"--set train.some_key_{k}=0.12345" for k in range(12))]
    with RunDir.create(tmp_path / "quickstart", {"recipe": {"name": "house"}, "argv": argv}) as run:
        for iteration in range(2):
            run.add_metrics({"iteration": iteration, "success": 0.123 + iteration / 10})
    with served(tmp_path, tmp_path / "cache") as server, chromium.new_context(viewport=NARROW) as context:
        screen = Screen(context.new_page(), server.url).sees("quickstart")
        words = screen.page.locator(".runs a, .runs td.num, .runs td:nth-child(2)")
        assert [word.inner_text() for word in words.all() if word.evaluate(LINES) > 1] == []


NARROW = {"width": 800, "height": 800}
LINES = """(cell) => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size;
}"""
"""The lines of a text."""


def test_two_runs_are_compared(screen: Screen) -> None:
    screen.go("run", "oracle", "compare", query="?with=random").sees("A better").sees("Tasks (")
    screen.is_clean()


def test_two_estimators_are_compared(screen: Screen) -> None:
    screen.go("run", "random", "compare", query="?group=rollout%2F000000-maze0&a=gigpo&b=grpo")
    screen.holds("th", "gigpo").holds("th", "grpo").holds(".axis")
    screen.is_clean()


def test_a_credit_that_is_being_computed_is_not_called_missing(screen: Screen) -> None:
    screen.page.route("**/api/credit?**", lambda route: None)  # no answer
    screen.go("run", "random", "compare", query="?group=rollout%2F000000-maze0&a=gigpo").sees("computing …")
    screen.page.unroute_all(behavior="ignoreErrors")
    screen.page.reload()
    screen.holds("th", "gigpo").holds(".axis").until("() => !document.body.innerText.includes('computing')")


def test_hostile_text_does_not_act(screen: Screen) -> None:
    for place, text in (
        (["run", RUN, "episode", DESK], "onerror="),
        (["run", RUN, "failures"], "onerror="),
        (["run", RUN, "group", "train/000099-desk"], "1 sibling"),
        (["run", RUN, "tokens", DESK], "Turn 1"),
        (["run", RUN, "episodes"], "train/000099-desk#0"),
    ):
        screen.go(*place).sees(text)
        assert screen.page.title() == "maze · agentrl"
        assert screen.page.locator("main img[src='x'], main script, main a[href^='javascript']").count() == 0
    screen.go("run", RUN, "episode", DESK).sees("\\x1b[31mred").sees("\\u202eevil")
    assert screen.wrong == []


def test_the_keyboard_moves_through_rows_turns_and_screens(screen: Screen) -> None:
    screen.go("run", RUN, "episodes").sees("train/000011-maze1#3").keys("j", "j", "ArrowDown", "k").holds(
        ".line.on", "train/000011-maze1#3"
    )
    screen.keys("Enter").holds("h2", "train/000011-maze1#3").holds("#turn-0").keys("j", "j").holds("#turn-1.on")
    assert screen.page.evaluate("location.hash").endswith("?turn=1")
    screen.keys("t").holds(".tokens").keys("t").holds("#turn-0").keys("g").holds(".group-table")
    screen.keys("?").holds("dialog[open]").keys("Escape").until("() => !document.querySelector('dialog[open]')")
    screen.keys("u").holds(".line").keys("/").until("() => document.activeElement.type === 'search'")
    screen.page.keyboard.type("kitchen", delay=250)  # longer than the app waits: it must not lose the field
    screen.until("() => location.hash.includes('q=kitchen')").keys("Escape", "1").sees("Reward components").sees(
        "worst turn"
    )
    assert screen.wrong == []


def test_the_url_keeps_filters_and_sort(screen: Screen) -> None:
    screen.go("run", RUN, "episodes").sees("train/000011-maze1#3")
    screen.page.get_by_label("component", exact=True).select_option("found")
    screen.page.get_by_label("its value at least").fill("0.7")
    screen.until("() => location.hash.includes('component_min=0.7')").sees("22 of 97 episodes")
    screen.page.get_by_role("button", name="turns", exact=True).click()
    screen.until("() => location.hash.includes('sort=turns')")
    screen.page.reload()
    screen.sees("22 of 97 episodes").holds("[aria-sort=descending]", "turns")
    assert screen.page.get_by_label("its value at least").input_value() == "0.7"
    screen.page.get_by_role("button", name="worst", exact=True).click()
    screen.until("() => location.hash.includes('sort=advantage_min')").holds("[aria-sort=ascending]", "worst")
    assert screen.wrong == []


def test_an_episode_shows_where_it_clicked_what_it_thought_and_who_spoke(screen: Screen) -> None:
    screen.go("run", RUN, "episode", DESK).holds(".thinking", "First the screen.").holds(".shot .mark text", "1").sees(
        "context critic"
    )
    assert screen.page.locator(".lane").count() == 2
    screen.page.get_by_text("rewards of 2 parts of the reply").click()
    screen.holds("#turn-0 td.mono", "Let me look.").holds("#turn-0 td.num", "0.75")
    screen.sees("drift: retokenisation at token 40")
    assert screen.page.get_by_text("THE END").count() == 0
    for _ in range(4):
        more = screen.page.get_by_role("button", name="load more").or_(
            screen.page.get_by_role("button", name="more characters")
        )
        if more.count() == 0:
            break
        more.first.click()
        screen.page.wait_for_timeout(0)
    screen.go("run", RUN, "episode", f"{GROUP}#2").sees("7 of 10: it looked twice.").sees("gate format ≥ 0.5").sees(
        "not counted: found"
    )
    screen.holds(".turn .credit").holds(".copy", "fork from turn 0").sees("not recorded")
    screen.page.get_by_text("prompt of this turn").first.click()
    screen.sees("gained since the previous turn")
    assert screen.wrong == []


def test_an_empty_reply_is_named(chromium: Any, tmp_path: Path) -> None:
    silent = make_episode("train/000000-first#0", turns=2, iteration=3)
    turns = [replace(silent.turns[0], text=" ", calls=[], observations=[]), silent.turns[1]]
    with RunDir.create(tmp_path / "run", {"recipe": {"name": "house"}}) as run:
        run.add(replace(silent, turns=turns, answer=""))
    with served(tmp_path, tmp_path / "cache") as server, chromium.new_context() as context:
        screen = Screen(context.new_page(), server.url).go("run", "run", "episode", silent.id)
        screen.holds("#turn-0 .body", "(empty reply)").holds(".outline", "(empty reply)")
        assert "(empty reply)" not in screen.page.locator("#turn-1").inner_text()
        screen.go("run", "run", "group", silent.group_id).holds("#row-0 pre", "(empty reply)")
        screen.go("run", "run", "episodes").holds(".line", "(empty reply)")
        assert not screen.wrong, screen.wrong


def test_tokens_are_coloured_and_name_their_ids(screen: Screen) -> None:
    screen.go("run", RUN, "tokens", f"{GROUP}#1").holds(".tokens span")
    screen.page.get_by_role("button", name="advantage").click()
    screen.page.locator(".tokens span:not(.context)").first.hover()
    screen.holds(".tokeninfo", "trained on").holds(".tokeninfo", "log-prob")
    assert screen.page.get_by_role("button", name="entropy").is_disabled()
    screen.sees("train.record_tokens: N")
    assert screen.wrong == []


def test_tokens_are_coloured_by_what_the_trainer_kept(screen: Screen) -> None:
    screen.go("run", RUN, "tokens", f"{GROUP}#2").holds(".tokens span")
    for name in ("ratio", "entropy", "clip"):
        screen.page.get_by_role("button", name=name).click()
        screen.holds(".tokens span[style*='background']")
    screen.page.locator(".tokens span:not(.context)").nth(1).hover()
    screen.holds(".tokeninfo", "ratio 1.400").holds(".tokeninfo", "entropy 0.900")
    screen.is_clean()
    assert screen.wrong == []
