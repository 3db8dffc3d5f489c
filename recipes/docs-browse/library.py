"""The facts that questions are made of, read from the HTML pages of Debian's python3.11-doc and sqlite3-doc."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from agentrl.types.errors import TaskError, needs

ROOTS = {"python": Path("/usr/share/doc/python3.11/html"), "sqlite": Path("/usr/share/doc/sqlite3")}
SQLITE = ("SQLite documentation",)
DESCRIBED = "//dl[starts-with(@class, 'py ') or starts-with(@class, 'c ')]"
NAMED = "./span[contains(@class, 'descclassname') or contains(@class, 'descname')]"
DEFINED = r"#define (SQLITE_\w+)[ \t]+(0x[0-9a-fA-F]+|\d+)\b"
SHOWN = 300
"""Characters of a defined name that the `web` tool shows."""
PACKAGES = {"python": "python3.11-doc", "sqlite": "sqlite3-doc"}


@dataclass(frozen=True)
class Fact:
    """Something that a page says about something that has one name.

    Attributes:
        kind: what is asked.
        page: the file, below the root: `library/os.html`.
        about: the words that the question names it by.
        answers: all right ones; the page says the first.
        route: texts of the links from the start page to the page.
        at: what to look for on the page.
        line: how the line that it stands in begins; a regular expression.
        says: what follows on the page, around the answer; a regular expression whose first match has it in its group.
    """

    kind: str
    page: str
    about: tuple[str, ...]
    answers: tuple[str, ...]
    route: tuple[str, ...]
    at: str
    line: str
    says: str


class Library:
    """Both sets of pages.

    Raises:
        TaskError: one of the packages is not installed.
    """

    def __init__(self, roots: dict[str, Path] | None = None) -> None:
        self.roots = roots or ROOTS
        lacking = [PACKAGES[name] for name, root in self.roots.items() if not (root / "index.html").is_file()]
        if lacking:
            raise TaskError(
                f"the documentation is not installed: {', '.join(lacking)} (no {self.roots['python']} or "
                f"{self.roots['sqlite']})",
                remedy=f"apt-get install --no-install-recommends {' '.join(PACKAGES.values())}",
            )

    def tree(self, site: str, page: str) -> Any:
        """A page, parsed."""
        with needs("http"):
            import lxml.html
        text = (self.roots[site] / page).read_text(encoding="utf-8", errors="replace")
        return lxml.html.fromstring(text)

    # --- python ---------------------------------------------------------------------------------------------------

    def python(self) -> Iterator[Fact]:
        """What pages say about the objects that they describe: each has one description, and one entry in the index."""
        pages = sorted({target.partition("#")[0] for target in self._index})
        pages = [page for page in pages if (self.roots["python"] / page).is_file()]  # There is no changelog in Debian.
        for page in pages:
            items = self.tree("python", page).xpath(DESCRIBED)
            shown = Counter("".join(map(plain, term.xpath(NAMED))) for item in items for term in item.findall("dt"))
            for item in items:
                terms, described = item.findall("dt"), item.find("dd")
                if len(terms) != 1 or described is None:
                    continue
                (term,) = terms
                if (entry := self._index.get(f"{page}#{term.get('id')}")) is None:
                    continue
                name, at = term.get("id").removeprefix("c."), "".join(map(plain, term.xpath(NAMED)))
                if shown[at] > 1:  # `close` of several classes: the page names the class elsewhere
                    continue
                route = ("Python 3.11 documentation", "index", *entry)
                line = rf'term "(?:[^("]*[ *@])?{re.escape(at)}(?!\w)'
                whole = f"{plain(term)} {plain(described)}"
                for kind, more, answer, says in _told(term, described):
                    # A class may say so only behind its methods, and they something else before.
                    if (first := re.search(says, whole)) is not None and first[1] == answer:
                        yield Fact(f"python-{kind}", f"python/{page}", (name, *more), (answer,), route, at, line, says)

    @cached_property
    def _index(self) -> dict[str, tuple[str, str]]:
        """By target (`library/os.html#os.open`): the letter and the text of its only entry in the general index."""
        entries: dict[str, list[tuple[str, str]]] = defaultdict(list)
        texts: Counter[tuple[str, str]] = Counter()
        for path in sorted(self.roots["python"].glob("genindex-?.html")):
            letter = path.stem.removeprefix("genindex-")
            for link in self.tree("python", path.name).xpath("//table[@class='indextable']//a[@href]"):
                text = plain(link)
                texts[letter, text] += 1
                entries[link.get("href")].append((letter, text))
        return {target: found[0] for target, found in entries.items() if len(found) == 1 and texts[found[0]] == 1}

    # --- sqlite ---------------------------------------------------------------------------------------------------

    def sqlite(self) -> Iterator[Fact]:
        """Constants, return types and limits of SQLite's C interface, its result codes and its releases."""
        yield from self._constants()
        yield from self._returns()
        yield from self._codes()
        yield from self._limits()
        yield from self._releases()

    def _constants(self) -> Iterator[Fact]:
        """Those that one page alone defines, from 10 on: smaller ones are guessed."""
        found: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for path in sorted((self.roots["sqlite"] / "c3ref").glob("c_*.html")):
            for block in self.tree("sqlite", f"c3ref/{path.name}").xpath("//pre"):
                for name, value in re.findall(
                    r"#define (SQLITE_\w+)[ \t]+(0x[0-9a-fA-F]+|\d+)\b", block.text_content()
                ):
                    found[name].append((path.name, value))
        listed: dict[str, list[str]] = defaultdict(list)
        for link in self.tree("sqlite", "c3ref/constlist.html").xpath("//a[@href]"):
            listed[plain(link)].append(link.get("href").rpartition("/")[2].partition("#")[0])
        for name, values in found.items():
            page, value = values[0]
            # The list leads elsewhere for result codes.
            if len(values) == 1 and listed[name] == [page] and int(value, 0) >= 10:
                route = (*SQLITE, "C/C++ Interface Spec", "List Of Constants.", name)
                yield Fact(
                    "sqlite-constant",
                    f"sqlite/c3ref/{page}",
                    (name,),
                    (value,),
                    route,
                    name,
                    "",
                    rf"{name}\s+({value})\b",
                )

    def _returns(self) -> Iterator[Fact]:
        """Return types other than `int` and `void`, which most have."""
        for link in self.tree("sqlite", "c3ref/funclist.html").xpath("//a[@href]"):
            name, page = plain(link), link.get("href").removeprefix("../").partition("#")[0]
            if not re.fullmatch(r"sqlite3_\w+", name) or not page.startswith("c3ref/"):
                continue
            declared = " ".join(block.text_content() for block in self.tree("sqlite", page).xpath("//pre"))
            types = re.findall(rf"(?m)^ *((?:const |unsigned )*\w+ ?\**) ?{name}\(", declared)
            if len(types) == 1 and types[0].strip() not in ("int", "void", "SQLITE_API"):
                route = (*SQLITE, "List of C-language APIs", name)
                said = types[0].strip()
                says = rf"({re.escape(said)}) ?{name}\("
                yield Fact("sqlite-return", f"sqlite/{page}", (name,), (said,), route, f"{name}(", "", says)

    def _codes(self) -> Iterator[Fact]:
        """Extended result codes: those from 100 on."""
        for heading in self.tree("sqlite", "rescode.html").xpath("//h3"):
            if match := re.fullmatch(r"\((\d{3,})\) (SQLITE_\w+)", plain(heading)):
                route = (*SQLITE, "Documentation", "► Programming Interfaces", "Result and Error Codes")
                says = rf"\({match[1]}\)\s+(SQLITE_\w+)"
                yield Fact(
                    "sqlite-code",
                    "sqlite/rescode.html",
                    (match[1],),
                    (match[2],),
                    route,
                    f"({match[1]}) ",
                    "heading",
                    says,
                )

    def _limits(self) -> Iterator[Fact]:
        text = plain(self.tree("sqlite", "limits.html").body)
        for name in sorted(set(re.findall(r"SQLITE_MAX_\w+", text))):
            # A sentence soon behind the name; not one that goes on "for SQLite versions prior to ...".
            says = rf"{name}\b(?:(?!SQLITE_).){{0,140}}?default[a-z ]*? (\d[\d,]*)(?! for| billion|[\d,])"
            if len(values := {match.strip(",") for match in re.findall(says, text)}) == 1:
                (value,) = values
                route = (*SQLITE, "Documentation", "► Features", "Limits In SQLite")
                yield Fact("sqlite-limit", "sqlite/limits.html", (name,), (value,), route, name, "", says)

    def _releases(self) -> Iterator[Fact]:
        for link in self.tree("sqlite", "chronology.html").xpath(
            "//table[@id='chrontab']//a[contains(@href, 'releaselog')]"
        ):
            version, page = plain(link), link.get("href")
            said = re.search(r"SQLite Release \S+ On (\d{4}-\d\d-\d\d)", plain(self.tree("sqlite", page).body))
            if said:
                route = (*SQLITE, "Prior Releases", version)
                says = rf"SQLite Release {re.escape(version)} On (\d{{4}}-\d\d-\d\d)"
                yield Fact(
                    "sqlite-release", f"sqlite/{page}", (version,), (said[1],), route, "SQLite Release", "", says
                )


