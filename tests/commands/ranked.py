"""Runs commands on several ranks, one after the other: a line of standard input each, JSON.

    {"ranks": 2, "command": ["train", ...], "death": null or [point, call, after]}     death: of rank 0, see lives.py

Prints the exit codes of the ranks of each.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import Any

from agentrl.cli import app
from tests.commands.lives import die_at
from tests.ranks import fork_ranks


def live(command: list[str], death: list[Any] | None) -> None:
    """One rank's life."""
    if death is not None and os.environ["RANK"] == "0":
        die_at(*death)
    app(command, standalone_mode=False)


def main() -> None:
    for line in sys.stdin:
        life = json.loads(line)
        codes = fork_ranks(life["ranks"], partial(live, life["command"], life["death"]))
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
