"""A task: one thing to be done, with what its tools and its verifier need to know."""

from __future__ import annotations

from typing import Any

import msgspec

from agentrl.types import values
from agentrl.types.errors import TaskError

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
        """Makes a task; `data` is given as keywords (`seed` too, if the tools draw random numbers).

        Raises:
            TaskError: what was given is no JSON, and would not come back from a run's records as it went in.
        """
        messages = [{"role": "user", "content": instruction}] if isinstance(instruction, str) else instruction
        return _checked(values.text(id), messages, data, data.get("seed", 0))

    def checked(self) -> Task:
        """A copy of this task in plain JSON, for one that `of` did not make.

        Raises:
            TaskError: as `of`.
        """
        return _checked(values.text(self.id), self.instruction, self.data, self.seed)

    def copied(self) -> Task:
        """This task with lists and dicts of its own: what user code does to them stays there."""
        return msgspec.structs.replace(
            self, instruction=msgspec.to_builtins(self.instruction), data=msgspec.to_builtins(self.data)
        )


def _checked(id: str, instruction: Any, data: Any, seed: Any) -> Task:
    try:
        return Task(
            id=id,
            instruction=values.messages(instruction, "the instruction"),
            data=values.plain(data, ("data",)),
            seed=int(seed),
        )
    except values.ValueRefused as error:
        raise TaskError(error.message, place=f"task {id!r}", remedy=error.remedy) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise TaskError(f"seed is {seed!r}: {error}", place=f"task {id!r}", remedy="give a whole number") from None
