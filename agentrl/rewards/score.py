"""The score of an episode, and the live objects that reward functions may read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agentrl.rewards.spans import Decode
from agentrl.types.episode import Episode, GateVerdict, SpanReward


@dataclass(frozen=True)
class Score:
    """The score of an episode.

    Attributes:
        components: outcome components by name; None: not scored.
        total: weighted, gated sum of the outcome components; None if the episode could not be scored.
        success: name of the figure that defines success (`types.figures.figure`).
        turns: the components of each turn, including those of tools.
        turn_totals: weighted, gated sum of each turn; None while `pending`.
        spans: the rewards of parts of each turn's text.
        pending: components of the group that wait until all of its episodes have ended. The total is None until then.
        gates: the verdict of each gate.
        notes: the reason for a value, by component.
    """

    components: dict[str, float | None] = field(default_factory=dict)
    total: float | None = None
    success: str = ""
    turns: list[dict[str, float | None]] = field(default_factory=list)
    turn_totals: list[float | None] = field(default_factory=list)
    spans: list[list[SpanReward]] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    gates: list[GateVerdict] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def onto(self, episode: Episode) -> Episode:
        """The episode with this score instead of its earlier one."""
        turns = [
            msgspec.structs.replace(turn, rewards=rewards, reward=total, spans=spans)
            for turn, rewards, total, spans in zip(episode.turns, self.turns, self.turn_totals, self.spans, strict=True)
        ]
        return msgspec.structs.replace(
            episode,
            components=self.components,
            reward=self.total,
            success=self.success,
            pending=self.pending,
            turns=turns,
            gates=self.gates,
            notes=self.notes,
        )


@dataclass(frozen=True)
class Live:
    """Objects of an ended episode besides its sandbox.

    Attributes:
        env: its first environment, still open.
        tools: all of its tools.
        info: of its environments.
        read_blob: gives the bytes of an image or of a long output, by its hash.
        decode: gives the text of sampled tokens; None: no tokenizer is at hand.
        suspected: True if the agent may have ended a tool's server in an earlier attempt.
    """

    env: Any = None
    tools: Sequence[Any] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    read_blob: Callable[[str], bytes] | None = None
    decode: Decode | None = None
    suspected: bool = False
