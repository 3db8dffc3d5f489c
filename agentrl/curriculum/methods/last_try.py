"""Trains the last try only, of episodes with several tries."""

from __future__ import annotations

from dataclasses import replace

from agentrl.config.sections import Section
from agentrl.curriculum.parts import CreditedEpisode, CurriculumContext, Filter


class LastTrySettings(Section):
    """`retried`: trains only episodes with a second try."""

    retried: bool = False


class LastTry(Filter):
    """Turns before the last try of the agent `retrying_agent` do not train. Their tries still decide what follows.

    Agent-RLVR updates the policy on the guided tries. Episodes of one try train as they are, unless `retried` is set.
    """

    Settings = LastTrySettings
    source = "Agent-RLVR, arXiv:2506.11425"
    certainty = "C"

    def refine(self, credited: list[CreditedEpisode], context: CurriculumContext) -> list[CreditedEpisode]:
        found = []
        for each in credited:
            tries = each.episode.info.get("tries") or []
            if len(tries) > 1 or not self.settings.retried:
                early = {index for one in tries[:-1] for index in one["turns"]}
                found.append(replace(each, masked_turns=each.masked_turns | early))
        return found
