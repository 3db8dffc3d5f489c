"""ArenaRL: the members of a group are ranked by a tournament, whose matches a judge decides."""

import asyncio
from collections.abc import Callable

from agentrl import Episode, Task
from agentrl.rewards import Scored, reward
from agentrl.rewards.functions.judges import Judge, compare_episodes


@reward(source="arXiv:2601.06487; Alibaba-NLP/qqr single_elimination.py", costs=["engine"], required=True)
async def arena(
    task: Task, group: list[Episode], *, judge: Judge, rubric: str, read_blob: Callable[[str], bytes]
) -> list[Scored]:
    """1 - rank / (members - 1) in a single-elimination tournament; losers of a round by their mean share of votes.

    All meet member 0 first, which seeds the bracket. A group of one, or with a match without a vote, is not scored.
    """
    judge, points = judge.seeing(task, read_blob), [list[float]() for _ in group]

    async def meet(a: int, b: int) -> tuple[int, int]:
        votes, _ = await compare_episodes(judge, task, group[a], group[b], rubric=rubric, reads="transcript")
        if not votes:
            raise LookupError("no vote could be read")
        share = sum(votes) / len(votes)
        points[a].append(share)
        points[b].append(1 - share)
        return (a, b) if share >= 0.5 else (b, a)

    def best_first(members: list[int]) -> list[int]:
        return sorted(members, key=lambda k: -sum(points[k]) / len(points[k]))

    if len(group) < 2:
        return [Scored(None, "nobody to meet")]
    try:
        await asyncio.gather(*(meet(k, 0) for k in range(1, len(group))))
        points[0] = [sum(points[0]) / len(points[0])]
        seeds, bracket = best_first([*range(len(group))]), [0]
        while len(bracket) < len(group):
            bracket = [seat for k in bracket for seat in (k, 2 * len(bracket) - 1 - k)]
        left, ranked = [seeds[k] for k in bracket if k < len(group)], list[int]()
        while len(left) > 1:
            played = await asyncio.gather(*(meet(a, b) for a, b in zip(left[::2], left[1::2], strict=False)))
            ranked = [*best_first([loser for _, loser in played]), *ranked]
            left = [*left[len(left) // 2 * 2 :], *(winner for winner, _ in played)]
    except LookupError as error:
        return [Scored(None, str(error))] * len(group)
    place = {member: rank for rank, member in enumerate([*left, *ranked])}
    return [Scored(1 - place[k] / (len(group) - 1), f"place {place[k] + 1}") for k in range(len(group))]
