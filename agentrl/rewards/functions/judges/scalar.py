"""Reward models that give a number: a sequence classifier behind an HTTP API."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from pydantic import Field

from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.functions.judges.material import cut
from agentrl.rewards.functions.judges.service import ModelService
from agentrl.types.episode import Episode
from agentrl.types.task import Task

_CUT = (32_000, 8_000, 2_000)
"""Characters of a reply that are tried, if the whole is refused."""


class RewardModelServer(ModelService):
    """A served reward model: vLLM's `/classify` or `/pooling`, or another server of this form."""

    noun = "reward model"

    url: str = Field(pattern=r"^https?://", description="Where it scores, e.g. http://localhost:8000/pooling.")

    async def score(self, messages: Sequence[Mapping[str, Any]], said: str) -> float:
        """Returns the number that the model gives a conversation that ends with a reply.

        If it refuses the reply, e.g. as too long, the middle of it is cut.

        Raises:
            EngineError: the model cannot be reached, or its answer holds no number.
            Unverified: the model refuses what the agent wrote, and takes the conversation without it.
            AgentRLError: the model refuses the conversation.
        """

        def ask(reply: str) -> Awaitable[float]:
            body = {"model": self.model, "messages": [*messages, {"role": "assistant", "content": reply}]}
            return self.post(self.url, body, number_in)

        return await self.ask_first([said, *(cut(said, most) for most in _CUT)], ask, lambda: ask("a"))


def number_in(content: bytes) -> float:
    """Returns the score in an answer: `{"score": x}`, or vLLM's `{"data": [{"data": [x]}]}` and `{"data": [{"probs":
    [x]}]}`. Raises ValueError without one."""
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
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"no score: {content[:200].decode('utf-8', 'replace')}")
    return value


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
