"""Checks the built site: every link, anchor and picture leads somewhere, and every public name is in the reference.

python docs/check_site.py [build/site]       # exit code 1, and a line for each fault
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import agentrl

SITE = Path(__file__).parents[1] / "build" / "site"


class Page(HTMLParser):
    """The ids of a page, and what it refers to: links, pictures, styles and scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.ids |= {given[name] for name in ("id", "name") if name in given and (name == "id" or tag == "a")}
        self.links += [given[name] for name in ("href", "src") if name in given and not self._elsewhere(tag, given)]

    @staticmethod
    def _elsewhere(tag: str, given: dict[str, str]) -> bool:
        return tag == "link" and given.get("rel") == "canonical"


@cache
def page(path: Path) -> Page:
    """The page at a path, read once."""
    return Page(path.read_text())


def faults(site: Path) -> Iterator[str]:
    """Yields what is wrong with a site."""
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":  # its links begin at the root of a server
            continue
        for link in page(path).links:
            if fault := _fault(site, path, link):
                yield f"{path.relative_to(site)}: {link}: {fault}"
    reference = site / "reference" / "api.html"
    names = page(reference).ids if reference.is_file() else set()
    for name in agentrl.__all__:
        if f"{agentrl._MODULES[name]}.{name}" not in names:
            yield f"reference/api.html: {name}: this public name has no entry"


def _fault(site: Path, path: Path, link: str) -> str | None:
    if link.startswith(("http://", "https://", "mailto:", "data:", "javascript:", "//")):
        return None
    address, anchor = urldefrag(unquote(link))
    target = (path.parent / address.partition("?")[0]).resolve() if address else path
    if not target.is_relative_to(site.resolve()) and target != path:
        return "leads out of the site"
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "there is no such file"
    if anchor and target.suffix == ".html" and anchor not in page(target).ids and not anchor.startswith("__"):
        return "there is no such anchor"
    return None


def main() -> int:
    found = [*faults(Path(sys.argv[1]) if len(sys.argv) > 1 else SITE)]
    print("\n".join(found) or "every link, anchor and public name is there")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
