"""Judges: a language model grades an answer, a transcript or a turn, or marks the wrong turns."""

from agentrl.rewards.functions.judges.client import Judge
from agentrl.rewards.functions.judges.pairwise import compare_episodes

__all__ = ["Judge", "compare_episodes"]
