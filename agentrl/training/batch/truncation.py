"""The rules for episodes that a limit ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agentrl.config.recipe import Cut, TrainSection
from agentrl.types.episode import Episode


@dataclass(frozen=True)
class Truncation:
    """The rules of a recipe, `train.truncated` and `train.timed_out`.

    Attributes:
        truncated: for episodes that a limit of turns or tokens ended.
        timed_out: for episodes that `limits.episode_s` ended.
    """

    truncated: Cut
    timed_out: Cut

    @classmethod
    def of_settings(cls, settings: TrainSection) -> Truncation:
        """The rules of a recipe."""
        return cls(settings.truncated, settings.timed_out)

    def counts(self, episode: Episode) -> bool:
        """Returns True if an episode counts in its group, and therefore in the baselines."""
        return episode.scored and self.of(episode) != "drop"

    def of(self, episode: Episode) -> Cut:
        """The rule for an episode. `keep` if it ended by itself or broke its sandbox or the program of a tool: it must
        keep its bad reward."""
        if episode.status != "truncated" or episode.stop in ("sandbox_broken", "tool_broken"):
            return "keep"
        return self.timed_out if episode.stop == "wall" else self.truncated

    def metrics(self, episodes: Iterable[Episode]) -> dict[str, float]:
        """The numbers of scored episodes that were masked and dropped; empty if both rules are `keep`."""
        if self.truncated == self.timed_out == "keep":
            return {}
        found = [self.of(episode) for episode in episodes if episode.scored]
        return {"masked": float(found.count("mask")), "dropped": float(found.count("drop"))}
