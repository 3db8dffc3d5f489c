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
from pathlib import Path
from typing import Any

import msgspec
from pydantic import Field, PrivateAttr

from agentrl.rewards.functions.judges.service import ModelService
from agentrl.store.info import replace
from agentrl.types.errors import AgentRLError
from agentrl.types.parts.content import image_parts
from agentrl.types.parts.image import data_url
from agentrl.types.task import Task

_READ = 1 << 16
"""Characters of a reply that are read, the last ones: verdicts are looked for at every place of it."""
Question = Callable[[int], str]
"""Builds a prompt with at most the given number of characters of the agent's text."""


class Judge(ModelService):
    """Judge model, and the number of votes."""

    noun = "judge"

    url: str = Field(pattern=r"^https?://", description="Base of the API, e.g. http://localhost:8000/v1.")
    votes: int = Field(1, gt=0, description="How often it is asked (pairwise: in either order).")
    temperature: float = Field(0.0, ge=0, description="Of the votes; more than one vote wants more than 0.")
    max_tokens: int = Field(512, gt=0, description="Of one reply.")
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
        return await self.ask_first(
            [tuple(question(self.chars // part) for question in questions) for part in (1, 4, 16)],
            lambda prompts: self._ask([*prompts], read),
            lambda: self._replies([questions[0](0)]),
        )

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
        votes = [self._reply(prompt, vote) for prompt in prompts for vote in range(self.votes)]
        return list(await asyncio.gather(*votes))

    def _content_of(self, prompt: str) -> Any:
        """A text, or a list of parts where images are shown."""
        shown = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in self._shown]
        return [{"type": "text", "text": prompt}, *shown] if shown else prompt

    async def _reply(self, prompt: str, vote: int) -> str:
        body = {
            "model": self.model, "messages": [{"role": "user", "content": self._content_of(prompt)}],
            "temperature": self.temperature, "max_tokens": self.max_tokens, "seed": vote,
        }  # fmt: skip
        return await self.post(f"{self.url.rstrip('/')}/chat/completions", body, _content)


def _content(answer: bytes) -> str:
    """Returns the reply of a chat completion. Raises ValueError without one."""
    text = answer.decode("utf-8", "replace")
    try:
        return str(json.loads(text)["choices"][0]["message"]["content"] or "")[-_READ:]
    except (KeyError, IndexError, TypeError, ValueError, RecursionError):
        raise ValueError(f"not a chat completion: {text[:200]}") from None
