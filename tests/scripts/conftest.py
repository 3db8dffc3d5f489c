"""A small project in git, and an environment for copies of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

HOUSE = {
    "agentrl/__init__.py": "",
    "agentrl/low/__init__.py": "",
    "agentrl/low/size.py": "def small(x):\n    return x < 3\n\n\ndef seen(log):\n    log.append('seen')\n",
    "agentrl/high/__init__.py": "",
    "agentrl/high/use.py": "from agentrl.low.size import small\n",
    "agentrl/other/__init__.py": "",
    "tests/__init__.py": "",
    "tests/low/__init__.py": "",
    "tests/low/test_any.py": "def test_any():\n    pass\n",
    "tests/low/test_size.py": (
        "import os\n\nfrom agentrl.low import size\n\n\ndef test_broken():\n    assert not size.__file__\n\n\n"
        "def test_small():\n    assert size.small(3) is False\n"
    ),
    "tests/high/__init__.py": "",
    "tests/high/test_use.py": "def test_use():\n    pass\n",
    "tests/other/__init__.py": "",
    "tests/other/test_other.py": "def test_other():\n    pass\n",
    "tests/wide/__init__.py": "",
    "tests/wide/test_wide.py": "import agentrl.low.size\n\n\ndef test_wide():\n    pass\n",
}


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A repository of three rooms."""
    root = tmp_path / "house"
    for path, text in HOUSE.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    commit(root)
    return root


def commit(root: Path) -> str:
    """Commits all files of a folder. Returns the hash."""
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm all"):
        subprocess.run(["git", "-C", root, *command.split()], check=True)
    done = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment with the packages of this one, but not where it finds agentrl."""
    folder = tmp_path / "venv"
    site = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    (site / "all.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", folder)
    return folder
