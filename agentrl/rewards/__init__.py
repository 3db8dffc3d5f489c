"""Reward components, gates and judges.

A component is a function. The names of its parameters select its inputs (`task`, `episode`, `turn`, `sandbox`,
`fresh_sandbox`); all other parameters are settings, which the recipe gives and which are checked when it is loaded. It
returns a number, a list with one entry per turn, or None for "not scored", which is not 0.0. In place of the number of
a turn it may return a list of `Span`: rewards of parts of the turn's text.
"""

from agentrl.rewards.components import RewardError, RewardSet
from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.grading import Budget, budget
from agentrl.rewards.score import Score
from agentrl.rewards.spans import Span

__all__ = ["Budget", "RewardError", "RewardSet", "Score", "Scored", "Span", "budget", "reward"]
