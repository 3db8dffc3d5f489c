"""Virtual environments of peers, each made once, below build/benchmarks/venvs."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys

from benchmarks.harness import ROOT, Missing

VENVS = ROOT / "build" / "benchmarks" / "venvs"

PEERS = {
    "verifiers": ("verifiers==0.4.0",),
    "browsergym": ("browsergym-miniwob==0.14.3",),
    "swe-rex": ("swe-rex==1.4.0", "aiohttp==3.14.5"),  # its client needs aiohttp and does not say so
}
"""What pip installs for each."""


def python_of(peer: str) -> str:
    """The interpreter of the environment that has a peer and nothing of ours; made if it is not there.

    Raises:
        Missing: it cannot be installed.
    """
    packages = PEERS[peer]
    home = VENVS / f"{peer}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:8]}"
    python, done = home / "bin" / "python", home / "installed"
    if done.exists():
        return str(python)
    shutil.rmtree(home, ignore_errors=True)
    for argv in (
        [sys.executable, "-m", "venv", str(home)],
        [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages],
    ):
        ran = subprocess.run(argv, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise Missing(f"{' '.join(packages)} cannot be installed: {ran.stderr.strip()[-300:]}")
    done.touch()
    return str(python)
