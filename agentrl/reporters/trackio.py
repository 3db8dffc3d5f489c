"""trackio. Local, in the folder that `trackio show` reads (`TRACKIO_DIR`), unless the recipe names a Space."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping

from pydantic import Field

from agentrl.config.sections import Section
from agentrl.reporters.tracker import Tracker
from agentrl.types.errors import needs
from agentrl.types.reporter import RunStart


class TrackioSettings(Section):
    """Settings of the trackio tracker."""

    project: str | None = Field(None, description="Default: the recipe's name.")
    group: str | None = None
    space: str | None = Field(None, description="A Space of Hugging Face, user/name; default: this machine.")


class Trackio(Tracker):
    """Metrics by iteration, and the recipe as the run's config."""

    def __init__(self, settings: TrackioSettings) -> None:
        self.settings = settings
        with needs("trackio"):
            import trackio
        self._trackio = trackio

    def open(self, run: RunStart, id: str | None) -> str:
        name = id or f"{run.path.name}-{run.id}"  # trackio finds a run again by its name
        with contextlib.redirect_stdout(io.StringIO()):
            self._run = self._trackio.init(
                project=self.settings.project or run.name,
                name=name,
                group=self.settings.group,
                space_id=self.settings.space,
                config={**run.recipe, "command": run.command, "path": str(run.path)},
                resume="allow",
                embed=False,
            )
        return name

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self, error: BaseException | None) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.finish()
