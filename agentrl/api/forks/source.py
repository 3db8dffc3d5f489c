"""Stored episode that forks resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from agentrl.api.recipes import Overrides, as_lines
from agentrl.api.run import Run, folder_of
from agentrl.api.run_dirs import BEST, LAST, kept_checkpoint
from agentrl.api.run_files import code_beside
from agentrl.api.run_stages import RunStages
from agentrl.config.loader import load_recipe
from agentrl.config.model import ModelSettings
from agentrl.config.recipe import Recipe
from agentrl.rewards.bare import bare_turns, scoring_functions
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode
from agentrl.types.errors import StoreError
from agentrl.types.memory import TextMemory
from agentrl.types.task import Task


class Source:
    """An episode of a run, with the recipe and record needed to resume it. A context manager.

    Args:
        name: the episode's id, or a unique part of it.
        changed_code: allow changes to code in the recipe's folder since the run.

    Attributes:
        script: the script that played the run; None: a policy.

    Raises:
        StoreError: the run or episode does not exist or cannot be resumed, or code in the recipe's folder has changed.
    """

    def __init__(self, run: str | Path | Run, name: str, changed_code: bool) -> None:
        self.path = folder_of(run)
        self._dir = RunDir.read(self.path)
        try:
            episode = self._dir.get(self._dir.resolve(name))
            self.place = f"{self.path}, episode {episode.id}"
            self.recipe = self._recipe_of(episode)
            self._check(episode)
            if not changed_code:
                self._check_code(self.recipe.base)
        except BaseException:
            self._dir.close()
            raise
        turns = bare_turns(episode, scoring_functions(self.recipe.rewards))
        task = _with_files(episode.task, self._dir.get_blob)
        self.record = msgspec.structs.replace(episode, turns=turns, task=task)
        self.run_id, self.script = self._dir.id, self._dir.info.get("script")
        self.seed = self.recipe.seed

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exception: object) -> None:
        self._dir.close()

    def check_turn(self, turn: int) -> None:
        """Checks that the episode can be resumed from a turn.

        Raises:
            StoreError: the turn does not exist, or an earlier one ended after it.
        """
        turns = self.record.turns
        if not 0 <= turn < len(turns):
            has = f"its turns are 0 to {len(turns) - 1}" if turns else "it has none"
            raise StoreError(f"there is no turn {turn}: {has}", place=self.place, remedy="agentrl show RUN EPISODE")
        if other := next((each for each in turns[:turn] if each.node > turns[turn].node), None):
            raise StoreError(
                f"turn {other.index}, of the context {other.context!r}, was sampled at the same time as turn {turn}",
                place=self.place,
                remedy=f"resume from turn {other.index}",
            )

    def _checkpoint(self, named: str | Path) -> Path:
        """Returns a folder, or the checkpoint of the run with this name."""
        is_name = str(named) in (LAST, BEST) or str(named).isdigit()
        return kept_checkpoint(self.path, str(named)) if is_name or not Path(named).is_dir() else Path(named)

    def recipe_for(self, checkpoint: str | Path | None, overrides: Overrides) -> Recipe:
        """The recipe of the episode, with the policy that plays on.

        Raises:
            RecipeError: the run has no such checkpoint, or is a training without one, or an override is wrong.
        """
        recipe = self.recipe
        if checkpoint is not None:
            recipe = recipe.model_copy(update={"model": _model_at(recipe, self._checkpoint(checkpoint))})
        elif self._dir.info.get("command") == "train" and self.script is None:
            recipe = recipe.model_copy(update={"model": _model_at(recipe, kept_checkpoint(self.path))})
        recipe = recipe.model_copy(update={"stages": []})
        return load_recipe(recipe, as_lines(overrides), place=self.path / "run.json") if overrides else recipe

    def _recipe_of(self, episode: Episode) -> Recipe:
        stages = RunStages(self._dir)
        prefix = stages.prefix_of(episode.id)
        found = stages.chosen(prefix.removesuffix("/"))[0] if prefix else stages.recipe
        if found is None:
            raise StoreError("names no recipe", place=str(self.path), remedy="fork an episode of a rollout or training")
        return found

    def _check(self, episode: Episode) -> None:
        if episode.status not in ("done", "truncated"):
            why = episode.error.message.splitlines()[0] if episode.error is not None else "no reason is recorded"
            raise StoreError(
                f"it failed ({episode.status}: {why})",
                place=self.place,
                remedy="fork an episode that is data: agentrl show RUN --status done",
            )
        program = episode.split == "proxy" or self.recipe.agent.is_program
        if program or not episode.nodes:
            what = "an agent program drove it" if program else "its tokens are not recorded"
            raise StoreError(f"it cannot be resumed: {what}", place=self.place, remedy="fork an episode of a rollout")

    def _check_code(self, base: Path) -> None:
        before, now = self._dir.info.get("code"), code_beside(base, self._dir.info["recipe"])
        if not base.is_dir():
            raise StoreError(
                f"the recipe's folder {base} is gone", place=str(self.path), remedy="put it back: its code is needed"
            )
        changed = [] if before is None else sorted(n for n in before.keys() | now.keys() if before.get(n) != now.get(n))
        if changed:
            raise StoreError(
                f"{', '.join(changed)} in {base} changed since the run",
                place=str(self.path),
                remedy="restore the files, or --changed-code if the change does not matter: results of tools are "
                "compared with the record all the same",
            )


def _with_files(task: Task, read: Callable[[str], bytes]) -> Task:
    """A task with its images themselves: their blobs are of the run that it comes from."""

    def file_of(part: Any) -> Any:
        return {"type": "image", "image": read(part["blob"])} if "blob" in part else part

    def shown(content: Any) -> Any:
        return content if isinstance(content, str) else [file_of(part) for part in content]

    said = [{**message, "content": shown(message["content"])} for message in task.instruction]
    return msgspec.structs.replace(task, instruction=said)


def _model_at(recipe: Recipe, checkpoint: Path) -> ModelSettings:
    """Returns the model of a checkpoint: its weights, or only its text memory where the policy is an API."""
    if recipe.model is None and TextMemory.load(checkpoint) is not None:
        return ModelSettings(path=str(checkpoint))
    return recipe.required_model.at(checkpoint)
