"""recipes/webshop: the shop, its reward against WebShop's own code, and its scripts through a real Chromium."""

from __future__ import annotations

import functools
import json
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest

from agentrl.registry.references import load_object
from agentrl.tools.base import name_of, own_methods
from agentrl.tools.builtin.web.tool import Web
from agentrl.types.task import Task
from tests.sound import played

RECIPE = Path(__file__).parents[2] / "recipes" / "webshop"
load: Callable[[str], Any] = functools.partial(load_object, base=RECIPE)
needs_chromium = pytest.mark.skipif(
    not (shutil.which("chromium-headless-shell") or shutil.which("chromium")), reason="Chromium is not installed"
)


@functools.cache
def tasks() -> list[Task]:
    goals = load("./task.py:goals")
    return [*goals(n=512), *goals(n=128, held_out=True)]


def score(task: Task, asin: str, options: dict[str, str]) -> dict[str, float]:
    product = load("./task.py:products")(**task.data["shop"])[asin]
    found: dict[str, float] = load("./reward.py:terms")(product, options, task.data["goal"])
    return found


@pytest.mark.slow
@pytest.mark.family("environments")
@needs_chromium
@pytest.mark.parametrize(("script", "most"), [("oracle", 1.0), ("random", 0.5), ("hasty", 0.9)])
def test_the_oracle_buys_what_is_asked_for_and_shortcuts_do_not(tmp_path: Path, script: str, most: float) -> None:
    run = played(RECIPE, 6, script, tmp_path / "run", *(["agent.max_turns=6"] if script == "random" else []))
    rows, episodes, info = list(run.episodes), list(run.whole_episodes()), run.info
    rewards = [row.reward or 0.0 for row in rows]
    assert len(rows) == 6
    assert {row.status for row in rows} <= {"done", "truncated"}
    assert sum(rewards) / 6 <= most
    assert (set(rewards) == {1.0}) == (script == "oracle")
    said = json.dumps([[turn.observations for turn in episode.turns] for episode in episodes])
    assert "http://shop.test/" in said
    offered = [each["function"]["name"] for each in info["tools"]]
    assert offered[:11] == [name_of(each) for each in own_methods(Web())], "the same tools as those of a web recipe"
    assert "127.0.0.1" not in said, "the port differs from run to run"


@pytest.mark.slow
@pytest.mark.family("environments")
def test_every_goal_is_met_by_its_product_alone_in_words_of_webshop() -> None:
    form = r"Find me .+ with \w+: .+, and \w+: .+, and price lower than \d+\.00 dollars\."
    for task in tasks():
        goal = task.data["goal"]
        assert re.fullmatch(form, task.instruction[0]["content"]), task.id
        assert set(score(task, goal["asin"], goal["options"]).values()) == {1.0}, task.id
        # Without options it is a part, and another kind of product is nothing.
        bare = score(task, goal["asin"], {})
        asked = len(goal["attributes"]) + len(goal["options"]) + 1
        assert bare["reward"] == pytest.approx((asked - len(goal["options"])) / asked)
        others = load("./task.py:products")(**task.data["shop"]).values()
        stranger = next(one for one in others if not set(one.kind.nouns) & set(goal["nouns"]))
        assert score(task, stranger.asin, goal["options"])["reward"] == 0.0


def test_nothing_bought_is_nothing() -> None:
    for name in ("webshop", "success"):
        assert {load(f"./task.py:{name}")(task, {}) for task in tasks()} == {0.0}
    assert load("./task.py:term")(tasks()[0], {}, "price") == 0.0


def test_the_reward_is_that_of_webshops_own_code() -> None:
    """Purchases scored by `get_reward` of WebShop's goal.py, with thefuzz, and the kinds' words for spaCy's nouns."""
    cases = json.loads((Path(__file__).parent / "data" / "webshop.json").read_text())["cases"]
    by_id = {task.id: task for task in tasks()}
    assert len(cases) >= 100
    for case in cases:
        found = score(by_id[case["task"]], case["asin"], case["options"])
        assert found["reward"] == pytest.approx(case["reward"]), case
        assert found["type"] == case["r_type"], case
    assert len({round(case["reward"], 3) for case in cases}) > 10


def test_held_out_goals_are_of_other_products_and_all_is_repeatable() -> None:
    goals = load("./task.py:goals")
    train, held_out = tasks()[:512], tasks()[512:]
    assert len({task.id for task in tasks()}) == 640
    assert not {t.data["goal"]["asin"] for t in train} & {t.data["goal"]["asin"] for t in held_out}
    assert list(goals(n=20)) == train[:20]
    assert [task.id for task in goals(n=20, seed=1)] != [task.id for task in train[:20]]
    assert goals(n=1, catalogue=1).__next__().data["goal"]["asin"] not in load("./task.py:products")(0, 40)


def test_the_site_keeps_customers_apart_and_survives_what_is_odd() -> None:
    shop, _ = load("./task.py:shop")(0, 40)
    site = load_object("agentrl.tools.builtin.web.site:Site", RECIPE)({"127.0.0.1": shop.answer})
    base = re.search(r"127\.0\.0\.1 (\S+?),", site.flag)[1]  # type: ignore[index]
    goal = tasks()[0].data["goal"]
    customers = [shop.enter() for _ in range(2)]
    browsers = [urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar())) for _ in customers]
    for browser, (_, address) in zip(browsers, customers, strict=True):
        path = urllib.parse.urlsplit(address).path
        assert b"Search the shop" in browser.open(f"http://{base}{path}").read()
    form = urllib.parse.urlencode(goal["options"]).encode()
    assert b"Thank you" in browsers[0].open(f"http://{base}/buy/{goal['asin']}", form).read()
    browsers[0].open(f"http://{base}/buy/{goal['asin']}", b"")
    assert shop.bought(customers[0][0]).options == goal["options"], "the first purchase counts"
    assert shop.bought(customers[1][0]) is None
    for path, data, status in [
        ("/item/NONE", None, 404),
        ("/nowhere", None, 404),
        ("/enter/guess", None, 404),
        (f"/buy/{goal['asin']}", None, 404),
        (f"/buy/{goal['asin']}", f"{next(iter(goal['options']))}=plaid".encode(), 400),
        (f"/item/{goal['asin']}/secrets", None, 404),
    ]:
        with pytest.raises(urllib.error.HTTPError) as error:
            browsers[1].open(f"http://{base}{path}", data)
        assert error.value.code == status, path
    odd = browsers[1].open(f"http://{base}/search?q=%3Cscript%3E%22&page=99999999999").read().decode()
    assert "<script>" not in odd
    assert "Page 1 of 1 (Total results: 0)" in odd
    for key, _ in customers:
        shop.leave(key)
    site.close()
