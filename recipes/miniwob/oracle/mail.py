"""Solvers of pages that are small applications: an inbox, a search engine, a feed, a phone book, a menu."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.registry.references import load_object

_VIEW = Path(__file__).parent
click, fill, wait, key, scroll = (
    load_object(f"./view.py:{name}", _VIEW) for name in ("click", "fill", "wait", "key", "scroll")
)
Calls = Iterator[Any]


def inbox(page: Any) -> Calls:
    (name,) = page.goal_like(r"Find the email by (\S+?)\.? ")
    thread = next(each for each in page.all(cls="email-thread") if _part(each, "email-sender") == name)
    yield click(next(each for each in thread.all() if "email-sender" in each.classes))
    reply = re.search(r'reply to them with the text "(.*?)"', page.goal)
    forward = re.search(r"forward that email to (\S+?)\.?$", page.goal)
    if reply:
        yield click(page.one(cls="email-reply"))
        yield fill(page.one("textarea"), reply[1])
        yield click(page.one(id="send-reply"))
    elif forward:
        yield click(page.one(cls="email-forward"))
        yield fill(page.one("input", cls="forward-sender"), forward[1])
        yield click(page.one(id="send-forward"))
    else:
        yield click(page.one("span", cls="trash" if "trash" in page.goal else "star"))


def forward(page: Any) -> Calls:
    """The instruction says in one of many ways which sender's mail goes to which other sender."""
    threads = {_part(each, "email-sender"): each for each in page.all(cls="email-thread")}
    found = re.search(r"(?:by|from) ([A-Z]\w+)|([A-Z]\w+) (?:sent|wants his)", page.goal)
    assert found is not None, page.goal
    sender = found[1] or found[2]
    (to,) = {name for name in threads if name != sender and re.search(rf"\b{name}\b", page.goal)}
    yield click(next(each for each in threads[sender].all() if "email-sender" in each.classes))
    yield click(page.one(cls="email-forward"))
    yield fill(page.one("input", cls="forward-sender"), to)
    yield click(page.one(id="send-forward"))


def _part(element: Any, cls: str) -> str:
    return next((each.words for each in element.all() if cls in each.classes), "")


def search(page: Any) -> Calls:
    wanted, *_ = page.quoted()
    (number,) = page.goal_like(r"click the (\d+)")
    place = int(number) - 1
    yield fill(page.one("input"), wanted)
    yield click(page.one("button", id="search"))
    if place >= 3:
        yield click(page.one("a", text=str(place // 3 + 1)))
    yield click(page.all("a", cls="search-title")[place % 3])


def phone_book(page: Any) -> Calls:
    name, what = page.goal_like(r"Find (.*) in the contact book and click on their (phone|email|address)")
    for _ in range(5):
        if page.one("h2").text == name:
            yield click(page.one("a", cls=what))
            return
        yield click(page.one("a", text=">"))


SOCIAL = {"Reply": "reply", "Retweet": "retweet", "Like": "like", "Share": "share"}


def social(page: Any) -> Calls:
    user, action = page.goal_like(r'For the user (\S+), click on the "(.*?)" button')
    post = next(each for each in page.all("div", cls="media") if _part(each, "username") == user)
    if action in SOCIAL:
        yield click(next(each for each in post.all() if SOCIAL[action] in each.classes))
        return
    yield click(next(each for each in post.all() if "more" in each.classes))
    yield click(next(each for each in page.all("li") if each.text.startswith(action)))


def social_several(page: Any) -> Calls:
    found = re.search(r'Click the "(.*?)" button on (?:(\d+)|all) posts? by (\S+?)(?: and|,)', page.goal)
    assert found is not None, page.goal
    action, number, user = found.groups()
    posts = [each for each in page.all("div", cls="media") if user in (_part(each, "username"), _part(each, "name"))]
    for post in posts[: int(number) if number else None]:
        yield click(next(each for each in post.all() if SOCIAL[action] in each.classes))
    yield click(page.one("button"))


def food(page: Any) -> Calls:
    by_type = re.search(r"Order (\d+) items that are (.*)", page.goal)
    if by_type:
        items = [each for each in page.all(cls="food-item") if by_type[2] in [x["alt"] for x in each.all()]]
        plan = [items[k % len(items)] for k in range(int(by_type[1]))]
    else:
        (names,) = page.goal_like(r"each item: (.*)")
        plan = [each for each in page.all(cls="food-item") if _part(each, "item-name") in names.split(", ")]
    for item in plan:
        yield click(next(each for each in item.all() if "add" in each.classes))
    yield click(page.one("button"))
