"""Actions and observations of the environment."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from openenv.core.env_server.types import Action, Observation


class Call(BaseModel):
    """Tool call."""

    model_config = ConfigDict(extra="forbid")

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class RecipeAction(Action):
    """Turn of the model: its text, or tool calls."""

    text: str = Field(description="The reply. Calls may stand in it, in the recipe's format.")
    calls: list[Call] = Field(default_factory=list, description="Calls: {name, arguments}.")


class RecipeObservation(Observation):
    """Observation after a turn."""

    text: str = Field(default="", description="The texts of the messages since the last turn.")
    messages: list[dict[str, Any]] | None = Field(
        default=None, description="These messages, if one has more than text."
    )
    tools: list[dict[str, Any]] | None = Field(default=None, description="What can be called, if that is new.")
    status: str | None = Field(default=None, description="At the end: done, or truncated by a limit.")
    components: dict[str, float | None] | None = Field(default=None, description="At the end: the reward's components.")
