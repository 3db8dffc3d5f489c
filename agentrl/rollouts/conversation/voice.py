"""Voices: what speaks in the contexts of an episode, beside the policy that trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from agentrl.chat.renderer import Renderer
from agentrl.types.engine import Engine, Sampling
from agentrl.types.errors import RecipeError


@dataclass(frozen=True)
class Voice:
    """An engine with a renderer of its own. Unless it trains or is the policy, its replies are recorded as text alone.

    Attributes:
        trains: whether it is a policy that trains, on the tokens of the main one.
        version: of an earlier self, after which update it was taken.
        own: whether it is the policy itself, which does not train on these replies: they are recorded token by token.
    """

    engine: Engine
    renderer: Renderer
    sampling: Sampling
    version: int | None = None
    trains: bool = False
    own: bool = False


class Opponents(Protocol):
    """Voices of which each episode hears one, chosen when it starts."""

    @property
    def ready(self) -> bool:
        """Whether there are any yet."""
        ...

    async def chosen(self, group: str, iteration: int | None) -> Voice:
        """The one that the episodes of a group hear. It stays open until it is released.

        Args:
            iteration: choose as after this update; None: as after the last one.
        """
        ...

    def release(self, voice: Voice) -> None:
        """An episode needs it no longer."""
        ...


@dataclass(frozen=True)
class Voices:
    """The voices of a recipe by name.

    Attributes:
        opponents: those that are chosen when an episode starts.
        trained: policies that train, which a training adds.
        awaited: names of those that it has not added yet.
        heard: names of those that some context has named.
    """

    known: Mapping[str, Voice] = field(default_factory=dict)
    opponents: Mapping[str, Opponents] = field(default_factory=dict)
    trained: dict[str, Voice] = field(default_factory=dict)
    awaited: Sequence[str] = ()
    heard: set[str] = field(default_factory=set)

    async def bound(self, group: str, iteration: int | None) -> Voices:
        """Those of one episode: its opponents are chosen."""
        there = {name: each for name, each in self.opponents.items() if each.ready}
        chosen = {name: await each.chosen(group, iteration) for name, each in there.items()}
        return replace(self, known={**self.known, **chosen}) if chosen else self

    def release(self) -> None:
        """The episode that they were bound for has ended."""
        for name, opponents in self.opponents.items():
            if name in self.known:
                opponents.release(self.known[name])

    def require(self) -> None:
        """Checks that there are opponents.

        Raises:
            RecipeError: no training has begun.
        """
        for name, opponents in self.opponents.items():
            if not opponents.ready:
                raise without_training(name)

    def find(self, name: str) -> Voice | None:
        """The voice; None if there is none of this name.

        Raises:
            RecipeError: it speaks in a training only.
        """
        self.heard.add(name)
        found = self.known.get(name) or self.trained.get(name)
        if found is None and name in (*self.opponents, *self.awaited):
            raise without_training(name)
        return found

    @property
    def unheard(self) -> list[str]:
        """Names of those that no context has named."""
        return [name for name in (*self.known, *self.opponents, *self.trained) if name not in self.heard]


def without_training(name: str) -> RecipeError:
    """The error that earlier selves, or a policy that trains, are asked for where nothing trains."""
    return RecipeError(
        "it speaks in a training only, and no reinforcement has begun",
        place=f"policies.{name}",
        remedy=f"name frozen weights: --set policies.{name}='{{checkpoint: RUN/checkpoints/NAME}}'; in demonstrations, "
        "tasks in which it does not speak",
    )
