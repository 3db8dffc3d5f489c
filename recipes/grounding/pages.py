"""What real pages look like, and where on them things are: screenshots and boxes, taken once by Chromium."""

from __future__ import annotations

import asyncio
import hashlib
import json
import mimetypes
import os
import random
import shutil
import tempfile
import threading
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from agentrl.tools.builtin.web.launching import Launch, open_context
from agentrl.tools.builtin.web.site import Page, Site, SiteRequest
from agentrl.types.errors import TaskError

DOCS = {"python.test": Path("/usr/share/doc/python3.11/html"), "sqlite.test": Path("/usr/share/doc/sqlite3")}
SMALL = "miniwob.test"
PACKAGES = "apt-get install --no-install-recommends python3.11-doc sqlite3-doc, and pip install --no-deps miniwob"
LARGE_VIEW, SMALL_VIEW = (1024, 768), (160, 210)

START = """seed => { Math.seedrandom(seed); core.EPISODE_MAX_TIME = 1e6; clearTimeout(core.EP_TIMER);
core.EP_TIMER = null; core.startEpisodeReal(); document.body.style.overflow = 'hidden'; }"""

# The elements (their ids are those that `elements` gave) that a click on their middle would hit, in one piece.
HITS = """ids => { const page = window[Symbol.for('agentrl')]; return ids.filter(id => { const el = page.element(id);
const box = el.getBoundingClientRect(), at = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
return el.getClientRects().length === 1 && (at === el || el.contains(at)) }) }"""


@dataclass(frozen=True)
class View:
    """A page as it was seen, and what could be acted on.

    Attributes:
        page: by which views are split: `python.test/library/os.html`.
        file: the screenshot, in the folder of the views.
        size: width and height in pixels, of the viewport and of the screenshot.
        elements: `role`, `name` and `box` [left, top, right, bottom] of each that a click on its middle would hit.
        down: whether the page goes on below.
    """

    page: str
    file: str
    size: tuple[int, int]
    elements: list[dict[str, Any]]
    down: bool


def views(most: int) -> tuple[Path, list[View]]:
    """The folder of the screenshots of `most` pages and what is on them; taken on first use, kept in `$AGENTRL_CACHE`.

    Raises:
        TaskError: a package with pages is not installed.
        RecipeError: there is no Chromium.
    """
    roots = _roots()
    marks = {host: root / "index.html" if host in DOCS else root for host, root in roots.items()}
    stamps = [(host, mark.stat().st_mtime_ns) for host, mark in marks.items()]
    key = hashlib.sha256(repr((most, stamps)).encode() + Path(__file__).read_bytes()).hexdigest()[:16]
    folder = Path(os.environ.get("AGENTRL_CACHE") or Path.home() / ".cache" / "agentrl") / "grounding" / key
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".taking-", dir=folder.parent))
        try:
            _in_a_loop_of_its_own(partial, roots, most)
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    listed = json.loads((folder / "views.json").read_text())
    return folder, [View(**{**row, "size": tuple(row["size"])}) for row in listed]


def _roots() -> dict[str, Path]:
    """Where the pages of each site lie."""
    try:
        small = Path(str(metadata.distribution("miniwob").locate_file("miniwob/html")))
    except metadata.PackageNotFoundError:
        small = Path("miniwob/html")
    roots = {**DOCS, SMALL: small}
    for root in roots.values():
        if not root.is_dir():
            raise TaskError(f"there is no {root}: pages to look at are not installed", remedy=PACKAGES)
    return roots


def _in_a_loop_of_its_own(folder: Path, roots: dict[str, Path], most: int) -> None:
    """Takes all views; tasks are made outside of asyncio, or inside of a loop that waits for them."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(_take(folder, roots, most))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


async def _take(folder: Path, roots: dict[str, Path], most: int) -> None:
    site = Site({host: _files(root) for host, root in roots.items()})
    found: list[View] = []
    for size, pages in _chosen(roots, most):
        page = await open_context(Launch(flags=(site.flag,)), viewport=list(size))
        try:
            for address in pages:
                await page.do("goto", url=f"http://{address}")
                for number in range(2):
                    if number and not await _moved(page, address, size):
                        break
                    found.append(await _view(page, address, size, folder, number))
        finally:
            await page.close()
    site.close()
    (folder / "views.json").write_text(json.dumps([asdict(view) for view in found if view.elements]))


def _chosen(roots: dict[str, Path], most: int) -> Iterator[tuple[tuple[int, int], list[str]]]:
    """Size of the screen and addresses of the pages: three in eight of each site but SQLite's, which has two."""
    for host, eighths in (("python.test", 3), ("sqlite.test", 2), (SMALL, 3)):
        pattern = "miniwob/*.html" if host == SMALL else "**/*.html"
        names = sorted(path.relative_to(roots[host]).as_posix() for path in roots[host].glob(pattern))
        names = [name for name in names if not name.startswith(("genindex", "contents", "_", "search"))]
        random.Random(host).shuffle(names)
        yield (SMALL_VIEW if host == SMALL else LARGE_VIEW), [f"{host}/{name}" for name in names[: most * eighths // 8]]


async def _moved(page: Any, address: str, size: tuple[int, int]) -> bool:
    """Shows another view of the page: further down, or the same task with other contents."""
    if address.startswith(SMALL):
        return False
    down = size[1] + zlib.crc32(address.encode()) % 2000
    moved: bool = (await page.do("scroll", dy=down))["moved"]
    return moved


async def _view(page: Any, address: str, size: tuple[int, int], folder: Path, number: int) -> View:
    if address.startswith(SMALL):
        await page.evaluate(START, str(zlib.crc32(address.encode())))
    await page.do("settle", seconds=2)
    seen, where = await page.do("elements"), await page.do("where")
    inside = [one for one in seen if one["visible"] and _within(one["box"], size)]
    hit = set(await page.evaluate(HITS, [one["id"] for one in inside]))
    name = f"{zlib.crc32(address.encode()):08x}-{number}.png"
    (folder / name).write_bytes(await page.screenshot())
    return View(
        page=address,
        file=name,
        size=size,
        elements=[
            {"role": one["role"], "name": one["name"], "box": _corners(*one["box"])}
            for one in inside
            if one["id"] in hit
        ],
        down=where["scroll"][1] + size[1] < where["size"][1] - 10,
    )


def _within(box: list[float], size: tuple[int, int]) -> bool:
    """Whether the whole box is on the screen, and at least 6 pixels wide and high."""
    left, top, right, bottom = _corners(*box)
    return min(left, top) >= 0 and right <= size[0] and bottom <= size[1] and min(box[2:]) >= 6


def _corners(left: float, top: float, width: float, height: float) -> list[float]:
    return [left, top, left + width, top + height]


def _files(root: Path) -> Any:
    def answer(request: SiteRequest) -> Page:
        path = root.joinpath(*[part for part in request.path.split("/") if part not in ("", "..")])
        if not path.is_file():
            return Page("", 404)
        return Page(path.read_bytes(), type=mimetypes.guess_type(path.name)[0] or "application/octet-stream")

    return answer
