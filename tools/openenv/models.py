"""What is said to the environment, and what it shows."""

from typing import Any

from pydantic import Field

from openenv.core.env_server.types import Action, Observation


class RecipeAction(Action):
    """A turn: text as the model would write it, or calls of tools."""

    text: str = Field(description="The reply. Calls may stand in it, in the recipe's format.")
    calls: list[dict[str, Any]] = Field(default_factory=list, description="Calls: {name, arguments}.")


class RecipeObservation(Observation):
    """What came of it. `metadata` holds the messages, and the tools that can be called."""

    text: str = Field(default="", description="The messages' texts.")
