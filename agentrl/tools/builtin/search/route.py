"""The `route` tool: sends a question to one of several named, priced models (Router-R1, arXiv:2506.09033)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.tools.base import Tool, tool
from agentrl.tools.builtin.search.requests import ask, key_of, patience
from agentrl.types.errors import InfraError, RecipeError, ToolError


class Routed(BaseModel):
    """Target model of questions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(pattern=r"^https?://", description="Base of an OpenAI-compatible API.")
    model: str = Field(description="Its name there.")
    about: str = Field("", description="What the policy is told of it.")
    api_key_env: str | None = Field(None, description="Environment variable that holds the API key.")


class Route(Tool):
    """Offers `models()` and `route(model, question)`.

    The reward `router_cost` prices the calls: `prices: {"route:big": 4, "route:small": 1}`.

    Args:
        models: models by name for the policy: url, model, about, api_key_env.
        max_tokens: maximum tokens of an answer.
        temperature: sampling temperature of an answer.
        timeout_s: timeout of one request, of up to four.
    """

    parallel = True

    def __init__(
        self,
        models: Mapping[str, Mapping[str, Any]],
        max_tokens: int = 512,
        temperature: float = 0.0,
        timeout_s: float = 60.0,
    ) -> None:
        if not models:
            raise RecipeError("route: there are no models", remedy="models: {small: {url: ..., model: ...}}")
        try:
            self._models = {name: Routed.model_validate(dict(about)) for name, about in models.items()}
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            raise RecipeError(f"route: {where}: {error.errors()[0]['msg']}", remedy="give url and model") from None
        for each in self._models.values():
            key_of(each.api_key_env)
        self._max_tokens, self._temperature, self._request_s = max_tokens, temperature, timeout_s
        self.timeout_s = patience(timeout_s)
        self._asked: list[str] = []

    @tool
    async def models(self) -> str:
        """List the models that questions can be sent to."""
        return "\n".join(f"{name}: {each.about}".rstrip(": ") for name, each in self._models.items())

    @tool
    async def route(self, model: str, question: str) -> str:
        """Send a question to a model, which knows nothing of this conversation, and read its answer.

        Args:
            model: Its name, one of those that `models` lists.
            question: The whole question.
        """
        if model not in self._models:
            raise ToolError(f"there is no model {model!r}; there are: {', '.join(self._models)}")
        if not question.strip():
            raise ToolError("the question is empty")
        to = self._models[model]
        key = key_of(to.api_key_env)
        said = await ask(
            "POST",
            f"{to.url.rstrip('/')}/chat/completions",
            said=question,
            body=lambda text: {
                "model": to.model, "messages": [{"role": "user", "content": text}],
                "max_tokens": self._max_tokens, "temperature": self._temperature,
            },
            headers={"Authorization": f"Bearer {key}"} if key else None,
            timeout_s=self._request_s,
        )  # fmt: skip
        try:
            text = str(said["choices"][0]["message"]["content"] or "")
        except (KeyError, IndexError, TypeError):
            raise InfraError(f"not a chat completion: {str(said)[:200]}", place=to.url) from None
        self._asked.append(f"{model}\0{question}\0{text}")
        return text or "[the model said nothing]"

    def state_key(self) -> str:
        """Hash of all questions and answers so far."""
        return hashlib.sha256("\n".join(self._asked).encode("utf-8", "replace")).hexdigest()[:16]
