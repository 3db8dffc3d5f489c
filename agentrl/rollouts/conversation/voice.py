"""Auxiliary policies: speakers in the contexts of an episode other than the main policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from agentrl.chat.renderer import Renderer
from agentrl.types.engine import Engine, Sampling
from agentrl.types.errors import RecipeError


@dataclass(frozen=True)
class Voice:
    """Engine and renderer of an auxiliary policy. Unless it trains or is the main policy, its replies are recorded as
    text only.

    Attributes:
        trains: whether it is trainable, on the tokens of the main one.
        version: for a past version of the policy, the update after which it was taken.
        own: whether it is the main policy, not training on these replies: they are recorded token by token.
    """

    engine: Engine
    renderer: Renderer
    sampling: Sampling
    version: int | None = None
    trains: bool = False
    own: bool = False


class Opponents(Protocol):
    """Pool of policies of which one is chosen at the start of each episode."""

    @property
    def ready(self) -> bool:
        """True if the pool has any yet."""
        ...

    async def chosen(self, group: str, iteration: int | None) -> Voice:
        """Chooses the opponent of a group's episodes. It stays open until it is released.

        Args:
            iteration: choose as after this update; None: as after the last one.
        """
        ...

    def release(self, voice: Voice) -> None:
        """Releases it after an episode."""
        ...


@dataclass(frozen=True)
class Voices:
    """Auxiliary policies of a recipe by name.

    Attributes:
        opponents: pools from which one is chosen at the start of an episode.
        trained: trainable policies, added by a training.
        awaited: names of trainable policies that are not added yet.
        heard: names that some context has used.
    """

    known: Mapping[str, Voice] = field(default_factory=dict)
    opponents: Mapping[str, Opponents] = field(default_factory=dict)
    trained: dict[str, Voice] = field(default_factory=dict)
    awaited: Sequence[str] = ()
    heard: set[str] = field(default_factory=set)

    async def bound(self, group: str, iteration: int | None) -> Voices:
        """Returns the policies of one episode, with chosen opponents."""
        there = {name: each for name, each in self.opponents.items() if each.ready}
        chosen = {name: await each.chosen(group, iteration) for name, each in there.items()}
        return replace(self, known={**self.known, **chosen}) if chosen else self

    def release(self) -> None:
        """Releases the opponents after their episode."""
        for name, opponents in self.opponents.items():
            if name in self.known:
                opponents.release(self.known[name])

    def require(self) -> None:
        """Checks that opponents are available.

        Raises:
            RecipeError: no training has begun.
        """
        for name, opponents in self.opponents.items():
            if not opponents.ready:
                raise without_training(name)

    def find(self, name: str) -> Voice | None:
        """Returns a policy by name; None if it does not exist.

        Raises:
            RecipeError: it exists in a training only.
        """
        self.heard.add(name)
        found = self.known.get(name) or self.trained.get(name)
        if found is None and name in (*self.opponents, *self.awaited):
            raise without_training(name)
        return found

    @property
    def unheard(self) -> list[str]:
        """Names that no context has used."""
        return [name for name in (*self.known, *self.opponents, *self.trained) if name not in self.heard]


def without_training(name: str) -> RecipeError:
    """Returns the error for opponents or trainable policies that are requested without a training."""
    return RecipeError(
        "it speaks in a training only, and no reinforcement has begun",
        place=f"policies.{name}",
        remedy=f"name frozen weights: --set policies.{name}='{{checkpoint: RUN/checkpoints/NAME}}'; in demonstrations, "
        "tasks in which it does not speak",
    )
