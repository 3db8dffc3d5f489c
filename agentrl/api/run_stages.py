"""Stages of a stored run, by its episodes."""

from __future__ import annotations

from agentrl.config.recipe import Recipe, recipe_from_run
from agentrl.store.reader import RunReader
from agentrl.training.stages.stage import Stage, stages_of
from agentrl.types.errors import StoreError, nearest
from agentrl.types.reporter import UNNAMED


class RunStages:
    """Stages of a run's recipe.

    Attributes:
        recipe: of the run; None without one.
    """

    def __init__(self, run: RunReader) -> None:
        self.recipe = recipe_from_run(run.info) if "recipe" in run.info else None
        self._run = run
        self._listed = [] if self.recipe is None else [stage for stage in stages_of(self.recipe) if stage.listed]

    def prefix_of(self, episode_id: str) -> str:
        """Prefix of the ids of an episode's stage; "" in a run without listed stages."""
        return next((stage.prefix for stage in self._listed if episode_id.startswith(stage.prefix)), "")

    def recipe_of(self, prefix: str) -> Recipe | None:
        """Returns the recipe of the stage with this prefix of ids (`prefix_of`)."""
        return next((stage.recipe for stage in self._listed if stage.prefix == prefix), self.recipe)

    def recipes(self) -> list[Recipe]:
        """Those under which episodes were played."""
        shared = [] if self.recipe is None else [self.recipe]
        return [stage.recipe for stage in self._listed] or shared

    def chosen(self, name: str | None) -> tuple[Recipe | None, str]:
        """Returns the recipe of one stage, and the prefix of the ids of its episodes.

        Args:
            name: default: the only stage with episodes other than demonstrations.

        Raises:
            StoreError: the stage does not exist, or no name is given and several stages hold episodes.
        """
        if name is not None:
            return self._named(name)
        holding = self._holding()
        if len(holding) > 1:
            raise StoreError(
                "holds episodes of several stages, each with rewards and credit of its own",
                place=str(self._run.path),
                remedy=f"say which: --stage {'|'.join(stage.name for stage in holding)}",
            )
        return (holding[0].recipe, holding[0].prefix) if holding else (self.recipe, "")

    def _named(self, name: str) -> tuple[Recipe, str]:
        for stage in self._listed:
            if stage.name == name:
                return stage.recipe, stage.prefix
        if name == UNNAMED and not self._listed and self.recipe is not None:
            return self.recipe, ""  # the name in metrics and `agentrl show` for the training of a recipe without stages
        names = [stage.name for stage in self._listed]
        remedy = nearest(name, names) if names else "leave out --stage: its recipe lists no stages"
        raise StoreError(f"has no stage {name!r}", place=str(self._run.path), remedy=remedy)

    def _holding(self) -> list[Stage]:
        ids = [row.id for row in self._run.rows() if row.split != "demo"]
        return [stage for stage in self._listed if any(id.startswith(stage.prefix) for id in ids)]
