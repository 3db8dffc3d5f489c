"""A game of TextWorld: made when it is first played, kept, and played by Inform's interpreter."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import re
import string
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.tools.builtin.games.play import GameFailed, Play, Step
from agentrl.types.errors import TaskError, ToolError

LIST = "\nMoves: "
LONGEST = 100  # characters of a move
_TO_INTERPRETER = re.compile(
    r"(?i)^tw-|\b(again|brief|g|notify|oops|q|quit|restart|restore|save|script|superbrief|transcript|undo|verbose|"
    r"verify|version)\b"
)
"""Words to the interpreter: they write files, ask back, or begin again."""
_PLAIN = re.compile(r"[\w' -]+")
_STATUS = re.compile(r"[^\n]* =-\d+/\d+\s*")
"""What follows the last `-= ` of a text that ends with the interpreter's status line."""
_LOCK = threading.RLock()
"""Held while a game is loaded: its rules are parsed by a global parser."""


class Story(Play):
    """One game. Its score goes from 0 to 1.

    Args:
        kind: of the generator, e.g. `cooking`.
        settings: of the generator.
        detailed: whether the player is told each step to the goal.
        moves: whether every observation lists the moves that are possible.
    """

    def __init__(self, kind: str, settings: Mapping[str, Any], detailed: bool = False, moves: bool = True) -> None:
        self.kind, self.settings, self.detailed, self.moves = kind, settings, detailed, moves
        self.world: Any = None

    @property
    def env(self) -> Story:
        """This object, whose `key` is the state."""
        return self

    def reset(self, seed: int) -> str:
        """What is to be done, and where the player is."""
        import textworld

        path = made(self.kind, self.settings, seed, self.detailed)
        wanted = textworld.EnvInfos(
            admissible_commands=True, won=True, lost=True, score=True, max_score=True, policy_commands=True
        )
        with _LOCK:
            self.world = textworld.start(str(path), wanted)
            self.state = self.world.reset()
        self.score = 0.0
        return self._shown(self.state.feedback.rpartition("$$$$")[2].partition("\n")[2])

    def step(self, action: str) -> Step:
        """Makes a move. What the game does not understand, it says."""
        move = " ".join(action.split())
        if len(move) > LONGEST or not _PLAIN.fullmatch(move):
            raise ToolError(f"a move is one short command in words: letters, digits, spaces; at most {LONGEST}")
        if _TO_INTERPRETER.search(move):
            return Step(self._shown("That's not a verb I recognise."), success=False)
        self.state, score, done = self.world.step(move)
        before, self.score = self.score, score / self.state.max_score
        return Step(self._shown(self.state.feedback), self.score - before, bool(done), bool(self.state.won))

    def policy(self) -> list[str]:
        """A way to the goal from here."""
        return list(self.state.policy_commands or ())

    def key(self) -> str:
        """All facts, and the score."""
        return f"{sorted(map(str, self.state['_facts']))} {self.score}"

    def close(self) -> None:
        """Frees the interpreter."""
        if self.world is not None:
            self.world.close()

    def _shown(self, text: str) -> str:
        said = re.sub(r"\n{2,}", "\n\n", _said(text))
        over = self.state.won or self.state.lost
        return f"{said}{LIST}{'; '.join(self.state.admissible_commands)}" if self.moves and not over else said


def _said(text: str) -> str:
    """A text without what ends it: a question of the interpreter, its prompt, its status line."""
    before, mark, after = text.rpartition("-= ")
    said = before if mark and _STATUS.fullmatch(after) else text
    return said.partition("Would you like to RESTART")[0].rstrip(f">{string.whitespace}").lstrip()


# --- games ----------------------------------------------------------------------------------------------------------


def made(kind: str, settings: Mapping[str, Any], seed: int, detailed: bool) -> Path:
    """The file of a game, kept in `AGENTRL_CACHE` (`~/.cache/agentrl`).

    Raises:
        TaskError: the generator does not make such a game.
    """
    order = {"kind": kind, "settings": dict(settings), "seed": seed, "detailed": detailed}
    name = hashlib.sha256(json.dumps(order, sort_keys=True).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("AGENTRL_CACHE") or Path.home() / ".cache" / "agentrl") / "textworld" / _version()
    path = folder / f"{kind}-{seed}-{name}.z8"
    if not path.exists() and (wrong := _MAKER.asked({**order, "path": str(path)})):
        raise TaskError(
            f"TextWorld makes no {kind} of {dict(settings)} and seed {seed}: {wrong}", remedy="see its README"
        )
    return path


@functools.cache
def _version() -> str:
    from importlib.metadata import version

    return version("textworld")


class _Maker:
    """The process that makes games, one after another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def asked(self, order: Mapping[str, Any]) -> str:
        """What is wrong with an order; empty if it is made.

        Raises:
            GameFailed: the process died.
        """
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = self._started()
            process = self._process
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(order) + "\n")
                process.stdin.flush()
                return str(json.loads(process.stdout.readline()))
            except (OSError, ValueError) as error:
                process.kill()
                raise GameFailed(f"the process that makes games died, code {process.wait()}") from error

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).parent / "maker.py")]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        process = subprocess.Popen(
            command,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        atexit.register(process.kill)
        return process


_MAKER = _Maker()
