"""Curriculum: which tasks an iteration tries and how (samplers, schedules), and which episodes train (filters).

All parts are stateful, and their state is JSON that lies in the checkpoint. What a part decides depends on its state,
the iteration, the stored episodes and a seed only, so that a run that was killed plans the same episodes again.
"""

from agentrl.curriculum.curriculum import Curriculum
from agentrl.curriculum.parts import Context, CreditedEpisode, Filter, Group, GroupPlan, Part, Sampler, Schedule

__all__ = [
    "Context",
    "CreditedEpisode",
    "Curriculum",
    "Filter",
    "Group",
    "GroupPlan",
    "Part",
    "Sampler",
    "Schedule",
]
