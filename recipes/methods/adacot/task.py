"""Penalties for missing and superfluous thoughts, and the mask of the token that decides whether there is one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from agentrl import Task
from agentrl.config.sections import Section
from agentrl.curriculum import CreditedEpisode, CurriculumContext, Filter
from agentrl.estimators.registry import EpisodeCredit
from agentrl.types.episode import Episode

FORM = re.compile(r"\s*<think>(.*?)</think>\s*<answer>.+?</answer>\s*", re.DOTALL)


def thought(episode: Episode) -> bool:
    """True if the reply has a thought that is not empty."""
    return any((found := FORM.fullmatch(turn.text)) and found[1].strip() for turn in episode.own_turns)


def miss(task: Task, episode: Episode) -> float:
    """1 for no thought where one is needed."""
    return float(task.data["hard"] and not thought(episode))


def over(task: Task, episode: Episode) -> float:
    """1 for a thought where none is needed."""
    return float(not task.data["hard"] and thought(episode))


def malformed(episode: Episode) -> float:
    """1 for a reply that is not a thought and an answer."""
    return float(not any(FORM.fullmatch(turn.text) for turn in episode.own_turns))


class DecisionMask(Filter):
    """Takes the advantage from the token that decides whether there is a thought, so that later training of other
    tokens cannot push the decision to one side (selective loss masking)."""

    class Settings(Section):
        """`place`: of the token in the reply: 1 where `<think>` is one token; 0 where `<think></think>` is."""

        place: int = 1

    def refine(self, credited: Sequence[CreditedEpisode], context: CurriculumContext) -> list[CreditedEpisode]:
        """The credit without that of the token, in every turn."""
        return [replace(each, credit=self._masked(each)) for each in credited]

    def _masked(self, each: CreditedEpisode) -> EpisodeCredit:
        sizes = [each.episode.trained(turn) for turn in each.episode.own_turns]
        tokens = each.credit.token_advantages
        if tokens is None:
            tokens = [a for a, size in zip(each.credit.turn_advantages, sizes, strict=True) for _ in range(size)]
        masked = list(tokens)
        for start, size in zip(itertools.accumulate(sizes, initial=0), sizes, strict=False):
            if size > self.settings.place:
                masked[start + self.settings.place] = 0.0
        return msgspec.structs.replace(each.credit, token_advantages=masked)
