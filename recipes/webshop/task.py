"""Buy what is asked for, in a shop with 1,600 products: search, compare, choose options, buy."""

from __future__ import annotations

import functools
import json
import random
import re
import zlib
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl import Environment, Message, Say, Task, ToolResult
from agentrl.registry.references import load_object
from agentrl.tools.builtin.web.client import PageFailure
from agentrl.tools.builtin.web.site import Site
from agentrl.tools.builtin.web.tool import Web

if TYPE_CHECKING:
    from agentrl.types.sandbox import Sandbox

HERE = Path(__file__).parent
Catalogue = load_object("./catalogue.py:Catalogue", HERE)
Shop = load_object("./site.py:Shop", HERE)
terms = load_object("./reward.py:terms", HERE)
HOST = load_object("./site.py:HOST", HERE)
SETTLE_S = 20.0  # on a machine with much to do


@functools.cache
def products(seed: int, per_kind: int) -> dict[str, Any]:
    """The products by id."""
    found: dict[str, Any] = Catalogue(seed, per_kind).products
    return found


@functools.cache
def shop(seed: int, per_kind: int) -> tuple[Any, str]:
    """The shop of this process, which serves all its episodes, and where it is."""
    open_shop = Shop(Catalogue(seed, per_kind))
    return open_shop, Site({HOST: open_shop.answer}).flag


def goals(
    n: int = 512, seed: int = 0, held_out: bool = False, catalogue: int = 0, per_kind: int = 40
) -> Iterator[Task]:
    """`n` things to buy, each made of a product. A smaller `n` gives the beginning of the same list.

    Args:
        seed: of the goals: which products, attributes, options and limits.
        held_out: the one eighth of the products (by a hash of their id) that is for evaluation, not the rest.
        catalogue: the seed of the products.
        per_kind: products of each kind.
    """
    every = products(catalogue, per_kind).values()
    titles = Counter(product.title for product in every)
    chosen = [
        product
        for product in every
        if titles[product.title] == 1 and (zlib.crc32(product.asin.encode()) % 8 == 0) == held_out
    ]
    for number in range(n):
        lap, place = divmod(number, len(chosen))
        rng = random.Random(f"{seed}/{held_out}/{lap}")
        product = rng.sample(chosen, len(chosen))[place]
        yield _goal(product, random.Random(f"{seed}/{product.asin}/{lap}"), lap, catalogue, per_kind)


