"""Makes this Python look as if it had some packages less. `--only-listed` puts this folder on the path of the phases.

What is hidden can neither be imported nor found: optional parts then do what they do where it is not installed.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

_HIDDEN = json.loads(os.environ.get("AGENTRL_GPU_HIDDEN") or '{"modules": [], "packages": []}')


class _Without:
    """A finder that does not find what is hidden."""

    def __init__(self, finder: Any) -> None:
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name.partition(".")[0] in _HIDDEN["modules"] else self._finder.find_spec(name, path, target)

    def find_distributions(self, *args: Any, **kwargs: Any) -> Any:
        for found in self._finder.find_distributions(*args, **kwargs):
            if (found.metadata["Name"] or "").lower().replace("_", "-") not in _HIDDEN["packages"]:
                yield found


if _HIDDEN["modules"]:
    sys.meta_path[:] = [_Without(each) if hasattr(each, "find_distributions") else each for each in sys.meta_path]
