"""ScalingInter-RL: the maximum number of turns grows during training."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from agentrl.config.sections import Section
from agentrl.curriculum.parts import CurriculumContext, GroupPlan, Schedule


class ScalingInterSettings(Section):
    """Most turns of an episode: the first entry of `max_turns`, and the next one after every `every` iterations."""

    max_turns: list[int] = Field([10, 20, 30], min_length=1)
    every: int = Field(100, gt=0)


class ScalingInter(Schedule):
    """max_turns[min(iteration // every, last)] in place of `agent.max_turns`."""

    Settings = ScalingInterSettings
    source = "AgentGym-RL, arXiv:2509.08755; WooooDyy/AgentGym-RL@82402a9"
    certainty = "A"

    def plan(self, group: GroupPlan, context: CurriculumContext) -> GroupPlan:
        stages = self.settings.max_turns
        return replace(group, max_turns=stages[min(context.iteration // self.settings.every, len(stages) - 1)])
