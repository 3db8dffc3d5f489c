"""Reward components, gates and judges.

A component is a function that asks by name for what it needs (`task`, `episode`, `turn`, `sandbox`, `fresh_sandbox`);
its other parameters are settings, which a recipe gives and which are checked when it is loaded. It returns a number, a
list with one entry per turn, or None: a component that was never scored, which is not 0.0.
"""

from agentrl.rewards.components import RewardError, RewardSet, Score
from agentrl.rewards.declare import Scored, reward

__all__ = ["RewardError", "RewardSet", "Score", "Scored", "reward"]
