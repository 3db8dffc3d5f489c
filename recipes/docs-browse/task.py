"""Questions with one right answer over the Python and SQLite documentation, which the recipe itself serves."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import mimetypes
import random
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl import Environment, Message, Say, Task, ToolError, tool
from agentrl.registry.references import load_object
from agentrl.tools.browser.launching import Launch, find_chromium, open_context
from agentrl.tools.browser.site import Page, Request, Site
from agentrl.types.episode import Episode

HERE = Path(__file__).parent
HOST = "docs.test"
START = f"http://{HOST}/"
SETTLE_S = 20.0  # a page of 10,000 lines, on a machine with much to do
Library = load_object("./library.py:Library", HERE)

QUESTIONS = {
    "python-added": "In which version of Python was {0} added?",
    "python-default": "What is the default value of the parameter {1} of {0}()?",
    "python-deprecated": "Since which version of Python is {0} deprecated?",
    "python-stable": "Since which version of Python is {0} part of the Stable ABI?",
    "sqlite-code": "Which result code of SQLite has the number {0}?",
    "sqlite-constant": "What is the value of the constant {0} of SQLite's C interface?",
    "sqlite-limit": "What is the default of SQLite's compile-time limit {0}?",
    "sqlite-release": "On which date was SQLite {0} released (YYYY-MM-DD)?",
    "sqlite-return": "What is the return type of SQLite's C function {0}()?",
}


def questions(n: int = 512, seed: int = 0, held_out: bool = False) -> Iterator[Task]:
    """The first `n` questions, the kinds in turn. A smaller `n` gives the beginning of the same list.

    Args:
        seed: shuffles the questions of each kind. The id of a question does not depend on it.
        held_out: the pages (one in eight, by a hash of the file's name) that are for evaluation, not the rest.

    Raises:
        TaskError: a package is not installed.
    """
    pools = []
    for kind in QUESTIONS:
        pool = [fact for fact in facts() if fact.kind == kind and (_hash(fact.page) % 8 == 0) == held_out]
        random.Random(f"{seed} {kind}").shuffle(pool)
        pools.append(_spread(pool))
    dealt = (fact for row in itertools.zip_longest(*pools) for fact in row if fact is not None)
    for fact in itertools.islice(dealt, n):
        yield Task.of(
            f"{fact.kind}/{'/'.join(fact.about)}",
            f"{QUESTIONS[fact.kind].format(*fact.about)} The documentation is at {START}",
            answer=list(fact.answers),
            page=f"{START}{fact.page}",
            route=list(fact.route),
            at=fact.at,
            line=fact.line,
            says=fact.says,
        )


def _hash(text: str) -> int:
    return zlib.crc32(text.encode())


def _spread(pool: list[Any]) -> list[Any]:
    """The same answer as rarely as can be: all answers once, then again. To say `3.3` to everything is of no use."""
    seen: Counter[str] = Counter()
    turns = []
    for fact in pool:
        turns.append(seen[fact.answers[0]])
        seen[fact.answers[0]] += 1
    return [pool[index] for index in sorted(range(len(pool)), key=lambda index: turns[index])]


@functools.cache
def facts() -> list[Any]:
    """What can be asked, read from the pages once a process."""
    library = Library()
    return _alone([*library.python(), *library.sqlite()])


def _alone(found: list[Any]) -> list[Any]:
    """Without what is told twice, in two places."""
    times: dict[Any, int] = defaultdict(int)
    for fact in found:
        times[fact.kind, fact.about] += 1
    return [fact for fact in found if times[fact.kind, fact.about] == 1]


# --- the site -------------------------------------------------------------------------------------------------------


@functools.cache
def site() -> str:
    """The documentation, served to all episodes of this process: the flag with which Chromium finds it."""
    return Site({HOST: Docs(Library().roots)}).flag


class Docs:
    """The files of several folders below one start page."""

    def __init__(self, roots: Mapping[str, Path]) -> None:
        self.roots = dict(roots)

    def __call__(self, request: Request) -> Page:
        name, _, rest = request.path.lstrip("/").partition("/")
        if not name:
            return Page(HOME)
        parts = rest.split("/") if rest else ["index.html"]
        path = self.roots[name].joinpath(*parts) if name in self.roots and ".." not in parts else None
        if path is None or not path.is_file():
            return Page("<!doctype html><title>Not found</title><h1>Not found</h1><p>There is no such page.</p>", 404)
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return Page(path.read_bytes(), type=f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)


HOME = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Documentation</title>
<link rel="icon" href="data:,"><h1>Documentation</h1>
<ul><li><a href="/python/index.html">Python 3.11 documentation</a></li>
<li><a href="/sqlite/index.html">SQLite documentation</a></li></ul></html>"""


# --- the reward -----------------------------------------------------------------------------------------------------


def exact(task: Task, episode: Episode) -> float:
    """1 if the answer is one of the right ones: blanks, quotes around it and how a number is written do not count."""
    return float(canonical(episode.answer or "") in map(canonical, task.data["answer"]))


def canonical(text: str) -> str:
    """`const char*` as `const char *`, `'r'` as `r`, `0x10` and `1,000` as the numbers that they are."""
    text = re.sub(r"\s*\*", " *", " ".join(text.split())).strip("`'\" ")
    text = text.removesuffix(".")
    number = text.replace(",", "")
    if re.fullmatch(r"0[xX][0-9a-fA-F]+|\d+", number):
        return str(int(number, 16 if number[:2].lower() == "0x" else 10))
    return text


# --- the reader -----------------------------------------------------------------------------------------------------


class Reader(Environment):
    """A browser that shows the accessibility tree of a page, a window of lines at a time.

    Args:
        lines: most lines shown at once.
        chars: most characters of a line.
        chromium: path of Chromium; default: the one that is installed.
    """

    def __init__(self, lines: int = 40, chars: int = 6000, chromium: str | None = None) -> None:
        find_chromium(chromium)
        self.lines, self.chars, self.chromium = lines, chars, chromium

    async def open(self, task: Task, sandbox: object) -> None:
        """Shows the start page."""
        launch = Launch(executable=self.chromium, flags=(await asyncio.to_thread(site),))
        self.page = await open_context(launch, viewport=[1024, 768])
        self.seen = await self._go("goto", url=START)

    async def close(self) -> None:
        """Ends."""
        await self.page.close()

    def opening(self) -> str:
        return self.seen

    @tool
    async def visit(self, url: str) -> str:
        """Open an address.

        Args:
            url: where to go; nothing but the documentation can be reached.
        """
        return await self._go("goto", url=url)

    @tool
    async def click(self, element: int) -> str:
        """Click on a link or a button.

        Args:
            element: its number, which stands in brackets.
        """
        return await self._go("click", element=element)

    @tool
    async def back(self) -> str:
        """Go back to the page before."""
        return await self._go("back")

    @tool
    def find(self, text: str, skip: int = 0) -> str:
        """Find the lines of this page that contain a text.

        Args:
            text: upper and lower case are the same.
            skip: so many of them are not shown, because they were before.
        """
        found = [(number, line) for number, line in enumerate(self.tree) if text.lower() in line.lower()]
        shown = [f"{number}: {_around(line, text)}" for number, line in found[skip : skip + self.lines // 2]]
        rest = len(found) - skip - len(shown)
        self.seen = "\n".join([f"{len(found)} lines", *shown, *([f"... {rest} more"] if rest > 0 else [])])
        return self.seen

    @tool
    def read(self, line: int) -> str:
        """Show this page from a line on.

        Args:
            line: its number, from 0.
        """
        if not 0 <= line < max(1, len(self.tree)):
            raise ToolError(f"the page has lines 0 to {len(self.tree) - 1}")
        shown = [each[: self.chars] for each in self.tree[line : line + self.lines]]
        rest = len(self.tree) - line - len(shown)
        last = [f"... {rest} more lines: read({line + len(shown)})"] if rest > 0 else []
        self.seen = "\n".join([self.url, *shown, *last])
        return self.seen

    async def _go(self, op: str, **fields: Any) -> str:
        try:
            await self.page.do(op, **fields)
        finally:  # what failed may have happened all the same: a click that took too long
            await self.page.do("settle", seconds=SETTLE_S)
            tree = await self.page.do("tree")
            self.url, self.tree = tree["url"], tree["lines"]
        return self.read(0)

    def state_key(self) -> str:
        return self.seen


def _around(line: str, text: str) -> str:
    """A line, or what is around the text in a long one."""
    line = line.strip()
    start = max(0, line.lower().find(text.lower()) - 150)
    return f"{'... ' if start else ''}{line[start : start + 300]}{' ...' if len(line) > start + 300 else ''}"


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Follows the links to the page and reads the answer there. Gives up where a page does not show what comes next."""
    seen = yield Say(calls=[("read", {"line": 0})])
    for text in task.data["route"]:
        quoted = json.dumps(text, ensure_ascii=False)
        link, clicked = rf"\[(\d+)\] (?:link|clickable) {re.escape(quoted)}", False
        while not clicked:
            if (number := re.search(link, _text(seen))) is None:
                seen = yield Say(calls=[("find", {"text": f" {quoted}"})])
                if (number := re.search(link, _text(seen))) is None:
                    return
            seen = yield Say(calls=[("click", {"element": int(number[1])})])
            clicked = not _text(seen).startswith("Error")
            if not clicked:  # the page was too slow to say so, or for a click
                seen = yield Say(calls=[("find", {"text": f" {quoted}"})])
                clicked = re.search(link, _text(seen)) is None
    at, skip = task.data["at"], 0
    while True:
        seen = yield Say(calls=[("find", {"text": at, "skip": skip})])
        hits = _text(seen)
        for line in re.findall(rf"(?m)^(\d+): (?:\.\.\. )?{task.data['line']}", hits):
            shown, start = "", int(line)
            for _ in range(3):  # long descriptions go on
                seen = yield Say(calls=[("read", {"line": start})])
                shown += " " + _read(_text(seen))
                if (said := re.search(task.data["says"], shown)) is not None:
                    yield Say(calls=[("answer", {"text": said[1]})])
                    return
                more = re.search(r"more lines: read\((\d+)\)", _text(seen))
                if more is None:
                    break
                start = int(more[1])
        if "more" not in hits.splitlines()[-1]:
            return
        skip += hits.count("\n") - 1


def random_agent(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Clicks on anything a few times, then answers with a word of what it saw."""
    seen = yield Say(calls=[("read", {"line": 0})])
    for _ in range(4):
        numbers = re.findall(r"\[(\d+)\]", _text(seen))
        seen = yield Say(calls=[("click", {"element": int(rng.choice(numbers))}) if numbers else ("back", {})])
    yield Say(calls=[("answer", {"text": rng.choice(_text(seen).split() or ["nothing"])})])


def _text(seen: list[Message]) -> str:
    return str(seen[-1]["content"])


def _read(lines: str) -> str:
    """The words of lines of a tree, without roles and numbers."""
    words = re.sub(r"(?m)^ *(?:\[\d+\] )?[a-z]+(?:: | (?=\")|$)", " ", lines.partition("\n")[2])
    return " ".join(re.sub(r"(?m)^ *\"(.*)\"[^\"\n]*$", lambda match: str(json.loads(f'"{match[1]}"')), words).split())
