"""Desktops of this machine that wait for their next episode, and which of them are too old or too slow for one."""

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
    """When a desktop is replaced by a new one: long-lived machines slow down and leak.

    Attributes:
        age_s: older ones are not used again.
        episodes: nor are those that served so many.
        step_s: nor are those on which the median step of an episode took longer.
    """

    age_s: float = 1800.0
    episodes: int = 50
    step_s: float = 1.0

    def wears_out(self, desktop: Desktop) -> bool:
        """Whether it has served long enough."""
        old = time.monotonic() - desktop.born > self.age_s
        return old or desktop.episodes >= self.episodes or desktop.slow(self.step_s)


class WarmDesktops:
    """The desktops of this process that are idle, by settings: as many as were once in use at the same time.

    Of a used one only the bare server stays, which forgets everything when its last program leaves.
    """

    def __init__(self) -> None:
        self._idle: dict[DesktopSettings, list[Desktop]] = defaultdict(list)

    async def take(self, settings: DesktopSettings, recycling: Recycling, command: Sequence[str], cwd: str) -> Desktop:
        """One whose program is running.

        Raises:
            RecipeError: something is not installed.
            ScreenLost: the program did not start, twice where the first desktop was a used one.
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
        """Keeps it for another episode, or ends it."""
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
        """Ends all that are idle. They end with this process, too."""
        for desktops in self._idle.values():
            while desktops:
                await desktops.pop().close()


WARM = WarmDesktops()
"""Those of this process."""


async def _started(desktop: Desktop, command: Sequence[str], cwd: str) -> Desktop:
    try:
        await desktop.start(command, cwd)
    except BaseException:
        await desktop.close()
        raise
    return desktop
