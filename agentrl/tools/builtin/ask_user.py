"""The `ask_user` tool: questions to a user simulated by a script or a model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from agentrl.registry.checks import at_least_one
from agentrl.tools.base import Tool, tool
from agentrl.tools.builtin.search.requests import ask, key_of, patience
from agentrl.types.errors import InfraError, RecipeError, TaskError, ToolError
from agentrl.types.sandbox import Sandbox
from agentrl.types.task import Task

_PLAY = (
    "You play a user whom an assistant asks. What you know and want is below. Answer only what is asked, in one or two "
    'sentences, and only with what you know. If it is not there, say "I do not know."\n\n'
)


class AskUser(Tool):
    """Offers `ask_user(question)`. The user's knowledge is in the task.

    A mapping of words to answers is a script: an entry matches a question that contains all of its words; the one with
    the most words wins, then the first. A text is the knowledge of a model that plays the user.

    Args:
        key: field of `task.data` with the knowledge.
        url: base URL of an OpenAI-compatible API, for a user played by a model.
        model: model name in the API.
        api_key_env: environment variable with the API key.
        questions: maximum number of questions.
        unknown: a script's answer to any other question.
        max_tokens: maximum tokens of the model's answer.
        temperature: sampling temperature of the model's answer.
        timeout_s: timeout of one request, of up to four.

    Raises:
        RecipeError: `url` without `model` or vice versa; `questions` below 1; the environment variable is not set.
    """

    def __init__(
        self,
        key: str = "user",
        url: str | None = None,
        model: str | None = None,
        api_key_env: str | None = None,
        questions: int = 8,
        unknown: str = "I do not know.",
        max_tokens: int = 256,
        temperature: float = 0.0,
        timeout_s: float = 60.0,
    ) -> None:
        if (url is None) != (model is None):
            raise RecipeError("ask_user: url and model belong together", remedy="give both, or none for a script")
        at_least_one("ask_user", questions=questions)
        self._api_key = key_of(api_key_env)
        self._key, self._url, self._model, self._most, self._unknown = key, url, model, questions, unknown
        self._max_tokens, self._temperature, self._request_s = max_tokens, temperature, timeout_s
        self.timeout_s = patience(timeout_s)
        self._said: list[tuple[str, str]] = []
        self._knows: Any = None

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Reads the user's knowledge.

        Raises:
            TaskError: it is missing, or of the wrong type for a script or a model.
        """
        self._said = []
        self._knows = task.data.get(self._key)
        kind: type = str if self._url else Mapping
        if not isinstance(self._knows, kind) or not self._knows:
            needed = "a text for the model that plays the user" if self._url else "answers by the words of a question"
            raise TaskError(f"ask_user: {self._key!r} is {self._knows!r}", place=f"task {task.id}", remedy=needed)

    @tool
    async def ask_user(self, question: str) -> str:
        """Ask the user for something that you need to know and cannot find out otherwise.

        Args:
            question: One question, in full.
        """
        if not question.strip():
            raise ToolError("the question is empty")
        if len(self._said) == self._most:
            raise ToolError(f"the user answers at most {self._most} questions")
        text = await self._played(question) if self._url else self._scripted(question)
        self._said.append((question, text))
        return text

    def _scripted(self, question: str) -> str:
        asked = _words(question)
        entries = [(len(_words(words)), str(said)) for words, said in self._knows.items() if _words(words) <= asked]
        return max(entries, key=lambda entry: entry[0], default=(0, self._unknown))[1]

    async def _played(self, question: str) -> str:
        messages = [{"role": "system", "content": _PLAY + self._knows}]
        for asked, told in self._said:
            messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]
        said = await ask(
            "POST",
            f"{str(self._url).rstrip('/')}/chat/completions",
            said=question,
            body=lambda text: {
                "model": self._model, "messages": [*messages, {"role": "user", "content": text}],
                "max_tokens": self._max_tokens, "temperature": self._temperature,
            },
            headers={"Authorization": f"Bearer {self._api_key}"} if self._api_key else None,
            timeout_s=self._request_s,
        )  # fmt: skip
        try:
            text = said["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            raise InfraError(f"not a chat completion: {str(said)[:200]}", place=self._url) from None
        return str(text or self._unknown)

    def state_key(self) -> str:
        """Hash of all questions and answers so far."""
        return hashlib.sha256(repr(self._said).encode("utf-8", "replace")).hexdigest()[:16]


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))
