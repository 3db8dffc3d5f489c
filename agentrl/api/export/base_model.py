"""The model that a training started from, as its export names it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config.recipe import recipe_from_run
from agentrl.models.hub import is_hub_name
from agentrl.models.load import find_model
from agentrl.store.checkpoints import about
from agentrl.types.errors import RecipeError, StoreError


@dataclass(frozen=True)
class BaseModel:
    """The weights that a training began with.

    Attributes:
        name: a name of the Hub, or a path of this machine; None: the model was built from scratch.
        revision: its commit, of the Hub.
        below: the checkpoint of the run whose weights lie below the adapters; None: those of `name`.
    """

    name: str | None
    revision: str | None = None
    below: Path | None = None

    @property
    def of_hub(self) -> bool:
        """True if others can load it by its name. A training notes the commit of every model of the Hub; a folder that
        is gone by now may have a name like one."""
        return self.revision is not None

    def require_named(self, checkpoint: Path, *, public: bool) -> None:
        """Checks that an adapter can name what it adapts.

        Args:
            public: others must be able to load it.

        Raises:
            StoreError: it cannot.
        """
        if self.below is not None:
            why = f"the adapters lie on the weights of {self.below.name}, which an earlier stage of the run trained"
        elif self.name is None:
            why = "the adapters lie on a model that was built from scratch, which nobody else has"
        elif public and not self.of_hub:
            why = f"the adapters lie on {self.name}, a model of this machine alone"
        else:
            return
        raise StoreError(why, place=str(checkpoint), remedy="leave --adapter out, which writes the whole model")


def base_of(info: Mapping[str, Any], checkpoint: Path, run: Path) -> BaseModel:
    """Returns the model that a run started from.

    Args:
        info: `run.json`.
    """
    model = recipe_from_run(dict(info)).model
    pinned = about(checkpoint)["pins"]["base"]
    below = None if pinned is None else run / "checkpoints" / pinned
    if model is None or model.path is None:
        return BaseModel(None, None, below)
    name = model.path
    if not is_hub_name(name):
        with suppress(RecipeError):  # it was moved since the training
            name = str(find_model(name) or name)
    return BaseModel(name, model.revision, below)
