"""Runs commands on several ranks, one after the other: an argument each, JSON.

    {"ranks": 2, "command": ["train", ...], "death": null or [point, call, after], "beside": false}

death: of rank 0, see lives.py. beside: compute and evaluate as if there were staleness.

Prints the exit codes of the ranks of each.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import Any

from agentrl.cli import app
from agentrl.training import assembly
from tests.commands.lives import die_at
from tests.ranks import fork_ranks


def live(command: list[str], death: list[Any] | None, beside: bool) -> None:
    """One rank's life."""
    if beside:
        assembly.works_beside = lambda recipe: True
    if death is not None and os.environ["RANK"] == "0":
        die_at(*death)
    app(command, standalone_mode=False)


def main() -> None:
    for argument in sys.argv[1:]:
        life = json.loads(argument)
        codes = fork_ranks(life["ranks"], partial(live, life["command"], life["death"], life["beside"]))
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
