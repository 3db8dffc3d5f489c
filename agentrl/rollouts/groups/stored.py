"""Stores and reports episodes of a run. Episodes with group rewards are reported after their group is scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentrl.rewards.components import RewardSet
from agentrl.rollouts.specs import EpisodeSpec, missing
from agentrl.store.group_scores import GroupScores
from agentrl.store.openings import REMEDY, Openings, environment_of, lacks_tools
from agentrl.store.reader import RunReader
from agentrl.store.rescored import Rescore
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode, in_order


class StoredGroups:
    """Episodes and groups of a run.

    Args:
        report: called for every episode that `keep` stored, when its score is complete.
        warn: called once if a group is not one task, and once if declared tools were not offered.
    """

    def __init__(
        self, run: RunDir, report: Callable[[Episode], None], warn: Callable[[str], None] = lambda text: None
    ) -> None:
        self._run, self._report, self._warn = run, report, warn
        self._unreported: set[str] = set()
        self._openings: Openings | None = Openings(run, indexed=True)
        self._warns_of_tools = True

    def keep(self, *tree: Episode) -> None:
        """Stores an ended episode, given after its forks."""
        self._run.add(*tree)
        for episode in tree:
            self._look_at(episode)
            if episode.pending:
                self._unreported.add(episode.id)
            else:
                self._report(episode)

    def _look_at(self, episode: Episode) -> None:
        """Warns of the first group that is not one task, and of the first episode that lacks its tools."""
        if self._openings is not None and (problem := self._openings.problem(episode)) is not None:
            self._openings = None
            self._warn(f"{problem}; credit compares them all the same\n  -> {REMEDY}")
        if self._warns_of_tools and lacks_tools(episode, self._run.info):
            self._warns_of_tools = False
            self._warn(
                f"{episode.id} had no tool to call, although {environment_of(self._run.info)} or its task declares some"
                "\n  -> look at `agentrl show` for what the environment offered, and at tools() or its version"
            )

    def unscored(self, group_id: str) -> Sequence[Episode]:
        """Returns the finished members in order. Empty if exactly these members are scored already."""
        return _unscored(self._run, group_id)

    def add(self, group_id: str, members: Sequence[Episode]) -> None:
        """Stores the scores of a group."""
        self._run.add_scores(GroupScores(group_id=group_id, scores=[Rescore.of(member) for member in members]))
        for member in members:
            if member.id in self._unreported:
                self._unreported.remove(member.id)
                self._report(member)


def unscored_groups(rewards: RewardSet, specs: Sequence[EpisodeSpec], run: RunReader) -> list[str]:
    """Returns the groups without scores whose episodes are all stored, because the run was killed or scoring failed."""
    if not rewards.of_group:
        return []
    lacking = {spec.group_id for spec in missing(specs, run)}
    groups = dict.fromkeys(spec.group_id for spec in specs)
    return [group for group in groups if group not in lacking and _unscored(run, group)]


def _unscored(run: RunReader, group_id: str) -> Sequence[Episode]:
    ids = [row.id for row in run.rows(group_id=group_id) if row.status in ("done", "truncated")]
    scores = run.group_scores(ids[0]) if ids else None
    if scores is not None and {score.episode_id for score in scores.scores} == set(ids):
        return []
    members = in_order(run.episodes(ids))
    return members if any(member.pending for member in members) else []
