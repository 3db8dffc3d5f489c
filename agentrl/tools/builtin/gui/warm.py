"""Pool of idle desktops on this machine, and their replacement when too old or too slow."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.tools.builtin.gui.desktop import Desktop, DesktopSettings
from agentrl.tools.builtin.gui.screen import ScreenLost
from agentrl.types.errors import ToolError


@dataclass(frozen=True)
class Recycling:
    """Limits after which a desktop is replaced: long-lived ones slow down and leak.

    Attributes:
        age_s: maximum age.
        episodes: maximum number of episodes.
        step_s: maximum median duration of a step in the last episode.
    """

    age_s: float = 1800.0
    episodes: int = 50
    step_s: float = 1.0

    def wears_out(self, desktop: Desktop) -> bool:
        """Returns True if a desktop has reached a limit."""
        old = time.monotonic() - desktop.born > self.age_s
        return old or desktop.episodes >= self.episodes or desktop.slow(self.step_s)


class WarmDesktops:
    """Idle desktops of this process, by settings: as many as were in use concurrently.

    Only the bare X server of a used desktop stays; it resets when its last client disconnects.
    """

    def __init__(self) -> None:
        self._idle: dict[DesktopSettings, list[Desktop]] = defaultdict(list)

    async def take(self, settings: DesktopSettings, recycling: Recycling, command: Sequence[str], cwd: str) -> Desktop:
        """Takes or opens a desktop and starts the program.

        Raises:
            RecipeError: a package is not installed.
            ScreenLost: the program did not start; on a reused desktop it is retried once on a new one.
        """
        while idle := self._idle[settings]:
            desktop = idle.pop()
            if recycling.wears_out(desktop):
                await desktop.close()
                continue
            try:
                return await _started(desktop, command, cwd)
            except ScreenLost:
                break
        return await _started(await Desktop.open_on_host(settings), command, cwd)

    async def give_back(self, desktop: Desktop, recycling: Recycling) -> None:
        """Returns a desktop to the pool, or closes it if broken or worn out."""
        if desktop.broken or recycling.wears_out(desktop):
            await desktop.close()
            return
        try:
            await desktop.reset()
        except (ScreenLost, ToolError):
            await desktop.close()
        except BaseException:
            await desktop.close()
            raise
        else:
            self._idle[desktop.settings].append(desktop)

    async def close(self) -> None:
        """Closes all idle desktops. They also end with this process."""
        for desktops in self._idle.values():
            while desktops:
                await desktops.pop().close()


WARM = WarmDesktops()
"""Pool of this process."""


async def _started(desktop: Desktop, command: Sequence[str], cwd: str) -> Desktop:
    try:
        await desktop.start(command, cwd)
    except BaseException:
        await desktop.close()
        raise
    return desktop
