"""Voices: what speaks in the contexts of an episode, beside the policy that trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from agentrl.chat.renderer import Renderer
from agentrl.types.engine import Engine, Sampling
from agentrl.types.errors import RecipeError


@dataclass(frozen=True)
class Voice:
    """An engine that is not trained, with a renderer of its own. Its replies are recorded as text, without tokens.

    Attributes:
        version: of an earlier self, after which update it was taken.
    """

    engine: Engine
    renderer: Renderer
    sampling: Sampling
    version: int | None = None


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
        heard: names of those that some context has named.
    """

    known: Mapping[str, Voice] = field(default_factory=dict)
    opponents: Mapping[str, Opponents] = field(default_factory=dict)
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
        """The voice; None if there is none of this name."""
        self.heard.add(name)
        return self.known.get(name)

    @property
    def unheard(self) -> list[str]:
        """Names of those that no context has named."""
        return [name for name in (*self.known, *self.opponents) if name not in self.heard]


def without_training(name: str) -> RecipeError:
    """The error that earlier selves are asked for where nothing trains."""
    return RecipeError(
        "earlier selves speak in a training only, and no training has begun",
        place=f"policies.{name}",
        remedy=f"--set policies.{name}='{{checkpoint: RUN/checkpoints/NAME}}' names one of them",
    )