def _told(term: Any, described: Any) -> Iterator[tuple[str, tuple[str, ...], str, str]]:
    """Kind, further words of the question, answer and its place, of one object."""
    added = [plain(note) for note in described.xpath("./div[@class='versionadded']")]
    if len(added) == 1 and (match := re.fullmatch(r"New in version (3\.\d+)\.", added[0])):
        yield "added", (), match[1], r"New in version (3\.\d+)\."
    gone = [plain(note) for note in described.xpath("./div[contains(@class, 'deprecated')]")]
    if len(gone) == 1 and (match := re.match(r"Deprecated since version (3\.\d+)(?:[.:]|, will be)", gone[0])):
        yield "deprecated", (), match[1], r"Deprecated since version (3\.\d+)"
    stable = [plain(note) for note in described.xpath("./em[@class='stableabi']")]
    if len(stable) == 1 and (match := re.search(r"since version (3\.\d+)\.", stable[0])):
        yield "stable", (), match[1], r"Stable ABI\s+since version (3\.\d+)\."
    if re.match("py (function|method|class)", term.getparent().get("class")):
        for parameter in term.xpath("./em[@class='sig-param']"):
            name = parameter.xpath("string(./span[@class='n'])").strip()
            default = parameter.xpath("string(./span[@class='default_value'])").strip()
            says = rf"\b{re.escape(name)}=({re.escape(default)})"
            told = re.search(says, plain(term)[:SHOWN]) is not None
            if told and name and default.strip("'\"`. ") and default not in ("None", "False", "True", "0", "1"):
                yield "default", (name,), default, says


def plain(element: Any) -> str:
    """The text of an element, with single blanks."""
    return " ".join(str(element.text_content()).split())
