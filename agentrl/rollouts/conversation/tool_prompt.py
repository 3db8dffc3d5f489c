"""Tools that a conversation offers to the model, and the renderer whose prompts describe them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentrl.chat.renderer import Renderer
from agentrl.rollouts.conversation.policies import EpisodePolicy
from agentrl.rollouts.conversation.state import SessionMisused
from agentrl.tools.methods import ToolMethod
from agentrl.tools.toolset import ToolBox
from agentrl.types.engine import Sampling
from agentrl.types.errors import nearest


class ToolPrompt:
    """Tools of one conversation, read again before every turn if they may change.

    Args:
        names: of its tools; None: all.

    Attributes:
        methods: callable tools now.
        renderer, sampling: under these tools; their closing tags are stop strings in some formats. The sampling is that
            of every turn, but for its seed.
        definitions: of the tools available in the first turn; None: the tools of the recipe.
        changed: definitions under which no turn has been sampled yet.
    """

    def __init__(
        self, box: ToolBox, renderer: Renderer, sampling: Sampling, names: Sequence[str] | None = None
    ) -> None:
        self.box, self.renderer = box, renderer
        self.sampling = msgspec.structs.replace(sampling, stop_token_ids=tuple(renderer.stop_token_ids))
        self._of_recipe, self._names = (renderer, sampling), names
        self.methods = self._now()
        self.definitions: list[dict[str, Any]] | None = None
        self.changed: list[dict[str, Any]] | None = None
        self._shown: list[dict[str, Any]] | None = None
        if not box.as_in_recipe or names is not None:
            self.definitions = self._show()

    def part(self, names: Sequence[str] | None) -> ToolPrompt:
        """Returns the tools of another conversation of the episode.

        Raises:
            SessionMisused: a tool does not exist.
        """
        return self._with(ToolPrompt(self.box, *self._of_recipe, None if names is None else tuple(names)), names)

    def of_policy(self, speaker: EpisodePolicy, names: Sequence[str] | None) -> ToolPrompt:
        """Returns the tools of a conversation of another policy: none, unless they are named.

        Raises:
            SessionMisused: a tool does not exist.
        """
        return self._with(ToolPrompt(self.box, speaker.renderer, speaker.sampling, tuple(names or ())), names)

    def _with(self, other: ToolPrompt, names: Sequence[str] | None) -> ToolPrompt:
        missing = next((name for name in names or () if name not in other.methods), None)
        if missing is not None and not self.box.changes:
            raise SessionMisused(f"there is no tool {missing!r}", remedy=nearest(missing, list(self.box.read())))
        return other

    def _now(self) -> dict[str, ToolMethod]:
        known = self.box.read()
        return known if self._names is None else {name: known[name] for name in self._names if name in known}

    def read(self, *, first: bool) -> bool:
        """Reads the callable tools for the next turn; returns True if they have changed.

        Args:
            first: whether it is the conversation's first turn.
        """
        if not self.box.changes:
            return False
        self.methods = self._now()
        if self._defined() == self._shown:
            return False
        definitions = self._show()
        if first:
            self.definitions = definitions
        else:
            self.changed = definitions
        return True

    def _defined(self) -> list[dict[str, Any]]:
        """Returns a copy of the definitions: an environment may change its schemas."""
        found: list[dict[str, Any]] = msgspec.to_builtins([method.definition() for method in self.methods.values()])
        return found

    def _show(self) -> list[dict[str, Any]]:
        """Updates the renderer, and the stop strings, for the current tools."""
        self._shown = definitions = self._defined()
        before, stops = self.renderer.parser.stops(), self.sampling.stop
        self.renderer = self._of_recipe[0].for_tools(definitions)
        if before and stops[-len(before) :] == before:  # after the recipe's own, which may be equal
            stops = stops[: -len(before)]
        self.sampling = msgspec.structs.replace(
            self.sampling,
            stop=(*stops, *self.renderer.parser.stops()),
            stop_token_ids=tuple(self.renderer.stop_token_ids),
        )
        return definitions