def _goal(product: Any, rng: random.Random, lap: int, catalogue: int, per_kind: int) -> Task:
    """A goal that the product meets, worded as WebShop's synthetic goals (`get_synthetic_goals` of its goal.py)."""
    attributes = rng.sample(product.attributes, rng.randint(1, 3))
    options = {name: rng.choice(values) for name, values in product.options.items()}
    # The larger of two of the next four multiples of ten dollars, as there.
    upper = max(rng.sample([10 * (int(product.price // 10) + step) for step in range(1, 5)], 2))
    with_options = ", and ".join(f"{name}: {value}" for name, value in options.items())
    return Task.of(
        f"{product.asin}/{lap}",
        f"Find me {', '.join(attributes)} {product.kind.query} with {with_options}, "
        f"and price lower than {upper:.2f} dollars.",
        shop={"seed": catalogue, "per_kind": per_kind},
        goal={
            "asin": product.asin,
            "title": product.title,
            "attributes": attributes,
            "options": options,
            "price_upper": upper,
            "query": product.kind.query,
            "path": list(product.kind.path),
            "nouns": list(product.kind.nouns),
        },
    )


# --- the customer ---------------------------------------------------------------------------------------------------


class Customer(Web, Environment):
    """The `web` tool in the shop. The purchase ends the episode.

    Args:
        actions: names of the functions that are offered; None: all of the `web` tool.
        screenshots: whether every page that is shown comes with a screenshot.
        max_chars: characters of a page that an observation shows.
        chromium: path of Chromium; default: the one that is installed.
    """

    def __init__(
        self,
        actions: Sequence[str] | None = None,
        screenshots: bool = False,
        max_chars: int = 8000,
        chromium: str | None = None,
    ) -> None:
        super().__init__(
            allow=["*"],  # the flag of the shop lets the browser find nothing else
            actions=actions,
            screenshots=screenshots,
            max_chars=max_chars,
            settle_s=SETTLE_S,
            chromium=chromium,
        )

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Comes in."""
        self.shop, flag = shop(**task.data["shop"])
        self.launch = replace(self.launch, flags=(flag,))
        self.key, self.url = self.shop.enter()
        await super().open(task, sandbox)

    async def close(self) -> None:
        """Leaves."""
        self.shop.leave(self.key)
        await super().close()

    async def opening(self) -> Message:
        """The page with the search box."""
        shown = await self._result()
        images = [{"type": "image", "image": image} for image in shown.images]
        return {"role": "user", "content": [shown.text, *images] if images else shown.text}

    async def _act(self, op: str, **fields: Any) -> ToolResult:
        try:
            return await super()._act(op, **fields)
        except PageFailure:  # a page that was too slow to say so may have bought all the same
            if self.shop.bought(self.key) is None:
                raise
            return await self._shown()

    async def _result(self, *args: Any, **fields: Any) -> ToolResult:
        result = await super()._result(*args, **fields)
        if (bought := self.shop.bought(self.key)) is None:
            return result
        self.info["bought"] = {"asin": bought.asin, "options": bought.options}
        return replace(result, done=True, answer=bought.asin)


def webshop(task: Task, info: dict[str, Any]) -> float:
    """WebShop's reward of the purchase; 0 without one."""
    return _terms(task, info).get("reward", 0.0)


def success(task: Task, info: dict[str, Any]) -> float:
    """WebShop's success: a reward of 1."""
    return float(webshop(task, info) == 1.0)


def term(task: Task, info: dict[str, Any], component: str) -> float:
    """The term of the component's name: `type`, `attributes`, `options` or `price`."""
    return _terms(task, info).get(component, 0.0)


def _terms(task: Task, info: dict[str, Any]) -> dict[str, float]:
    if not (bought := info.get("bought")):
        return {}
    found: dict[str, float] = terms(products(**task.data["shop"])[bought["asin"]], bought["options"], task.data["goal"])
    return found


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Searches for the words of the goal and reads results until the product is there.

    Gives up where a page lacks what comes next.
    """
    goal = task.data["goal"]
    query = " ".join([*goal["attributes"], goal["query"], *goal["options"].values()])
    seen = yield from _search(query)
    while _number(seen, "link", goal["title"]) is None:
        if _number(seen, "link", "Next >") is None:
            return
        seen = yield from _click(seen, "link", "Next >")
    steps = [("link", goal["title"]), *(("radio", value) for value in goal["options"].values()), ("button", "Buy Now")]
    for role, name in steps:
        if _number(seen, role, name) is None:
            return
        seen = yield from _click(seen, role, name)


def _search(query: str) -> Generator[Say, list[Message], list[Message]]:
    """Types into the search box of the page that the shop opens with."""
    seen = yield Say(calls=[("find", {"text": "searchbox"})])
    box = re.search(r"\[(\d+)\] searchbox", str(seen[-1]["content"]))
    if box is not None:
        seen = yield Say(calls=[("type", {"id": int(box[1]), "text": query, "submit": True})])
    return seen


def _click(seen: list[Message], role: str, name: str) -> Generator[Say, list[Message], list[Message]]:
    """Clicks until the page took it: a machine with much to do lets some run out of time."""
    for _ in range(3):
        if (number := _number(seen, role, name)) is None:
            break
        seen = yield Say(calls=[("click", {"id": number})])
        if not str(seen[-1]["content"]).startswith("Error"):
            break
        seen = yield Say(calls=[("scroll", {"direction": "up"})])  # shows the page, which may be the next one
    return seen


def random_agent(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Searches for one word of the goal, then clicks on anything."""
    seen = yield from _search(rng.choice(task.data["goal"]["query"].split()))
    while numbers := re.findall(r"\[(\d+)\]", str(seen[-1]["content"])):
        seen = yield Say(calls=[("click", {"id": int(rng.choice(numbers))})])


def hasty(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Buys the first product that a search for the goal's words finds, without options: what a shortcut is worth."""
    goal = task.data["goal"]
    seen = yield from _search(" ".join([*goal["attributes"], goal["query"]]))
    first = re.search(r"\[(\d+)\] link \"(?!Back|<|Next)", str(seen[-1]["content"]))
    if first is not None:
        seen = yield Say(calls=[("click", {"id": int(first[1])})])
        yield Say(calls=[("click", {"id": _number(seen, "button", "Buy Now")})])


def _number(seen: list[Message], role: str, name: str) -> int | None:
    """The number of the only element of that role and name on the page that was shown last."""
    found = set(re.findall(rf"\[(\d+)\] {role} {re.escape(json.dumps(name))}", str(seen[-1]["content"])))
    return int(found.pop()) if len(found) == 1 else None
