"""Signatures of turns by name, and the rule that decides which state a turn has."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentrl.config.agent import AgentSettings
from agentrl.registry.registry import Loaded, Registry, any_function
from agentrl.tools.base import Tool
from agentrl.types import values
from agentrl.types.episode import TurnDraft
from agentrl.types.errors import RecipeError
from agentrl.types.sandbox import Sandbox
from agentrl.types.task import Message, Task

LONGEST = 4096
"""Characters of a state key. A longer one is replaced by its hash: states are stored with every turn."""

PLACE = "agent.state"
"""The key of the recipe that names a signature."""


class HasStateKey(Protocol):
    """Object that knows the state of the episode: an agent, a tool."""

    def state_key(self) -> Any:
        """Returns the state that the next turn acts on."""
        ...


@dataclass(frozen=True)
class Moment:
    """The moment before a turn, which a signature reads.

    Attributes:
        opening: the messages before the first reply.
        turns: the turns of this conversation so far, with their calls and observations.
        tools: tool instances of the episode, opened.
        owners: tool instance by name of the calls that the model may make.
        sandbox: of the episode; None if no tool needs one.
        keyed: the agent and the tools that define `state_key`.
    """

    task: Task
    opening: Sequence[Message] = ()
    turns: Sequence[TurnDraft] = ()
    tools: Sequence[Tool] = ()
    owners: Mapping[str, Tool] = field(default_factory=dict)
    sandbox: Sandbox | None = None
    keyed: Sequence[HasStateKey] = ()


Signature = Callable[..., Any]
"""`signature(moment, **settings)`: returns a key as `Tool.state_key` does, or None (unknown state). It may be async."""

STATES: Registry[Signature] = Registry(
    kind="signature of states",
    group="states",
    key=PLACE,
    built_in={
        "tools": "agentrl.rollouts.states.signatures:tools",
        "files": "agentrl.rollouts.states.files:files",
        "seen": "agentrl.rollouts.states.signatures:seen",
        "history": "agentrl.rollouts.states.signatures:history",
        "text": "agentrl.rollouts.states.signatures:text",
    },
    wanted="a function of the moment before a turn, mine(moment), with settings as further parameters",
    accept=any_function,
    leading=["moment"],
)


@dataclass(frozen=True)
class StateRule:
    """Decides which state a turn has: that of the recipe's signature, else that of `state_key()` of agent and tools.

    Attributes:
        keyed: the agent and the tools of an episode that define `state_key`.
    """

    signature: Loaded[Signature] | None = None
    keyed: Sequence[HasStateKey] = ()

    @classmethod
    def of(cls, agent: AgentSettings, base: Any = None) -> StateRule:
        """Returns the rule of a recipe.

        Raises:
            RecipeError: the signature does not exist, is not a function, or a setting is wrong.
        """
        return cls(None if agent.state is None else STATES.chosen(agent.state, base, PLACE))

    async def key(self, moment: Moment) -> str | None:
        """Returns the key of the state that the next turn acts on; None if it is unknown.

        Raises:
            ValueRefused: the value cannot be a key.
        """
        if self.signature is None:
            found = known(moment)
        else:
            given = self.signature.make(moment)
            given = await given if inspect.isawaitable(given) else given
            what = f"the signature {self.signature.name}"
            found = None if given is None else values.state_key(given, PLACE, what)
        return None if found is None else bounded(found)


def known(moment: Moment) -> str | None:
    """Joins the keys of the agent and the tools that define `state_key`; None if none knows the state.

    Raises:
        ValueRefused: a value cannot be a key.
    """
    given = [(each, each.state_key()) for each in moment.keyed]
    keys = [None if key is None else values.state_key(key, type(each).__name__) for each, key in given]
    return joined(keys)


def joined(keys: Sequence[str | None]) -> str | None:
    """Joins the keys of several parts of a state so that different ones never read alike; None if no part is known."""
    if all(key is None for key in keys):
        return None
    if len(keys) == 1:
        return keys[0]
    escaped = str.maketrans({"\\": r"\\", "|": r"\|"})
    return "|".join(r"\-" if key is None else key.translate(escaped) for key in keys)


def bounded(key: str) -> str:
    """Returns a key unchanged, or its hash if it has more than `LONGEST` characters."""
    return key if len(key) <= LONGEST else digest(key)


def digest(*texts: str) -> str:
    """Returns a hash of texts, the same in every process. `["ab", "c"]` and `["a", "bc"]` differ."""
    made = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        made.update(len(data).to_bytes(8))
        made.update(data)
    return made.hexdigest()[:32]


def check_sandbox(agent: AgentSettings, needs_sandbox: bool) -> None:
    """Checks that the episode has a sandbox if the signature hashes its files.

    Raises:
        RecipeError: it has none.
    """
    if agent.state is not None and agent.state.use == "files" and not needs_sandbox:
        raise RecipeError(
            "the signature files hashes the files of the sandbox, and the recipe opens none",
            place=PLACE,
            remedy="use agent.state: tools or history, or add a tool that works in a sandbox (shell, files)",
        )
