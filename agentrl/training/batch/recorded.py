"""Groups that another run has recorded, to train on: `agentrl train RECIPE --from RUN`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from agentrl.chat.renderer import Renderer
from agentrl.config.recipe import recipe_from_run
from agentrl.store.reader import RunReader
from agentrl.training.stages.runs import is_of
from agentrl.training.stages.stage import stages_of
from agentrl.types.errors import TrainError

SPLITS = ("proxy", "rollout", "train")
"""Splits that may be trained on: neither evaluations nor demonstrations of scripts."""


@dataclass(frozen=True)
class RecordedGroups:
    """The scored episodes of a run, by group, in the order of their ids.

    Attributes:
        passes: how often each group trains.
    """

    run: RunReader
    groups: list[list[str]]
    passes: int = 1

    @classmethod
    def of(cls, run: RunReader, passes: int = 1) -> RecordedGroups:
        """Selects all groups of a run with an episode that can be trained on.

        Raises:
            TrainError: the run has none.
        """
        groups: dict[str, list[str]] = defaultdict(list)
        for row in run.rows(order="id"):
            if row.split in SPLITS and row.status in ("done", "truncated") and row.reward is not None and row.turns:
                groups[row.group_id].append(row.id)
        if not groups:
            raise TrainError(
                "no recorded episode was scored",
                place=str(run.path),
                remedy="record again, with rewards in the closing calls or in the recipe of agentrl proxy",
            )
        return cls(run, [groups[id] for id in sorted(groups)], passes)

    def iterations(self, size: int) -> int:
        """Number of updates of `size` groups each. The last of a pass may have fewer."""
        return self.passes * self._updates(size)

    def batch(self, update: int, size: int) -> list[list[str]]:
        """Returns the ids of the groups of an update. Updates do not span passes: a group could occur twice."""
        at = update % self._updates(size) * size
        return self.groups[at : at + size]

    def _updates(self, size: int) -> int:
        return -(-len(self.groups) // size)

    def check(self, renderer: Renderer) -> None:
        """Checks that the recordings can train the renderer's model.

        Raises:
            TrainError: they are of another tokenizer, lack log-probabilities, or were not sampled from the whole
                distribution.
        """
        check_sampled_whole(self.run)
        for ids in self.groups:
            episode = self.run.get(ids[0])
            if not is_of(episode, renderer):
                raise TrainError(
                    f"the episode {episode.id!r} was not sampled by a model with the recipe's tokenizer",
                    place=str(self.run.path),
                    remedy="train the model that it was recorded with: model.path",
                )


def check_sampled_whole(run: RunReader) -> None:
    """Checks that the tokens of a run were sampled from the whole distribution, as the trainer assumes.

    Raises:
        TrainError: the recipe that sampled them truncates the distribution.
    """
    if not run.info.get("recipe"):
        return
    recipe = recipe_from_run(run.info)
    for each in [recipe, *(stage.recipe for stage in stages_of(recipe) if stage.kind == "rl")]:
        if each.sampling.top_p < 1:
            raise TrainError(
                f"was sampled with sampling.top_p {each.sampling.top_p:g}: the trainer computes probabilities over the "
                "whole vocabulary, which differ from those",
                place=str(run.path),
                remedy="record with sampling.top_p=1",
            )
