"""Saves what every test would pay for and none looks at.

- A run notes the commit. git is asked once for each folder, where it would look at all files for each run.
- pytest looks at all 700 loggers for those that do not propagate, six times a test, and hangs its handlers on them:
  on those of torch, and on ours, once a command has set it up.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

from _pytest.logging import catching_logs

from agentrl.store import info


def register() -> None:
    """Saves it in this process, and in its forks."""
    asked = info._git
    by_folder = functools.cache(lambda folder, *command: asked(*command))
    info._git = lambda *command: by_folder(os.getcwd(), *command)
    catching_logs.__enter__ = _on_few  # type: ignore[method-assign]


def _on_few(self: Any) -> Any:
    root, ours = logging.getLogger(), logging.getLogger("agentrl")
    self.attached_loggers += [root] if ours.propagate else [root, ours]
    for logger in self.attached_loggers:
        logger.addHandler(self.handler)
    if self.level is not None:
        self.handler.setLevel(self.level)
        self.orig_level = root.level
        root.setLevel(min(root.level, self.level))
    return self.handler
