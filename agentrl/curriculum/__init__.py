"""Curriculum: selects the tasks of an iteration and how they are played (samplers, schedules), and which episodes train
(filters).

Parts are stateful; their state is JSON and stored in the checkpoint. The decisions of a part depend only on its state,
the iteration, the stored episodes and a seed, so that a killed run plans the same episodes again.
"""

from agentrl.curriculum.curriculum import Curriculum
from agentrl.curriculum.parts import (
    Correction,
    CreditedEpisode,
    CurriculumContext,
    Filter,
    Group,
    GroupPlan,
    Part,
    Sampler,
    Schedule,
)

__all__ = [
    "Correction",
    "CreditedEpisode",
    "Curriculum",
    "CurriculumContext",
    "Filter",
    "Group",
    "GroupPlan",
    "Part",
    "Sampler",
    "Schedule",
]
