"""The `http` tool: `get(url)` shows a web page as text."""

from __future__ import annotations

import base64
import hashlib
import math
from typing import Annotated, Any

from pydantic import Field

from agentrl.sandbox.helper import Helper, HelperRaised, TooMuch
from agentrl.tools.base import Tool, tool
from agentrl.tools.builtin.web import readable as reading
from agentrl.tools.builtin.web.fetch import Fetcher, HttpSettings
from agentrl.tools.builtin.web.readable import HttpAnswer, ReadablePage, import_trafilatura
from agentrl.types.errors import ToolError

KEPT = 4
"""Cached pages per episode, so that reading on does not fetch again."""

PARSE_S = 20.0
"""CPU seconds for converting a page to text."""

HEAD = 2000
"""Maximum characters of the header line: address and title."""

_HELPER = Helper("agentrl.tools.builtin.web.readable", memory_mb=1024, size=8)
"""Processes that parse server responses; none is parsed in this process."""


class Http(Tool):
    """Offers `get(url, offset)`.

    Requests come from this machine, not from a sandbox. Server errors are shown to the model; only a lack of sockets or
    memory on this machine is an infrastructure failure.
    """

    parallel = True

    def __init__(self, settings: HttpSettings) -> None:
        import_trafilatura()
        self.settings = settings
        self.timeout_s = math.inf  # the request and the helper process have their own timeouts
        self._fetcher = Fetcher(settings)
        self._pages: dict[str, ReadablePage] = {}
        self._seen: set[str] = set()

    async def close(self) -> None:
        """Closes the connections."""
        await self._fetcher.close()

    @tool
    async def get(self, url: str, offset: Annotated[int, Field(ge=0)] = 0) -> str:
        """Read a page of the web as text.

        Args:
            url: The address, with http:// or https://.
            offset: Where to begin, in characters of its text.
        """
        page = await self.page(url)
        if offset and offset >= len(page.text):
            raise ToolError(f"the text of {page.url} has {len(page.text)} characters")
        self._seen.add(f"{page.url} {offset}")
        return shown(page, offset, self.settings.chars)

    async def page(self, url: str) -> ReadablePage:
        """Returns a page as text, from the cache or fetched.

        Raises:
            ToolError: the page cannot be fetched or is not text.
            InfraError: this machine has run out of sockets or memory.
        """
        page = self._pages.pop(url, None)
        if page is None:
            page = await self._read(await self._fetcher.get(url))
        self._pages[url] = page
        while len(self._pages) > KEPT:
            del self._pages[next(iter(self._pages))]
        return page

    async def _read(self, answer: HttpAnswer) -> ReadablePage:
        body = base64.b64encode(answer.body).decode()
        sent = (answer.url, answer.type, answer.charset, body, answer.size, answer.cut, self.settings.links)
        try:
            found: dict[str, Any] = await _HELPER.ask(reading.read, *sent, cpu_s=PARSE_S)
        except (TooMuch, HelperRaised) as error:
            raise ToolError(f"{answer.url[:HEAD]} cannot be read as text: {error}") from None
        if "refused" in found:
            raise ToolError(found["refused"])
        return ReadablePage(**found)

    def state_key(self) -> str:
        """Hash of the page parts seen so far, in any order: episodes that read the same pages share a state."""
        return hashlib.sha256("\n".join(sorted(self._seen)).encode()).hexdigest()[:16]


def shown(page: ReadablePage, offset: int, chars: int) -> str:
    """Formats a part of a page, with its address above and the next offset below."""
    text = page.text[offset : offset + chars]
    left = len(page.text) - offset - len(text)
    notes = [
        "[the page has no text; a browser might show some]" if not page.text.strip() else "",
        f"[{left} more characters: offset={offset + len(text)}]" if left else "",
        "[the page is longer than what was read of it]" if page.cut and not left else "",
    ]
    head = f"{page.url} {page.title}".strip() if offset == 0 else f"{page.url} from character {offset}"
    return "\n\n".join(filter(None, [f"[{head[:HEAD]}]", text, *notes]))
