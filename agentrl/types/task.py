"""Task: one problem for the agent, with the data of its tools and its verifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentrl.types import values
from agentrl.types.errors import TaskError
from agentrl.types.parts import content

Message = dict[str, Any]
"""A chat message as chat templates take it: `role`, `content`, and for tool results `name` and `tool_call_id`."""


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One task. Frozen: an episode may read it, never write it.

    Attributes:
        id: unique in its source; part of every episode id.
        instruction: the messages that open the episode. `Task.of` converts a plain string to one user message.
        data: input of tools and rewards (gold answers, files, ...). Never shown to the model.
        seed: for tools that draw random numbers.
        tools: callable tools in its episodes: names of tools or entries of the recipe, and definitions (in the
            format of APIs) that an environment of the recipe runs. None: all tools of the recipe.
        sandbox: keys of `sandbox.spec` that differ from the recipe's.
    """

    id: str
    instruction: list[Message]
    data: dict[str, Any] = {}
    seed: int = 0
    tools: list[str | dict[str, Any]] | None = None
    sandbox: dict[str, Any] | None = None

    @classmethod
    def of(
        cls,
        id: str,
        instruction: str | list[Message],
        /,
        *,
        tools: Sequence[str | Mapping[str, Any]] | None = None,
        sandbox: Mapping[str, Any] | None = None,
        **data: Any,
    ) -> Task:
        """Makes a task; `data` is given as keywords (`seed` too, if the tools draw random numbers).

        Raises:
            TaskError: a value is not JSON, so that a run's records could not reproduce it.
        """
        messages = [{"role": "user", "content": instruction}] if isinstance(instruction, str) else instruction
        return _checked(values.text(id), messages, data, data.get("seed", 0), tools, sandbox)

    def checked(self) -> Task:
        """Returns a copy of this task in plain JSON, for one that `of` did not make.

        Raises:
            TaskError: as `of`.
        """
        return _checked(values.text(self.id), self.instruction, self.data, self.seed, self.tools, self.sandbox)

    def copied(self) -> Task:
        """Returns a copy with separate lists and dicts, so that user code cannot change this one."""
        own = {name: msgspec.to_builtins(getattr(self, name)) for name in ("instruction", "data", "tools", "sandbox")}
        return msgspec.structs.replace(self, **own)

    def with_images(self, take: content.TakeImage) -> Task:
        """Returns this task with its images converted to parts by `take`.

        Raises:
            ImageRefused: a value is not an image, or cannot be read.
        """
        if all(isinstance(message["content"], str) for message in self.instruction):
            return self
        instruction = content.messages(self.instruction, f"the instruction of task {self.id!r}", take)
        return msgspec.structs.replace(self, instruction=instruction)


def _checked(id: str, instruction: Any, data: Any, seed: Any, tools: Any, sandbox: Any) -> Task:
    try:
        return Task(
            id=id,
            instruction=content.messages(instruction, "the instruction"),
            data=values.plain(data, ("data",)),
            seed=int(seed),
            tools=_tools(tools),
            sandbox=_sandbox(sandbox),
        )
    except values.ValueRefused as error:
        raise TaskError(error.message, place=f"task {id!r}", remedy=error.remedy) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise TaskError(f"seed is {seed!r}: {error}", place=f"task {id!r}", remedy="give a whole number") from None


def _tools(given: Any) -> list[str | dict[str, Any]] | None:
    if given is None:
        return None
    plain = values.plain(list(given) if isinstance(given, list | tuple) else given, ("tools",))
    if not isinstance(plain, list) or not all(isinstance(item, str | dict) for item in plain):
        raise values.ValueRefused(
            f"tools is {plain!r:.80}", remedy='give a list of names and definitions: ["search", {"name": ...}]'
        )
    return plain


def _sandbox(given: Any) -> dict[str, Any] | None:
    plain = values.plain(given, ("sandbox",))
    if plain is not None and not isinstance(plain, dict):
        raise values.ValueRefused(
            f"sandbox is {plain!r:.80}", remedy='give keys of sandbox.spec: {"image": ..., "files": {...}}'
        )
    return plain
