"""Runs the command line as a user does: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def agentrl(*arguments: str, cwd: Path, ok: bool = True, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    """Runs `agentrl ARGUMENTS` in `cwd`.

    Args:
        ok: fail the test, with the output, if the exit code is not 0.
    """
    done = subprocess.run(
        [sys.executable, "-m", "agentrl.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=timeout,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"},
    )
    if ok:
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done
