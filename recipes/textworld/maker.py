"""Makes games of TextWorld, in a process of its own: `python maker.py` reads one order a line and answers each.

The order of sets shows in the games: the process has PYTHONHASHSEED=0, so that a seed is one game everywhere.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def main() -> None:
    """Orders: `kind`, `settings`, `seed`, `detailed`, `path` of the game. Answers: empty, or what is wrong."""
    answers, sys.stdout = sys.stdout, sys.stderr
    _remember_knowledge()
    for line in sys.stdin:
        order = json.loads(line)
        try:
            _make(order["kind"], order["settings"], order["seed"], order["detailed"], Path(order["path"]))
            said = ""
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        answers.write(json.dumps(said) + "\n")
        answers.flush()


def _make(kind: str, settings: Mapping[str, Any], seed: int, detailed: bool, path: Path) -> None:
    import textworld
    from textworld.challenges import CHALLENGES

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        options = textworld.GameOptions()
        options.seeds, options.path = seed, str(Path(folder) / path.name)
        options.grammar.only_last_action = not detailed
        if kind == "custom":
            options.nb_rooms, options.nb_objects = settings["rooms"], settings["objects"]
            options.quest_length = settings["quest"]
            game = textworld.generator.make_game(options)
        else:
            _, make, _ = CHALLENGES[f"tw-{kind}"]
            game = make(dict(settings), options)
        textworld.generator.compile_game(game, options)
        for ending in (".json", ".z8"):  # the second one says that both are there
            os.replace(Path(folder) / path.with_suffix(ending).name, path.with_suffix(ending))


def _remember_knowledge() -> None:
    """What holds in all games of a kind takes seconds to parse."""
    from textworld.generator.data import KnowledgeBase

    load = KnowledgeBase.load.__func__
    KnowledgeBase.load = classmethod(functools.cache(load))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
