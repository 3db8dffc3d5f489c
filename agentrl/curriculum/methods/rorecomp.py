"""RoRecomp: trains on short successes and long failures first, on the others later."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from agentrl.curriculum.parts import CreditedEpisode, CurriculumContext, Filter, Solving
from agentrl.estimators.registry import EpisodeCredit


class RoRecompSettings(Solving):
    """`share` of the solved and of the failed episodes of a group that train at once. `every`: iterations between two
    replays of the buffer. `buffer`: maximum number of deferred episodes; the oldest are dropped."""

    share: float = Field(0.5, gt=0, le=1)
    every: int = Field(4, gt=0)
    buffer: int = Field(1024, gt=0)


class RoRecomp(Filter):
    """The priority batch holds the shortest solved and the longest failed episodes of each group (by sampled tokens);
    the others wait, with the credit that they were given, and train with every `every`-th iteration.

    The paper's ratios could not be verified. A replayed episode is off policy, so the recipe must correct for that:
    `train.importance`, or `train.old_logprobs: engine`.
    """

    Settings = RoRecompSettings
    source = "arXiv:2509.25958 (abstract)"
    certainty = "C"
    trains_older_episodes = True

    def refine(self, credited: list[CreditedEpisode], context: CurriculumContext) -> list[CreditedEpisode]:
        groups: dict[tuple[str, bool], list[CreditedEpisode]] = {}
        for each in credited:
            solved = self.settings.solves(each.episode)
            groups.setdefault((each.episode.group_id, solved), []).append(each)
        now: set[str] = set()
        for (_, solved), members in groups.items():
            order = sorted(members, key=lambda x: (x.episode.reply_tokens * (1 if solved else -1), x.episode.id))
            now |= {x.episode.id for x in order[: math.ceil(self.settings.share * len(order))]}
        waiting: list[dict[str, Any]] = self.state.get("waiting", [])
        waiting += [_put_aside(each) for each in credited if each.episode.id not in now]
        chosen = [each for each in credited if each.episode.id in now]
        if (context.iteration + 1) % self.settings.every == 0:
            here = {each.episode.id: each.episode for each in credited}
            chosen += [_take_up(entry, context, here) for entry in waiting]
            waiting = []
        self.state["waiting"] = waiting[-self.settings.buffer :]
        return chosen

    def metrics(self) -> dict[str, float]:
        return {"waiting": float(len(self.state.get("waiting", ())))}


def _put_aside(each: CreditedEpisode) -> dict[str, Any]:
    credit = each.credit
    return {
        "id": each.episode.id,
        "group": each.episode.group_id,
        "estimator": credit.estimator,
        "turns": credit.turn_advantages,
        "tokens": credit.token_advantages,
        "clip": credit.clip_scales,
        "silent": sorted(each.masked_turns),
    }


def _take_up(entry: dict[str, Any], context: CurriculumContext, here: dict[str, Any]) -> CreditedEpisode:
    episode = here.get(entry["id"]) or context.episode(entry["id"])
    credit = EpisodeCredit(
        episode_id=entry["id"],
        estimator=entry["estimator"],
        turn_advantages=entry["turns"],
        token_advantages=entry["tokens"],
        clip_scales=entry["clip"],
    )
    return CreditedEpisode(episode, credit, frozenset(entry["silent"]))
