"""The name and the version under which this package is distributed. The import and the command are called `agentrl`."""

from __future__ import annotations

DISTRIBUTION = "agentrl-framework"
"""The name for pip. `agentrl` on PyPI is the package of another project."""

__version__ = "0.1.0"
"""The one place of the version: the build reads it, and CHANGELOG.md begins with it."""


def pip_install(*extras: str) -> str:
    """Returns the command that installs this package with extras."""
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'"
