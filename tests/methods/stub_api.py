"""Methods that ask a model behind an API: a real HTTP server answers, with a function of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from queue import Queue
from tempfile import mkdtemp
from threading import Thread
from typing import Any

from tests.engines.http_server import serving
from tests.methods.proofs import Method

Answer = Callable[[Any], Any]
"""The body of a request -> the text of a chat completion, or the whole JSON of a reply."""

ANSWERS: dict[str, Answer] = {}
"""By method: what the server answers under `/METHOD/`."""


@dataclass(frozen=True)
class Asking(Method):
    """A method whose recipe names a served model.

    Attributes:
        answer: what the model says.
        asks: keys of the recipe that hold the `url` of a judge; a key that ends in `.url` or `.urls` is the URL itself.
        kept: those of them that the control has, too.
    """

    answer: Answer = str
    asks: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def _small(self, profile: str | None) -> tuple[str, ...]:
        ANSWERS[self.name] = self.answer
        url, found = f"{server()}/{self.name}/v1", list(super()._small(profile))
        for key in self.asks if profile is None else self.kept:
            if key.endswith((".url", ".urls")):
                found.append(f"{key}={[url] if key.endswith('s') else url}")
            else:
                found += [f"{key}.url={url}", f"{key}.cache={_verdicts()}"]
        return tuple(found)


def said(body: Any) -> str:
    """Returns the last message of a request."""
    return str(body["messages"][-1]["content"])


def between(text: str, tag: str) -> str:
    """Returns what stands between the last tags of a name in a prompt."""
    return text.rpartition(f"<{tag}>")[2].partition(f"</{tag}>")[0].strip()


@cache
def server() -> str:
    """Returns the URL of the server, which runs until the tests end."""
    ready: Queue[str] = Queue()

    async def answer(path: str, body: Any) -> Any:
        if body is None:
            return {"object": "list", "data": [{"id": name} for name in ("user", "judge")]}
        found = ANSWERS[path.split("/")[1]](body)
        message = {"role": "assistant", "content": found}
        return found if isinstance(found, dict) else {"choices": [{"message": message, "finish_reason": "stop"}]}

    async def run() -> None:
        async with serving(answer) as url:
            ready.put(url)
            await asyncio.Event().wait()

    Thread(target=lambda: asyncio.run(run()), daemon=True).start()
    return ready.get()


@cache
def _verdicts() -> str:
    return mkdtemp(prefix="agentrl-verdicts-")
