"""The models of the Hugging Face Hub that a recipe names, at the commits that a run records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.config.recipe import Recipe, TrainSection
from agentrl.models.hub import commit_of, download, is_commit, is_hub_name
from agentrl.models.load import fetch_model
from agentrl.store.info import read_info
from agentrl.types.errors import RecipeError

Commits = dict[str, str]
"""The commit of each model, by `OWNER/NAME` or `OWNER/NAME@REVISION` as the recipe names it."""


def at_commits(recipe: Recipe, run: Path | None, *, trains: bool = False) -> tuple[Recipe, Commits]:
    """Downloads the models of the Hub that a command loads, and names their commits in the recipe.

    A branch moves on; the run, what resumes it and what reads it later use one commit.

    Args:
        run: the run directory: the commits that it has recorded are used again. None: the command records no run.
        trains: the command also loads teachers.

    Returns:
        The recipe, with commits as revisions, and the commits for `run.json`.

    Raises:
        RecipeError: the Hub does not give a model, or cannot be reached and the cache lacks it; with the place in the
            recipe.
    """
    hub = _Hub(recipe, {} if run is None or not (run / "run.json").exists() else read_info(run).get("models", {}))
    sections: dict[str, Any] = {}
    if (model := recipe.model) is not None and recipe.engine.weights != "own":  # an API has its own
        revision = hub.commit("model.path", model.path, model.revision)
        sections["model"] = model.model_copy(update={"revision": revision})
    policies = dict(recipe.policies)
    for name, each in policies.items():
        if isinstance(each.checkpoint, str):
            revision = hub.commit(f"policies.{name}.checkpoint", each.checkpoint, each.revision)
            policies[name] = each.model_copy(update={"revision": revision})
    if trains and recipe.train is not None:
        sections["train"] = hub.with_teacher("train", recipe.train)
    stages = list(recipe.stages)
    for index, stage in enumerate(stages):
        if trains and stage.rl is not None:
            stages[index] = stage.with_train(hub.with_teacher(f"stages.{index}.rl.train", stage.rl.train))
    if not hub.commits:
        return recipe, {}
    return recipe.with_sections(**sections, policies=policies, stages=stages), hub.commits


class _Hub:
    """Finds commits, each once.

    Attributes:
        commits: those found so far.
    """

    def __init__(self, recipe: Recipe, recorded: Commits) -> None:
        self.commits: Commits = {}
        self._recipe, self._recorded = recipe, recorded

    def commit(self, key: str, name: str | None, revision: str | None) -> str | None:
        """Returns the commit of a model of the Hub, which is then in the cache; of another model its revision."""
        if name is None or not is_hub_name(name):
            return revision
        asked = name if revision is None else f"{name}@{revision}"
        if asked not in self.commits:
            wanted = self._recorded.get(asked, revision)
            try:
                found = fetch_model(name, wanted) if is_commit(wanted) else download(name, wanted)
            except RecipeError as error:
                raise RecipeError(error.message, place=self._recipe.place_of(key), remedy=error.remedy) from error
            self.commits[asked] = commit_of(found) or str(wanted)
        return self.commits[asked]

    def with_teacher(self, key: str, train: TrainSection) -> TrainSection:
        """Returns a section with the commit of its teacher."""
        if (teacher := train.teacher) is None:
            return train
        revision = self.commit(f"{key}.teacher.path", teacher.path, teacher.revision)
        return train.model_copy(update={"teacher": teacher.model_copy(update={"revision": revision})})
