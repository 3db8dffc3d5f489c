"""Requests to a served model that judges. Failed ones are retried; refused ones are sent again with less text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from agentrl.registry.checks import variable
from agentrl.rewards.grading import Unverified
from agentrl.types.errors import AgentRLError, EngineError
from agentrl.types.http.client import Unanswered, asked

_LARGEST = 8 << 20  # bytes of an answer
_KEY = (401, 403)
"""Statuses of a key that is wrong, or has become so: the server is out of reach."""
T = TypeVar("T")
Q = TypeVar("Q", bound=Hashable)


class QuestionRefused(Exception):
    """The server does not take the request; the message is its answer."""


class ModelService(BaseModel):
    """Address of a served model, and how it is asked."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    noun: ClassVar[str]
    """Word for the model in messages."""

    url: str = Field(pattern=r"^https?://", description="Address of the API.")
    model: str = Field(description="Its name there.")
    timeout_s: float = Field(60.0, gt=0, description="One request.")
    retries: int = Field(3, ge=0, description="After a failed request, with a growing pause.")
    backoff_s: float = Field(0.5, ge=0, description="The first pause; it doubles.")
    api_key_env: str | None = Field(None, description="Environment variable that holds the API key.")

    async def post(self, url: str, body: dict[str, Any], read: Callable[[bytes], T]) -> T:
        """Posts a request until its answer can be read.

        Args:
            read: parses an answer. Raises ValueError on failure.

        Raises:
            QuestionRefused: the server does not take the request, and would not the next time.
            EngineError: no readable answer after all attempts.
        """
        key = variable(self.api_key_env) if self.api_key_env else None
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        problem, attempt = "", 0
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(self.backoff_s * 2 ** (attempt - 1))
            try:
                status, content = await asked(
                    "POST", url, body=body, headers=headers, seconds=self.timeout_s, most=_LARGEST
                )
                if status == 200:
                    return read(content)
            except Unanswered as error:
                problem = str(error)
            except ValueError as error:  # an answer of another form
                problem = f"{type(error).__name__}: {error}"
            else:
                problem = f"HTTP {status}: {content[:200].decode('utf-8', 'replace')}"
                if status in _KEY:
                    break
                if 400 <= status < 500 and status not in (408, 429):
                    raise QuestionRefused(problem)
        raise EngineError(f"the {self.noun} failed {attempt + 1} times; the last: {problem}", place=self.url)

    async def ask_first(
        self, questions: Iterable[Q], ask: Callable[[Q], Awaitable[T]], blank: Callable[[], Awaitable[object]]
    ) -> T:
        """Asks one question after the other until one is taken. Equal ones are asked once.

        Args:
            questions: with less and less of the agent's text.
            blank: asks without the agent's text. It is called when all were refused, to see whose fault it is.

        Raises:
            Unverified: the model refuses the agent's text, and takes the question without it.
            AgentRLError: the model refuses the question in any case.
            EngineError: as `post`.
        """
        for question in dict.fromkeys(questions):
            with suppress(QuestionRefused):
                return await ask(question)
        try:
            await blank()
        except QuestionRefused as refused:
            raise AgentRLError(
                f"the {self.noun} refused: {refused}", place=self.url, remedy=f"fix the settings of the {self.noun}"
            ) from None
        raise Unverified(f"the {self.noun} refuses what the agent wrote")
