"""The model that writes a memory: one behind an API, or the policy itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from agentrl.chat.recognise import parser_for
from agentrl.chat.renderer import Renderer
from agentrl.config.recipe import Recipe
from agentrl.models.load import LoadedModel
from agentrl.rewards.functions.judges.client import Judge, Question
from agentrl.rewards.grading import Unverified
from agentrl.types.engine import Engine, Sampling, sample
from agentrl.types.errors import EngineError, TrainError
from agentrl.types.seeds import derive_seed
from agentrl.types.task import Message, Task


class Writer(Protocol):
    """Answers prompts."""

    async def ask(self, questions: Sequence[Question], seed: int) -> list[str | None]:
        """Returns the reply to each question; None if the model refuses its material, or it does not fit.

        Raises:
            TrainError: the model does not answer.
        """
        ...


class ApiWriter:
    """A model behind an API. Its replies are kept on disk: an update that is repeated after a kill is the same."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    async def ask(self, questions: Sequence[Question], seed: int) -> list[str | None]:
        """See `Writer.ask`."""
        return list(await asyncio.gather(*map(self._reply, questions)))

    async def _reply(self, question: Question) -> str | None:
        try:
            replies, _ = await self._judge.ask([question], str)
        except Unverified:
            return None
        except EngineError as error:
            raise TrainError(
                f"the model that writes the memory does not answer: {error.message}",
                place=error.place or self._judge.url,
                remedy="start it, or correct train.backend.model; the same command continues from the last checkpoint",
            ) from error
        return next((str(reply) for reply in replies if reply is not None), None)


class OwnSampling(BaseModel):
    """Sampling of the policy where it writes its own memory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(0.0, ge=0, description="Sampling temperature of its replies.")
    max_tokens: int = Field(512, gt=0, description="Maximum tokens of a reply.")
    chars: int = Field(32_000, ge=1000, description="Characters of an episode that it is shown; the middle is cut.")


class OwnWriter:
    """The policy itself, by its engine: without tools, and without its memory in the prompt."""

    def __init__(self, engine: Engine, loaded: LoadedModel, recipe: Recipe, sampling: OwnSampling) -> None:
        self._engine, self._own = engine, sampling
        tokenizer = loaded.chat()
        self._renderer = Renderer(tokenizer, parser_for(recipe.agent.format, tokenizer, [], recipe.base), [])

    async def ask(self, questions: Sequence[Question], seed: int) -> list[str | None]:
        """See `Writer.ask`."""
        asked = [self._reply(question, derive_seed(seed, "memory", k)) for k, question in enumerate(questions)]
        try:
            return list(await asyncio.gather(*asked))
        except EngineError as error:
            raise TrainError(
                f"the policy's engine failed while it wrote the memory: {error.message}",
                place=error.place,
                remedy=error.remedy or "the same command continues from the last checkpoint",
            ) from error

    async def _reply(self, question: Question, seed: int) -> str | None:
        own, engine, session = self._own, self._engine, f"memory/{seed}"
        for most in (own.chars, own.chars // 4, own.chars // 16, own.chars // 64):
            messages: list[Message] = [{"role": "user", "content": question(most)}]
            prompt = self._renderer.start(messages)
            if len(prompt) + own.max_tokens < engine.max_context:
                break
        else:
            return None
        sampling = Sampling(
            temperature=own.temperature,
            max_tokens=own.max_tokens,
            stop=tuple(self._renderer.parser.stops()),
            seed=seed,
        )
        engine.begin_session(session, Task.of(session, messages), messages, seed)
        try:
            engine.use_tools(session, self._renderer)
            completion = await sample(engine, prompt, sampling, session)
        finally:
            engine.end_session(session)
        return self._renderer.read(prompt, completion.token_ids, [])[0]
