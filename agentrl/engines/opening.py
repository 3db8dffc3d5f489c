"""The parts of a recipe that an engine receives when it is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import Tokenizer
from agentrl.config.model import ModelSettings
from agentrl.config.recipe import Recipe
from agentrl.models.load import LoadedModel, model_folder
from agentrl.registry.registry import Loaded
from agentrl.types.engine import Engine
from agentrl.types.errors import RecipeError


@dataclass(frozen=True, eq=False)
class EngineOpening:
    """A recipe's side of its engine.

    Attributes:
        engine: the class, with its settings.
        tokenizer: of the recipe's model; without a model, the byte tokenizer.
        definitions: of the tools.
        make_renderer: makes the renderer of a tokenizer.
        needed_context: returns an upper bound of an episode's tokens; None if user code decides.
        loaded: in training, the model in memory, which the trainer will change; else None.
        urls: running servers to attach to; None: those of the recipe, or new ones.
        launch_servers: launches servers on the recipe's cluster (`agentrl.distributed.servers.LaunchedServers`).
    """

    engine: Loaded[type[Engine]]
    recipe: Recipe
    tokenizer: Tokenizer
    definitions: list[dict[str, Any]]
    make_renderer: Callable[[Tokenizer], Renderer]
    needed_context: Callable[[], int | None]
    loaded: LoadedModel | None = None
    urls: Sequence[str] | None = None
    launch_servers: Callable[..., Any] | None = None

    @property
    def settings(self) -> Any:
        """Settings of the engine: an instance of its `Settings`."""
        return self.engine.settings

    @cached_property
    def renderer(self) -> Renderer:
        """Renderer of the recipe's conversations."""
        return self.make_renderer(self.tokenizer)

    @property
    def model_folder(self) -> Path | None:
        """Folder of the recipe's model; None in training, and without a model."""
        model = self.recipe.model
        return None if self.loaded is not None or model is None else model_folder(model)

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Arguments of a constructor: the settings, and what it takes by name."""
        return {**{name: getattr(self, name) for name in self.engine.wants}, **self.engine.arguments}


def named_model(recipe: Recipe) -> ModelSettings:
    """Returns the recipe's model, which must exist in a folder.

    Raises:
        RecipeError: the recipe has no model, or training has not built it yet.
    """
    model = recipe.required_model
    if model.scratch is not None:
        raise RecipeError(
            "the recipe's model is built by training",
            place="model.scratch",
            remedy="agentrl train first, then agentrl eval RUN, or --set 'model={path: RUN/checkpoints/it-...}'",
        )
    return model
