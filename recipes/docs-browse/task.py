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
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl import Environment, Message, Say, Task
from agentrl.registry.references import load_object
from agentrl.tools.builtin.web.site import Page, Site, SiteRequest
from agentrl.tools.builtin.web.tool import Web
from agentrl.types.episode import Episode

if TYPE_CHECKING:
    from agentrl.types.sandbox import Sandbox

HERE = Path(__file__).parent
HOST = "docs.test"
START = f"http://{HOST}/"
LOAD_S = SETTLE_S = 20.0  # a page of 10,000 lines, on a machine with much to do
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

    def __call__(self, request: SiteRequest) -> Page:
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


class Reader(Web, Environment):
    """The `web` tool, open on the documentation.

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
            START,
            allow=["*"],  # the flag of the site lets the browser find nothing else
            actions=actions,
            screenshots=screenshots,
            max_chars=max_chars,
            load_s=LOAD_S,
            settle_s=SETTLE_S,
            chromium=chromium,
        )

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Shows the start page."""
        self.launch = replace(self.launch, flags=(await asyncio.to_thread(site),))
        await super().open(task, sandbox)

    async def opening(self) -> Message:
        """The start page."""
        shown = await self._result()
        images = [{"type": "image", "image": image} for image in shown.images]
        return {"role": "user", "content": [shown.text, *images] if images else shown.text}


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Follows the links to the page and reads the answer there. Gives up where a page does not show what comes next."""
    for text in task.data["route"]:
        quoted = json.dumps(text, ensure_ascii=False)
        link, words, clicked = rf"\[(\d+)\] (?:link|clickable) {re.escape(quoted)}", f" {quoted}", False
        seen = yield from _find(words)
        while not clicked:
            if (number := re.search(link, _text(seen))) is None:
                return
            seen = yield Say(calls=[("click", {"id": int(number[1])})])
            clicked = not _text(seen).startswith("Error")
            if not clicked:  # the page was too slow to say so, or for a click
                seen = yield from _find(words)
                clicked = re.search(link, _text(seen)) is None
    hit, words = 1, task.data["at"]
    while True:
        seen = yield from _find(words, hit)
        listed = re.findall(r"(?m)^(\d+)\. (.*)$", _text(seen).partition("\npage:")[0])
        if not listed:  # there are no more
            return
        right = [int(number) for number, line in listed if re.match(task.data["line"], line)]
        if hit == 1 and not right and task.data["line"].startswith('term "'):  # a common word: only where it is defined
            found = yield from _find(f' "{task.data["at"]}')
            if re.search(rf"(?m)^1\. {task.data['line']}", _text(found)):
                words = f' "{task.data["at"]}'
                continue
        if hit not in right:
            hit = right[0] if right else int(listed[-1][0]) + 1
            continue
        shown = _read(_text(seen))
        for _ in range(3):  # long descriptions go on
            if (said := re.search(task.data["says"], shown)) is not None:
                yield Say(calls=[("answer", {"text": said[1]})])
                return
            if "lines below: scroll down]" not in _text(seen):
                break
            seen = yield Say(calls=[("scroll", {})])
            shown += " " + _read(_text(seen))
        hit += 1


def _find(text: str, hit: int = 1) -> Generator[Say, list[Message], list[Message]]:
    """Looks twice: a page that was too slow is there later, and scrolling waits for it."""
    seen = yield Say(calls=[("find", {"text": text, "hit": hit})])
    if _text(seen).startswith("Error"):
        yield Say(calls=[("scroll", {"direction": "up"})])
        seen = yield Say(calls=[("find", {"text": text, "hit": hit})])
    return seen


def random_agent(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Clicks on anything a few times, then answers with a word of what it saw."""
    seen = yield Say(calls=[("open", {"url": "/"})])
    for _ in range(4):
        numbers = re.findall(r"\[(\d+)\]", _text(seen))
        seen = yield Say(calls=[("click", {"id": int(rng.choice(numbers))}) if numbers else ("back", {})])
    yield Say(calls=[("answer", {"text": rng.choice(_text(seen).split() or ["nothing"])})])


def _text(seen: list[Message]) -> str:
    return str(seen[-1]["content"])


def _read(shown: str) -> str:
    """The words of the lines of a tree, without roles and numbers."""
    page = re.split(r"(?m)^url: .*\n", shown, maxsplit=1)[-1]
    return " ".join(" ".join(map(_words, page.splitlines())).split())


def _words(line: str) -> str:
    """Of a line `text: words`, `[3] link "words" state`, or of the role alone."""
    if line.startswith("[..."):
        return ""
    said = re.fullmatch(r' *(?:\[\d+\] )?[a-z]+(?:: (.*)| ("(?:[^"\\]|\\.)*").*)?', line)
    if said is None:
        return line
    return str(json.loads(said[2])) if said[2] else said[1] or ""
