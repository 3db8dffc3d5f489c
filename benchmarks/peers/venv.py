"""Virtual environments of peers, each made once, below build/benchmarks/venvs."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time

from benchmarks.harness import ROOT, Missing

VENVS = ROOT / "build" / "benchmarks" / "venvs"

PEERS = {
    "verifiers": ("verifiers==0.4.0",),
    "browsergym": ("browsergym-miniwob==0.14.3",),
    "swe-rex": ("swe-rex==1.4.0", "aiohttp==3.14.5"),  # its client needs aiohttp and does not say so
}
"""Requirements of each peer, for pip."""

INSTALL_S = 180.0
AGAIN_S = 3600.0
"""Seconds after which the installation of a peer is given up, and tried again."""


def python_of(peer: str) -> str:
    """The interpreter of the environment that has a peer and nothing of ours; made if it is not there.

    Raises:
        Missing: it cannot be installed, or could not a while ago.
    """
    packages = PEERS[peer]
    home = VENVS / f"{peer}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:8]}"
    python, done, failed = home / "bin" / "python", home / "installed", home / "failed"
    if done.exists():
        return str(python)
    if failed.exists() and time.time() - failed.stat().st_mtime < AGAIN_S:
        raise Missing(f"{failed.read_text()} (remove {failed} to try again)")
    shutil.rmtree(home, ignore_errors=True)
    deadline = time.monotonic() + INSTALL_S
    for argv in (
        [sys.executable, "-m", "venv", str(home)],
        [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages],
    ):
        try:
            left = deadline - time.monotonic()
            ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=left)
            why = f"exit code {ran.returncode} {ran.stderr.strip()[-300:]}" if ran.returncode else ""
        except subprocess.TimeoutExpired:
            why = f"it took more than {INSTALL_S:g} s"
        if why:
            home.mkdir(parents=True, exist_ok=True)
            failed.write_text(f"{' '.join(packages)} cannot be installed: {why}")
            raise Missing(failed.read_text())
    done.touch()
    return str(python)
