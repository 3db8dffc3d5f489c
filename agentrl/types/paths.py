"""Where the files are that travel with the package but are no modules: `tools/`, `recipes/`, `sandboxes/`."""

from __future__ import annotations

from pathlib import Path

from agentrl.types.errors import AgentRLError

_PACKAGE = Path(__file__).resolve().parents[1]


def data_path(*parts: str) -> Path:
    """The path of a data file or folder, for example `data_path("recipes", "quickstart")`.

    A wheel carries them in `agentrl/_data`; in a checkout they lie beside the package.

    Raises:
        AgentRLError: it is in neither place, which means a damaged install.
    """
    for root in (_PACKAGE / "_data", _PACKAGE.parent):
        if (path := root.joinpath(*parts)).exists():
            return path
    raise AgentRLError(f"{'/'.join(parts)} is missing from this install of agentrl", remedy="reinstall agentrl")
