"""The section `track` of a recipe."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from agentrl.config.sections import Short, named


class Track(Short):
    """One entry of `track`: a name, `{NAME: {...}}`, or `{use: NAME, ...}` with the tracker's own settings."""

    model_config = ConfigDict(extra="allow", frozen=True)

    use: str = Field(description="tensorboard, wandb, mlflow, trackio, or ./task.py:MyReporter.")

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A name, or a name with its settings."""
        return named(value)
