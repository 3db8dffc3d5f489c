"""The judge: a language model behind an OpenAI-compatible API.

If the judge cannot be reached, `EngineError` is raised: the episode is an infrastructure failure and is retried. A
reply that cannot be parsed is a lost vote. If most votes are lost, the component is None (never 0), with the reason in
the episode's notes. Verdicts are stored on disk by a hash of the request, together with the prompt and the replies.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from agentrl.registry.checks import variable
from agentrl.rewards.grading import Unverified
from agentrl.store.info import replace
from agentrl.types.errors import AgentRLError, EngineError
from agentrl.types.http.client import Unanswered, asked
from agentrl.types.parts.content import image_parts
from agentrl.types.parts.image import data_url
from agentrl.types.task import Task

_LARGEST = 8 << 20  # bytes of an answer
_READ = 1 << 16
"""Characters of a reply that are read, the last ones: verdicts are looked for at every place of it."""
Question = Callable[[int], str]
"""Builds a prompt with at most the given number of characters of the agent's text."""

KEY = (401, 403)
"""Statuses of a key that is wrong, or has become so: the server is out of reach."""


def refuses(status: int) -> bool:
    """Returns True for the status of a request that is not taken, and would not be a second time."""
    return 400 <= status < 500 and status not in (*KEY, 408, 429)


class QuestionRefused(Exception):
    """A server does not take the request; the message is its answer."""


class Judge(BaseModel):
    """Judge model, and the number of votes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(pattern=r"^https?://", description="Base of the API, e.g. http://localhost:8000/v1.")
    model: str = Field(description="Its name there.")
    votes: int = Field(1, gt=0, description="How often it is asked (pairwise: in either order).")
    temperature: float = Field(0.0, ge=0, description="Of the votes; more than one vote wants more than 0.")
    max_tokens: int = Field(512, gt=0, description="Of one reply.")
    timeout_s: float = Field(60.0, gt=0, description="One request.")
    retries: int = Field(3, ge=0, description="After a failed request, with a growing pause.")
    backoff_s: float = Field(0.5, ge=0, description="The first pause; it doubles.")
    api_key_env: str | None = Field(None, description="Environment variable that holds the API key.")
    chars: int = Field(
        32_000, ge=1000, description="Of an answer or a transcript that it is shown; of a longer one the middle is cut."
    )
    images: bool = Field(False, description="Whether the model takes images: then it is shown those of the task.")
    cache: str | None = Field(None, description="Folder of verdicts; default: ~/.cache/agentrl/judge.")

    _shown: tuple[bytes, ...] = PrivateAttr(())

    def seeing(self, task: Task, read_blob: Callable[[str], bytes]) -> Judge:
        """This judge, shown the images of a task with every prompt.

        Args:
            read_blob: gives the file of an image.

        Raises:
            AgentRLError: the task shows images, and the judge takes text only.
        """
        parts = list(image_parts(task.instruction))
        if not parts:
            return self
        if not self.images:
            raise AgentRLError(
                f"the task shows images, and the judge {self.model} takes text only",
                place="judge.images",
                remedy="judge.images: true, if its model takes images",
            )
        seeing = self.model_copy()
        seeing._shown = tuple(read_blob(part["blob"]) for part in parts)
        return seeing

    @property
    def folder(self) -> Path:
        """The folder of stored verdicts."""
        if self.cache is not None:
            return Path(self.cache).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl" / "judge"

    async def ask(self, questions: list[Question], read: Callable[[str], Any]) -> tuple[list[Any], str]:
        """Asks every question `votes` times. If the judge refuses a prompt, e.g. as too long, the material is cut.

        Args:
            read: parses a reply; returns None on failure.

        Returns:
            The parsed votes of each question, and the hash under which they are stored.

        Raises:
            EngineError: the judge cannot be reached, or fails.
            Unverified: the judge refuses the agent's text, and accepts the question without it.
            AgentRLError: the judge refuses the request (a wrong model).
        """
        for most in (self.chars, self.chars // 4, self.chars // 16):
            with suppress(QuestionRefused):
                return await self._ask([question(most) for question in questions], read)
        try:
            await self._replies([questions[0](0)])
        except QuestionRefused as refused:
            raise AgentRLError(
                f"the judge refused: {refused}", place=self.url, remedy="fix the settings of the judge"
            ) from None
        raise Unverified("the judge refuses what the agent wrote")

    async def _ask(self, prompts: list[str], read: Callable[[str], Any]) -> tuple[list[Any], str]:
        asked = {
            "url": self.url, "model": self.model, "votes": self.votes, "temperature": self.temperature,
            "max_tokens": self.max_tokens, "prompts": prompts,
        }  # fmt: skip
        if self._shown:
            asked["images"] = [hashlib.sha256(image).hexdigest() for image in self._shown]
        key = hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()
        path = self.folder / key[:2] / f"{key}.json"
        if path.is_file():
            replies = json.loads(path.read_bytes())["replies"]
        else:
            replies = await self._replies(prompts)
        read_replies = [read(reply) for reply in replies]
        if not path.is_file() and 2 * sum(item is not None for item in read_replies) > len(replies):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace(path, msgspec.json.encode({**asked, "replies": replies}), durable=False)
        return read_replies, key

    async def ask_each(self, questions: list[Question], read: Callable[[str], Any]) -> tuple[list[list[Any]], str]:
        """Like `ask`, with the votes grouped by question."""
        votes, key = await self.ask(questions, read)
        return [votes[start : start + self.votes] for start in range(0, len(votes), self.votes)], key

    async def _replies(self, prompts: list[str]) -> list[str]:
        key = variable(self.api_key_env) if self.api_key_env else None
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        votes = [self._reply(headers, prompt, vote) for prompt in prompts for vote in range(self.votes)]
        return list(await asyncio.gather(*votes))

    def _content_of(self, prompt: str) -> Any:
        """A text, or a list of parts where images are shown."""
        shown = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in self._shown]
        return [{"type": "text", "text": prompt}, *shown] if shown else prompt

    async def _reply(self, headers: dict[str, str], prompt: str, vote: int) -> str:
        body = {
            "model": self.model, "messages": [{"role": "user", "content": self._content_of(prompt)}],
            "temperature": self.temperature, "max_tokens": self.max_tokens, "seed": vote,
        }  # fmt: skip
        problem, attempt = "", 0
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(self.backoff_s * 2 ** (attempt - 1))
            try:
                url = f"{self.url.rstrip('/')}/chat/completions"
                status, content = await asked(
                    "POST", url, body=body, headers=headers, seconds=self.timeout_s, most=_LARGEST
                )
                text = content.decode("utf-8", "replace")
                if status == 200:
                    return _content(text)
            except Unanswered as error:
                problem = str(error)
            except ValueError as error:  # no chat completion
                problem = f"{type(error).__name__}: {error}"
            else:
                problem = f"HTTP {status}: {text[:200]}"
                if status in KEY:
                    break
                if refuses(status):
                    raise QuestionRefused(problem)
        raise EngineError(f"the judge failed {attempt + 1} times; the last: {problem}", place=self.url)


def _content(text: str) -> str:
    """Returns the reply of a chat completion. Raises ValueError without one."""
    try:
        return str(json.loads(text)["choices"][0]["message"]["content"] or "")[-_READ:]
    except (KeyError, IndexError, TypeError, ValueError, RecursionError):
        raise ValueError(f"not a chat completion: {text[:200]}") from None
