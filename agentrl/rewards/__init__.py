"""Rewards: how well an episode did, as named components and their weighted sum.

A component is a function of any of `task`, `episode` and `sandbox`, taken by name. `components` calls and combines
them, `verifiers` holds the built-in ones. None means that a component was never scored, which is not 0.0.
"""

from agentrl.rewards.components import RewardError, RewardSet, Score

__all__ = ["RewardError", "RewardSet", "Score"]
