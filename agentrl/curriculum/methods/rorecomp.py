"""RoRecomp: short successes and long failures first, the rest later."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from agentrl.credit.registry import EpisodeCredit
from agentrl.curriculum.parts import Context, Filter, Lesson, NoSettings


class RoRecompSettings(NoSettings):
    """`share` of the solved and of the failed episodes of a group that train at once. `every`: iterations between two
    replays of what was put aside. `buffer`: most episodes put aside; the oldest are dropped."""

    share: float = Field(0.5, gt=0, le=1)
    every: int = Field(4, gt=0)
    buffer: int = Field(1024, gt=0)
    success: float = 1.0


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

    def refine(self, lessons: list[Lesson], context: Context) -> list[Lesson]:
        groups: dict[tuple[str, bool], list[Lesson]] = {}
        for lesson in lessons:
            solved = (lesson.episode.reward or 0.0) >= self.settings.success
            groups.setdefault((lesson.episode.group_id, solved), []).append(lesson)
        now: set[str] = set()
        for (_, solved), members in groups.items():
            order = sorted(members, key=lambda x: (x.episode.sampled_tokens * (1 if solved else -1), x.episode.id))
            now |= {x.episode.id for x in order[: math.ceil(self.settings.share * len(order))]}
        waiting: list[dict[str, Any]] = self.state.get("waiting", [])
        waiting += [_put_aside(lesson) for lesson in lessons if lesson.episode.id not in now]
        chosen = [lesson for lesson in lessons if lesson.episode.id in now]
        if (context.iteration + 1) % self.settings.every == 0:
            here = {lesson.episode.id: lesson.episode for lesson in lessons}
            chosen += [_take_up(entry, context, here) for entry in waiting]
            waiting = []
        self.state["waiting"] = waiting[-self.settings.buffer :]
        return chosen

    def metrics(self) -> dict[str, float]:
        return {"waiting": float(len(self.state.get("waiting", ())))}


def _put_aside(lesson: Lesson) -> dict[str, Any]:
    credit = lesson.credit
    return {
        "id": lesson.episode.id,
        "group": lesson.episode.group_id,
        "estimator": credit.estimator,
        "turns": credit.turns,
        "tokens": credit.tokens,
        "silent": sorted(lesson.silent),
    }


def _take_up(entry: dict[str, Any], context: Context, here: dict[str, Any]) -> Lesson:
    episode = here.get(entry["id"]) or context.episode(entry["id"])
    credit = EpisodeCredit(
        episode_id=entry["id"], estimator=entry["estimator"], turns=entry["turns"], tokens=entry["tokens"]
    )
    return Lesson(episode, credit, frozenset(entry["silent"]))
