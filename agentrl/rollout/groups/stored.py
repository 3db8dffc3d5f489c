"""Episodes and groups of a run directory: what is stored is reported, with the score of its group where it gets one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentrl.rewards.components import RewardSet
from agentrl.rollout.specs import EpisodeSpec, missing
from agentrl.store.group_scores import GroupScores
from agentrl.store.rescored import Rescore
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode, in_order


class StoredGroups:
    """The episodes and groups of a run.

    Args:
        report: is told of every episode that `keep` stores, as soon as it has its score.
    """

    def __init__(self, run: RunDir, report: Callable[[Episode], None]) -> None:
        self._run, self._report = run, report
        self._unreported: set[str] = set()

    def keep(self, episode: Episode) -> None:
        """Stores an episode that has ended."""
        self._run.add(episode)
        if episode.pending:
            self._unreported.add(episode.id)
        else:
            self._report(episode)

    def unscored(self, group_id: str) -> Sequence[Episode]:
        """The members that are data, in order; none if they have the score of this very group already."""
        ids = [row.id for row in self._run.rows(group_id=group_id) if row.status in ("done", "truncated")]
        scores = self._run.group_scores(ids[0]) if ids else None
        if scores is not None and {score.episode_id for score in scores.scores} == set(ids):
            return []
        return in_order(self._run.episodes(ids))

    def add(self, group_id: str, members: Sequence[Episode]) -> None:
        """Stores the scores of a group."""
        self._run.add_scores(GroupScores(group_id=group_id, scores=[Rescore.of(member) for member in members]))
        for member in members:
            if member.id in self._unreported:
                self._unreported.remove(member.id)
                self._report(member)


def unscored_groups(rewards: RewardSet, specs: Sequence[EpisodeSpec], run: RunDir) -> list[str]:
    """The groups whose episodes are all stored, and that were not scored: a run was killed before, or it failed."""
    if not rewards.of_group:
        return []
    record = StoredGroups(run, lambda episode: None)
    lacking = {spec.group_id for spec in missing(specs, run)}
    groups = dict.fromkeys(spec.group_id for spec in specs)
    return [group for group in groups if group not in lacking and record.unscored(group)]
