"""AceReason-Nemotron 1.1: the sampling temperature holds the entropy of the policy near a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from agentrl.config.sections import Section
from agentrl.curriculum.parts import CurriculumContext, Group, GroupPlan, Schedule


class EntropyTargetSettings(Section):
    """`target`: entropy in nats per token. `start`: the first temperature. `gain`: share of the relative error that one
    iteration corrects. `low`, `high`: limits of the temperature."""

    target: float = Field(0.3, gt=0)
    start: float = Field(1.0, gt=0)
    gain: float = Field(0.5, gt=0, le=1)
    low: float = Field(0.2, gt=0)
    high: float = Field(2.0, gt=0)


class EntropyTarget(Schedule):
    """After each iteration T <- T * (1 + gain * (target - H) / target), a factor of 1/2 to 2, within `low` and `high`.

    H is the temperature-adjusted entropy: the mean of -log-probability over the tokens that the policy sampled at the
    group's temperature, as recorded by the engine. The authors choose one temperature by hand for a training, so that
    the entropy is near 0.3; here it follows the policy.
    """

    Settings = EntropyTargetSettings
    source = "arXiv:2506.13284"
    certainty = "C"
    sets_temperature = True

    def plan(self, group: GroupPlan, context: CurriculumContext) -> GroupPlan:
        return replace(group, temperature=self.state.get("temperature", self.settings.start))

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        own = self.settings
        known = [
            logprob
            for group in groups
            for episode in group.episodes
            for turn in episode.sampled_turns
            for logprob in episode.nodes[turn.node].logprobs or ()
        ]
        if known:
            entropy = -sum(known) / len(known)
            factor = min(2.0, max(0.5, 1 + own.gain * (own.target - entropy) / own.target))
            temperature = self.state.get("temperature", own.start) * factor
            self.state = {"entropy": entropy, "temperature": min(own.high, max(own.low, temperature))}

    def metrics(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.state.items()}
