"""Virtual environments of peers, made once."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path


class Missing(Exception):
    """An arm cannot run here; the text says why."""


def python_with(package: str, folder: Path) -> str:
    """The interpreter of an environment that has `package` (as pip takes it), made below `folder` if need be.

    Raises:
        Missing: it cannot be installed.
    """
    home = folder / re.sub(r"[^\w.-]+", "-", package)
    python, done = home / "bin" / "python", home / "installed"
    if done.exists():
        return str(python)
    shutil.rmtree(home, ignore_errors=True)
    for argv in (
        [sys.executable, "-m", "venv", str(home)],
        [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", package],
    ):
        ran = subprocess.run(argv, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise Missing(f"{package} cannot be installed: {ran.stderr.strip()[-300:]}")
    done.touch()
    return str(python)
