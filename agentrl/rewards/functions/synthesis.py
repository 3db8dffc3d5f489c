"""The reward of made-up questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.rewards.declare import Scored, reward


@reward(bounds=(0, 1))
def accepted(info: Mapping[str, Any]) -> Scored:
    """1 if `synthesis_agent` accepted the question of the episode, else 0."""
    if "proposed" not in info:
        return Scored(0.0, "no question was proposed")
    return Scored(float(not info.get("rejected")), str(info.get("rejected") or "accepted"))
