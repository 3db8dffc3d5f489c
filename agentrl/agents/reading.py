"""Agent with a reader: web pages are read in a separate conversation that returns only notes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentrl.rollouts.agent import ToolAgent
from agentrl.rollouts.faults.failures import LimitReached
from agentrl.rollouts.session import Session
from agentrl.tools.base import Tool, tool
from agentrl.tools.builtin.web.fetch import HttpSettings
from agentrl.tools.builtin.web.http import Http
from agentrl.types.engine import ContextOverflow
from agentrl.types.errors import ToolError

SYSTEM = (
    "You read a web page part by part, to answer a question. Reply with notes: all that the page says about the "
    "question, and nothing else. If the next part is likely to say more, end the notes with the word MORE."
)
MORE = "MORE"


class ReadingAgent(ToolAgent):
    """Extends `tool_agent` by the tool `read(url, question)`: a reader takes notes on a web page.

    A reader sees the parts of the page in order, each in a separate context with the notes so far, and decides after
    each whether to read the next (the browsing agent of DeepResearcher, arXiv:2504.03160, section 3.2). It is the same
    policy: its turns are trained and get credit with the others. Calls of one reply run concurrently.

    Args:
        http: settings of the `http` tool for fetching; `chars` is the length of a part.
        parts: maximum parts read per page.
        reader_system: system message of a reader.
        timeout_s: timeout of one page.
    """

    def __init__(
        self,
        http: HttpSettings | None = None,
        parts: Annotated[int, Field(gt=0)] = 4,
        reader_system: str = SYSTEM,
        timeout_s: Annotated[float, Field(gt=0)] = 600.0,
    ) -> None:
        self.parts, self.reader_system = parts, reader_system
        self.http = Http(http or HttpSettings())
        self._read = Read(self)
        self._read.timeout_s = timeout_s
        self._session: Session  # Since `run`.
        self._readers = 0

    def tools(self) -> list[Tool]:
        """Returns the tool `read`."""
        return [self._read]

    async def run(self, session: Session) -> None:
        """Runs the loop of `tool_agent`."""
        self._session = session
        await super().run(session)

    async def notes(self, url: str, question: str) -> str:
        """Reads a page and returns the reader's notes.

        Raises:
            ToolError: the page cannot be fetched, or a reader reached a limit.
        """
        page, size = await self.http.page(url), self.http.settings.chars
        starts = range(0, max(len(page.text), 1), size)[: self.parts]
        self._readers += 1
        reader, notes = self._readers, ""
        for number, start in enumerate(starts):
            asked = f"Question: {question}\nPage: {page.url} {page.title}\nNotes so far: {notes or 'none'}\n\n"
            reply = await self._part(f"reader-{reader}.{number + 1}", asked + page.text[start : start + size])
            notes = f"{notes}\n{reply.removesuffix(MORE).rstrip()}".strip()
            if not reply.endswith(MORE):
                break
        return f"[{page.url} {page.title}]\n{notes or 'The reader noted nothing.'}"

    async def _part(self, name: str, text: str) -> str:
        """Returns a reader's reply to one part."""
        messages = [{"role": "system", "content": self.reader_system}, {"role": "user", "content": text}]
        reader = self._session.context(name, messages, tools=[], role="reader")
        try:
            return (await reader.generate()).text.strip()
        except LimitReached:
            raise ToolError("the episode has no turn left") from None
        except ContextOverflow:
            raise ToolError("a part of the page does not fit into the reader's context") from None


class Read(Tool):
    """Tool of a `ReadingAgent`."""

    parallel = True

    def __init__(self, agent: ReadingAgent) -> None:
        self._agent = agent

    async def close(self) -> None:
        """Closes the connections."""
        await self._agent.http.close()

    @tool
    async def read(self, url: str, question: str) -> str:
        """Has a reader look for something on a page of the web; its notes.

        Args:
            url: The address, with http:// or https://.
            question: What to look for, with all that the reader needs to know.
        """
        return await self._agent.notes(url, question)

    def state_key(self) -> str:
        """Hash of the pages fetched so far."""
        return self._agent.http.state_key()
