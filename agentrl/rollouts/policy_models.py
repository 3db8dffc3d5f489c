"""The weights of auxiliary policies: a named checkpoint, or what their own training saved."""

from __future__ import annotations

from pathlib import Path

from agentrl.config.agent import PolicySettings
from agentrl.config.model import ModelSettings
from agentrl.models.hub import is_hub_name
from agentrl.models.load import find_model
from agentrl.store.checkpoints import POLICIES, latest
from agentrl.types.errors import RecipeError
from agentrl.types.paths import neighbours


def model_of(name: str, settings: PolicySettings, main: ModelSettings | None) -> ModelSettings | None:
    """Returns the model of an auxiliary policy; None if it has none of its own.

    Args:
        main: the recipe's model, which a trainable policy adapts.

    Raises:
        RecipeError: the checkpoint is neither a run nor a model.
    """
    if isinstance(settings.checkpoint, str):
        if is_hub_name(settings.checkpoint):
            found = weights_at(Path(settings.checkpoint), main)
            return found.model_copy(update={"revision": settings.revision})
        return weights_at(checkpoint_of(name, settings.checkpoint, settings.revision), main)
    if not settings.train or main is None:
        return None
    saved = None if main.path is None else Path(main.path) / POLICIES / name
    return main.at(saved) if saved is not None and saved.is_dir() else main


def weights_at(folder: Path, main: ModelSettings | None) -> ModelSettings:
    """Returns the model in a folder, with the data type and device of the main one."""
    return ModelSettings(path=str(folder)) if main is None else main.at(folder)


def checkpoint_of(name: str, written: str, revision: str | None = None) -> Path:
    """Returns the model folder of a policy's `checkpoint`: itself, or the newest checkpoint of a run.

    Raises:
        RecipeError: it is neither, or the run has no checkpoint.
    """
    place, folder = f"policies.{name}.checkpoint", Path(written).expanduser()
    if revision is not None:
        raise RecipeError(
            f"{written!r} is no name of the Hugging Face Hub, and has no revision {revision!r}",
            place=place,
            remedy="leave 'revision' out",
        )
    if (folder / "run.json").is_file():
        newest = latest(folder / "checkpoints")
        if newest is None:
            raise RecipeError(f"the run {written} has no checkpoint", place=place, remedy="agentrl train writes them")
        return newest
    try:
        found = find_model(written)
    except RecipeError:
        found = None
    if found is None:
        there = neighbours(folder)
        raise RecipeError(
            f"{written!r} is neither a run nor a model",
            place=place,
            remedy="a run directory, a checkpoint in its folder 'checkpoints', a model folder (./NAME: in the folder "
            f"of the recipe), package:NAME, or OWNER/NAME of the Hugging Face Hub{f'; {there}' if there else ''}",
        )
    return found
