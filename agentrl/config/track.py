"""The section `track` of a recipe."""

from __future__ import annotations

from pydantic import Field

from agentrl.config.sections import PlugIn


class Track(PlugIn):
    """One entry of `track`: a name, `{NAME: {...}}`, or `{use: NAME, ...}` with the tracker's own settings."""

    use: str = Field(description="tensorboard, wandb, mlflow, trackio, or ./task.py:MyReporter.")
