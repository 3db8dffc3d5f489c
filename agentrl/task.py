"""A task: one thing to be done, with what its tools and its verifier need to know."""

from __future__ import annotations

from typing import Any

import msgspec

Message = dict[str, Any]
"""A chat message as chat templates take it: `role`, `content`, and for tool results `name` and `tool_call_id`."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One task. Frozen: an episode may read it, never write it.

    Attributes:
        id: unique in its source; part of every episode id.
        instruction: the messages that open the episode. A plain string is taken as one user message by `Task.of`.
        data: what tools and rewards need (gold answers, files, ...). Never shown to the model.
        seed: for tools that draw random numbers.
    """

    id: str
    instruction: list[Message]
    data: dict[str, Any] = {}
    seed: int = 0

    @classmethod
    def of(cls, id: str, instruction: str | list[Message], /, **data: Any) -> Task:
        """Makes a task; `data` is given as keywords (`seed` too, if the tools draw random numbers)."""
        messages = [{"role": "user", "content": instruction}] if isinstance(instruction, str) else instruction
        return cls(id=id, instruction=messages, data=data, seed=int(data.get("seed", 0)))
