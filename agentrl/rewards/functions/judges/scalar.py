"""Reward models that give a number: a sequence classifier behind an HTTP API."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agentrl.registry.checks import variable
from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.functions.judges.client import KEY, QuestionRefused, refuses
from agentrl.rewards.functions.judges.material import cut
from agentrl.rewards.grading import Unverified
from agentrl.types.episode import Episode
from agentrl.types.errors import AgentRLError, EngineError
from agentrl.types.http.client import Unanswered, asked
from agentrl.types.task import Task

_LARGEST = 8 << 20  # bytes of an answer
_CUT = (32_000, 8_000, 2_000)
"""Characters of a reply that are tried, if the whole is refused."""


class RewardModelServer(BaseModel):
    """A served reward model: vLLM's `/classify` or `/pooling`, or another server of this form."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(pattern=r"^https?://", description="Where it scores, e.g. http://localhost:8000/pooling.")
    model: str = Field(description="Its name there.")
    timeout_s: float = Field(60.0, gt=0, description="One request.")
    retries: int = Field(3, ge=0, description="After a failed request.")
    api_key_env: str | None = Field(None, description="Environment variable that holds the API key.")

    async def score(self, messages: Sequence[Mapping[str, Any]], said: str) -> float:
        """Returns the number that the model gives a conversation that ends with a reply.

        If it refuses the reply, e.g. as too long, the middle of it is cut.

        Raises:
            EngineError: the model cannot be reached, or its answer holds no number.
            Unverified: the model refuses what the agent wrote, and takes the conversation without it.
            AgentRLError: the model refuses the conversation.
        """
        for most in (len(said), *(each for each in _CUT if each < len(said))):
            with suppress(QuestionRefused):
                return await self._score([*messages, {"role": "assistant", "content": cut(said, most)}])
        try:
            await self._score([*messages, {"role": "assistant", "content": "a"}])
        except QuestionRefused as refused:
            raise AgentRLError(
                f"the reward model refused: {refused}", place=self.url, remedy="fix the settings of the reward model"
            ) from None
        raise Unverified("the reward model refuses what the agent wrote")

    async def _score(self, messages: list[Mapping[str, Any]]) -> float:
        key = variable(self.api_key_env) if self.api_key_env else None
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        body, problem, tried = {"model": self.model, "messages": messages}, "", 0
        for tried in range(1, self.retries + 2):  # noqa: B007 - it is told below
            try:
                status, content = await asked(
                    "POST", self.url, body=body, headers=headers, seconds=self.timeout_s, most=_LARGEST
                )
            except Unanswered as error:
                problem = str(error)
                continue
            value = number_in(content) if status == 200 else None
            if value is not None:
                return value
            problem = f"HTTP {status}: {content[:200].decode('utf-8', 'replace')}"
            if status in KEY:
                break
            if refuses(status):
                raise QuestionRefused(problem)
        raise EngineError(f"the reward model failed {tried} times; the last: {problem}", place=self.url)


def number_in(content: bytes) -> float | None:
    """Returns the score in a reply: `{"score": x}`, or vLLM's `{"data": [{"data": [x]}]}` and `{"data": [{"probs":
    [x]}]}`; None if there is none."""
    try:
        found: Any = json.loads(content)
        if isinstance(found, dict) and "data" in found:
            first = found["data"][0]
            found = first["data"] if "data" in first else first["probs"]
        elif isinstance(found, dict):
            found = found["score"]
        while isinstance(found, list) and found:
            found = found[-1]
        value = float(found)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError):
        return None
    return value if math.isfinite(value) else None


@reward(source="RLMT, arXiv:2509.20357: a preference reward model scores the reply", costs=["engine"], required=True)
async def reward_model(task: Task, episode: Episode, *, scorer: RewardModelServer, thoughts: bool = False) -> Scored:
    """The number that a reward model gives the task and the answer: any scale. 0 without an answer.

    Args:
        scorer: the served model.
        thoughts: the model reads the text of the last reply, with its thoughts, instead of the answer alone.

    Raises:
        EngineError, AgentRLError: as `RewardModelServer.score` does.
    """
    said = episode.own_turns[-1].text if thoughts and episode.own_turns else episode.answer or ""
    if not said.strip():
        return Scored(0.0, "no answer")
    return Scored(await scorer.score([*map(dict, task.instruction)], said))
