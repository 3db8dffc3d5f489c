"""Things that are left where a reward expects a file."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from tests.attacks.cases import Case
from tests.attacks.played import Attack, Played

LEFT = {
    "nothing": "true",
    "a folder": "mkdir {path}",
    "a full folder": "mkdir -p {path}/a; touch {path}/a/b",
    "a pipe": "mkfifo {path}",
    "a pipe that is written to": "mkfifo {path}; setsid sh -c 'while :; do yes > {path}; done' >/dev/null 2>&1 &",
    "a link to itself": "ln -s {path} {path}",
    "two links": "ln -s {path} b; ln -s b {path}",
    "a link to a device": "ln -s /dev/zero {path}",
    "a link to a terminal": "ln -s /dev/tty {path}",
    "a link to memory": "ln -s /proc/self/mem {path}",
    "a link to standard input": "ln -s /dev/stdin {path}",
    "a link out": "ln -s /etc/passwd {path}",
    "unreadable": "echo 1 > {path}; chmod 0 {path}",
    "in a closed folder": "echo 1 > {path}; chmod 0 .",
    "in no folder": 'rm -rf "$PWD"',
    "70 MB": "head -c 70M /dev/zero > {path}",
    "a hole": "truncate -s 1T {path}",
    "a hole of 15 MiB": "truncate -s 15M {path}",
    "no text": "head -c 100000 /dev/urandom > {path}",
    "surrogates": "printf '\\355\\240\\200\\377\\376' > {path}",
    "long lines": "head -c 9M /dev/zero | tr '\\0' a > {path}",
    "many lines": "yes > /dev/null & yes | head -n 3000000 > {path}",
    "a socket": "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('{path}')\"",
    "one that changes": "setsid sh -c 'while :; do echo 1 > {path}; rm -rf {path}; mkdir {path}; rm -r {path}; done' &",
    "one that grows": "setsid sh -c 'while :; do echo aaaa >> {path}; done' >/dev/null 2>&1 & sleep 0.2",
}
"""By name, in the folder `/work`."""
_BEFORE = (
    "true", "echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa! > {path}", "chmod 0777 .", "mkdir -p a/b/c", "ulimit -n 3",
    "umask 777", "cd /tmp",
    "export PATH=.; export HOME=/work",
    "for f in python3 cat test sh; do printf '#!/bin/sh\\nexit 0\\n' > $f; chmod +x $f; done",
)  # fmt: skip
_CHECKS: dict[str, Any] = {
    "code": {"tests": ["assert double(2) == 4"]},
    "equals": {"state": [{"file": "solution.py", "equals": "done"}]},
    "matches": {
        "state": [{"file": "solution.py", "matches": "(a+)+$|(x+x+)+y"}, {"file": "solution.py", "equals": "done"}]
    },
    "command": {"state": [{"command": "cat solution.py", "stdout": "done"}]},
    "script": {"state": [{"command": "python3 solution.py", "exit": 0, "stdout": "done"}]},
}


class Leftovers(Played):
    """`solution.py` is asked for, and what is there is no solution."""

    name = "leftovers"
    recipe: ClassVar[dict[str, Any]] = {
        "tools": [{"use": "shell", "timeout_s": 5}],
        "reward_of": "kind",
        "rewards": {
            "code": {"use": "code_tests", "files": ["solution.py"], "timeout_s": 2},
            "state": {"use": "state_check", "timeout_s": 2},
        },
    }

    def listed(self) -> Sequence[str]:
        return [f"{name}, {check}" for name in LEFT for check in _CHECKS]

    def attack(self, case: Case) -> Attack:
        if case.drawn:
            rng = case.random()
            commands = [rng.choice(_BEFORE) for _ in range(rng.randrange(3))] + [rng.choice([*LEFT.values()])]
            return self._checked("\n".join(commands), rng.choice([*_CHECKS]))
        name, _, check = case.name.rpartition(", ")
        return self._checked(LEFT[name], check)

    def _checked(self, command: str, check: str) -> Attack:
        said = command.replace("{path}", "solution.py")
        kind = "code" if check == "code" else "state"
        return Attack(turns=[[("shell", {"command": said})]], data={"kind": kind, **_CHECKS[check]})

    def honest(self, rng: random.Random) -> Attack:
        kind = rng.choice(("code", "equals"))
        text = "def double(x): return 2 * x" if kind == "code" else "done"
        attack = self._checked(f"echo '{text}' > solution.py", kind)
        return Attack(turns=attack.turns, data=attack.data, earns=1.0)
