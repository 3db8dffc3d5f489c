"""Stub program for sandboxes: replaces uv, uvx, pytest and `python -m pip`, and installs nothing.

Runs their target command with the Python of the image. `verifier.py` writes this file into the sandbox unchanged: it
needs only Python 3.9.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

ALONE = {
    "-n", "-q", "-v", "-U", "--active", "--all-extras", "--exact", "--force-reinstall", "--frozen", "--isolated",
    "--locked", "--managed-python", "--native-tls", "--no-binary", "--no-build", "--no-build-isolation", "--no-cache",
    "--no-cache-dir", "--no-config", "--no-dev", "--no-env-file", "--no-index", "--no-managed-python", "--no-progress",
    "--no-project", "--no-python-downloads", "--no-sync", "--offline", "--quiet", "--refresh", "--reinstall",
    "--upgrade", "--verbose",
}  # fmt: skip
"""Options of uv without a value."""
_INSTALL = ("pip", "ensurepip", "uv")
_REPORTS = ("--ctrf", "--json-ctrf")


def command_of(name: str, words: list[str], python: str, reports: bool) -> list[str] | None:
    """Returns the command that a call runs; None if it only installs.

    Args:
        name: `uv`, `uvx`, `pytest` or `python`.
        words: arguments of the call.
        python: path of the image's Python.
        reports: True if pytest has the plug-in for CTRF reports.
    """
    if name == "uv":
        ran = words[1:] if words[:1] == ["run"] else words[2:] if words[:2] == ["tool", "run"] else []
        return command_of("uvx", ran, python, reports) if ran else None
    if name == "uvx":
        while words and words[0].startswith("-") and words[0] not in ("-m", "--module"):
            words = words[1 if words[0] in ALONE or "=" in words[0] else 2 :]
        if not words:
            return None
        if words[0] in ("-m", "--module"):
            return command_of("python", ["-m", *words[1:]], python, reports)
        name, words = words[0].partition("@")[0], words[1:]
    if name in ("python", "python3"):
        if words[:1] != ["-m"] or len(words) < 2:
            return [python, *words]
        name, words = words[1], words[2:]
        if name in _INSTALL:
            return None
    elif name.endswith(".py"):
        return [python, name, *words]
    elif name != "pytest" and shutil.which(name) is not None:
        return [name, *words]
    if name == "pytest" and not reports:
        words = _without_reports(words)
    return [python, "-m", name, *words]


def _without_reports(words: list[str]) -> list[str]:
    kept: list[str] = []
    for word in words:
        if kept and kept[-1] in _REPORTS:
            kept.pop()  # its value
        elif word.partition("=")[0] not in _REPORTS or "=" not in word:
            kept.append(word)
    return kept


def main(name: str, words: list[str]) -> None:
    """Replaces this process by the command of a call."""
    reports = importlib.util.find_spec("pytest_json_ctrf") is not None
    command = command_of(name, words, sys.executable, reports)
    if command is not None:
        os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
