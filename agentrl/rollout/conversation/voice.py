"""Voices: what speaks in the contexts of an episode, beside the policy that trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrl.chat.renderer import Renderer
from agentrl.types.engine import Engine, Sampling


@dataclass(frozen=True)
class Voice:
    """An engine that is not trained, with a renderer of its own. Its replies are recorded as text, without tokens."""

    engine: Engine
    renderer: Renderer
    sampling: Sampling


@dataclass(frozen=True)
class Voices:
    """The voices of a recipe by name.

    Attributes:
        heard: names of those that some context has named.
    """

    known: Mapping[str, Voice] = field(default_factory=dict)
    heard: set[str] = field(default_factory=set)

    def find(self, name: str) -> Voice | None:
        """The voice; None if there is none of this name."""
        self.heard.add(name)
        return self.known.get(name)

    @property
    def unheard(self) -> list[str]:
        """Names of those that no context has named."""
        return [name for name in self.known if name not in self.heard]
