"""The shop as a web site: a search form, pages of results, pages of products with options, and a button that buys."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from agentrl.registry.references import load_object
from agentrl.tools.builtin.web.site import Page, SiteRequest

Catalogue = load_object("./catalogue.py:Catalogue", Path(__file__).parent)

HOST, PER_PAGE = "shop.test", 10
STYLE = """body{font:16px/1.4 sans-serif;max-width:900px;margin:24px auto;padding:0 16px}
button{font:inherit;padding:4px 12px}
fieldset{border:0;padding:4px 0}li{margin:8px 0}.price{font-weight:bold}"""


@dataclass
class Purchase:
    """What was bought: the product's id and the chosen options by name."""

    asin: str
    options: dict[str, str]


@dataclass
class Shop:
    """A shop for many customers at once. Who comes in by the address of `enter` is told apart by a cookie."""

    catalogue: Any
    _bought: dict[str, Purchase | None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self) -> tuple[str, str]:
        """A new customer: the key by which `leave` knows them, and the address that their browser opens first."""
        key = uuid.uuid4().hex
        with self._lock:
            self._bought[key] = None
        return key, f"http://{HOST}/enter/{key}"

    def bought(self, key: str) -> Purchase | None:
        """What a customer has bought."""
        return self._bought.get(key)

    def leave(self, key: str) -> None:
        """Forgets a customer."""
        with self._lock:
            self._bought.pop(key, None)

    def answer(self, request: SiteRequest) -> Page:
        """The page at an address."""
        _, room, *rest = request.path.split("/")
        known: dict[str, Callable[..., Page]] = {
            "": self._home,
            "enter": self._enter,
            "search": self._results,
            "item": self._item,
            "buy": self._buy,
            "done": self._done,
        }
        if room not in known:
            return _page("Not found", "<p>There is no such page.</p>", 404)
        return known[room](request, *rest[:2])

    def _enter(self, request: SiteRequest, key: str = "", *_: str) -> Page:
        if key not in self._bought:
            return _page("Not found", "<p>There is no such page.</p>", 404)
        return Page.moved("/", **{"Set-Cookie": f"customer={key}; Path=/; HttpOnly"})

    def _home(self, request: SiteRequest, *_: str) -> Page:
        return _page("Search", _search_form(""))

    def _results(self, request: SiteRequest, *_: str) -> Page:
        query = request.query.get("q", "")
        found = self.catalogue.search(query)
        last = max(1, -(-len(found) // PER_PAGE))
        page = min(max(1, _number(request.query.get("page"), 1)), last)
        rows = [
            f'<li><a href="{_at(f"/item/{one.asin}", q=query, page=page)}">{escape(one.title)}</a> '
            f'<span class="price">${one.price:.2f}</span></li>'
            for one in found[(page - 1) * PER_PAGE : page * PER_PAGE]
        ]
        steps = [
            f'<a href="{_at("/search", q=query, page=to)}">{word}</a>'
            for to, word in ((page - 1, "&lt; Prev"), (page + 1, "Next &gt;"))
            if 1 <= to <= last
        ]
        start = (page - 1) * PER_PAGE + 1
        return _page(
            "Results",
            f"{_search_form(query)}<h2>Page {page} of {last} (Total results: {len(found)})</h2>"
            f'<ol start="{start}">{"".join(rows)}</ol><p>{" ".join(steps)}</p>',
        )

    def _item(self, request: SiteRequest, asin: str = "", part: str = "", *_: str) -> Page:
        product = self.catalogue.products.get(asin)
        parts = {
            "description": lambda: f"<p>{escape(product.description)}</p>",
            "features": lambda: f"<ul>{''.join(f'<li>{escape(one)}</li>' for one in product.features)}</ul>",
            "reviews": lambda: f"<ul>{''.join(f'<li>{escape(one)}</li>' for one in product.reviews)}</ul>",
        }
        if product is None or part not in ("", *parts):
            return _page("Not found", "<p>There is no such page.</p>", 404)
        if part:
            back = f'<p><a href="{_at(f"/item/{asin}", **request.query)}">&lt; Back to the product</a></p>'
            return _page(product.title, f"{back}<h2>{part.title()}</h2>{parts[part]()}")
        carried = {name: value for name, value in request.query.items() if name in ("q", "page")}
        hidden = "".join(f'<input type="hidden" name="{name}" value="{escape(v)}">' for name, v in carried.items())
        options = "".join(_choice(name, values, request.query.get(name)) for name, values in product.options.items())
        buttons = "".join(
            f'<button formaction="/item/{asin}/{one}">{one.title()}</button> '
            for one in ("description", "features", "reviews")
        )
        return _page(
            product.title,
            f'<p><a href="/">Back to Search</a> <a href="{_at("/search", **carried)}">&lt; Prev</a></p>'
            f'<p class="price">Price: ${product.price:.2f}</p><p>Rating: {product.rating:.1f}</p>'
            f"<form>{hidden}{options}<p>{buttons}</p>"
            f'<p><button formaction="/buy/{asin}" formmethod="post">Buy Now</button></p></form>',
        )

    def _buy(self, request: SiteRequest, asin: str = "", *_: str) -> Page:
        product, key = self.catalogue.products.get(asin), request.cookies.get("customer", "")
        if request.method != "POST" or product is None or key not in self._bought:
            return _page("Not found", "<p>There is no such page.</p>", 404)
        options = {name: request.query[name] for name in product.options if request.query.get(name)}
        if any(value not in product.options[name] for name, value in options.items()):
            return _page("Not on offer", "<p>The product does not come like that.</p>", 400)
        with self._lock:
            # The first purchase ends the visit, as in WebShop.
            self._bought[key] = self._bought[key] or Purchase(asin, options)
        return Page.moved("/done")

    def _done(self, request: SiteRequest, *_: str) -> Page:
        return _page("Thank you for shopping with us!", "<p>Your order is on its way.</p>")


def _page(title: str, body: str, status: int = 200) -> Page:
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><link rel="icon" href="data:,"><style>{STYLE}</style>'
    return Page(
        f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{escape(title)}</h1>{body}</body></html>', status
    )


def _search_form(query: str) -> str:
    field = f'<input type="search" name="q" size="60" aria-label="Search the shop" value="{escape(query)}">'
    return f'<form action="/search">{field} <button>Search</button></form>'


def _choice(name: str, values: list[str], chosen: str | None) -> str:
    rows = "".join(
        f'<label><input type="radio" name="{escape(name)}" value="{escape(value)}"'
        f"{' checked' if value == chosen else ''}> {escape(value)}</label> "
        for value in values
    )
    return f"<fieldset><legend>{escape(name)}</legend>{rows}</fieldset>"


def _at(path: str, **query: Any) -> str:
    """An address for an attribute of HTML."""
    return escape(f"{path}?{urlencode(query)}" if query else path)


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isdigit() and len(text) < 6 else default
