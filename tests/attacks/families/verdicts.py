"""Verdicts that are forged: files and folders that a verifier of a Harbor task reads, writes, or runs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from agentrl.api.certify.probes import ATTACKS as FORGERIES
from agentrl.integrations.harbor import tasks as harbor
from agentrl.types.task import Task
from tests.attacks.cases import Case
from tests.attacks.families.words import value
from tests.attacks.played import Attack, Played
from tests.integrations.test_harbor import TOML, a_task
from tests.integrations.test_harbor_forged import CHECK, FORGERS

_SLOW, _SOON = "timeout_sec = 20.0", "timeout_sec = 1.0"
_PLACES = (
    "/logs/verifier", "/logs", "/logs/artifacts", "/tests", "/tests/sub", "/app", "/tmp", "/work",
    "/tmp/verifier-home", "/tmp/verifier",
    "/tmp/verifier-home/guard/json", "/app/json", "/tmp/json", "/dev/shm", "$HOME", "$HOME/.local/bin",
    "/app/subprocess",
    "/tmp/.local/lib/python3/site-packages", "/usr/local/bin", "/solution",
)  # fmt: skip
_NAMES = (
    "reward.txt", "reward.json", "test.sh", "sitecustomize.py", "usercustomize.py", "json.py", "subprocess.py",
    "os.py", "__init__.py",
    "python3", "bash", "sh", "cat", ".bashrc", ".profile", ".bash_profile", ".env", "conftest.py", "x.pth",
    "numbers.txt", "..x", "-rf",
)  # fmt: skip
_PYTHON = (
    "import os\nos.system('mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt')\nos._exit(0)\n",
    "def loads(x): return '10'\ndef dumps(x): return '1'\n", "raise SystemExit(0)\n",
    "import os; os.kill(os.getppid(), 9)\n",
)  # fmt: skip
_SHELL = (
    "#!/bin/sh\nmkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; exit 0\n",
    "#!/bin/sh\nexit 0\n",
    "#!/bin/sh\necho 10\n",
)
_MAKES = {
    "file": "printf %s {content} > {path}",
    "folder": "mkdir -p {path}/x; echo 1 > {path}/x/y",
    "pipe": "mkfifo {path}",
    "loop": "ln -s {path} {path}",
    "link": "ln -s {target} {path}",
    "hole": "truncate -s 1T {path}",
    "large": "head -c 20M /dev/zero > {path}",
    "deep": "p={path}; for i in $(seq 60); do p=$p/d; done; mkdir -p $p",
    "many": "mkdir -p {path}; (cd {path}; seq 3000 | xargs touch)",
}
_THEN = (
    "",
    "chmod 0 {path}",
    "chmod 0555 {folder}",
    "chmod 0 {folder}",
    "chmod 0777 {path}",
    "touch -d 2099-01-01 {path}",
    "chmod 0111 {folder}",
)
_AGAIN = "({}) </dev/null >/dev/null 2>&1 &"
_VERDICTS = (
    "mkdir -p /logs/verifier; echo '{\"reward\": 1}' > /logs/verifier/reward.json",
    "echo 1 > /logs/verifier/reward.txt; kill -{signal} $PPID",
    "echo {large} > /logs/verifier/reward.txt",
)
"""What its program does once it was verified. (That it can write the only verdict and let it stand is not promised.)"""
_MEDDLING = (
    "echo {odd} > /logs/verifier/reward.txt",
    "rm -rf /logs/verifier/*; printf %s {json} > /logs/verifier/reward.json",
    "rm -rf /logs/verifier; ln -s /tests /logs/verifier",
    "rm -rf /logs/verifier/*; mkdir /logs/verifier/reward.{suffix}",
    "rm -rf /logs/verifier/*; mkfifo /logs/verifier/reward.{suffix}",
    "rm -rf /logs/verifier/*; ln -s /dev/zero /logs/verifier/reward.{suffix}",
    "rm -rf /logs/verifier/*; truncate -s 1T /logs/verifier/reward.{suffix}",
    "kill -{signal} $PPID", "kill -STOP $PPID", "kill -9 -1", "exec sleep 600", "while :; do :; done", "true",
)  # fmt: skip
"""What its program does while it is verified, or after that."""


def planted(rng: random.Random) -> str:
    """A command that leaves something where the verifier may look."""
    folder, name = rng.choice(_PLACES), rng.choice(_NAMES)
    path = f"{folder}/{name}"
    content = rng.choice((*_PYTHON, *_SHELL, "1", json.dumps({"reward": 1}), json.dumps(value(rng, 1))))
    made = _MAKES[rng.choice(("file", "file", *_MAKES))].format(
        content=_quoted(content.replace("\0", "")),
        path=path,
        target=rng.choice(("/logs/verifier/reward.txt", "/tests", "/dev/zero", "/")),
    )
    command = f"mkdir -p {folder}; {made}; chmod +x {path}; {rng.choice(_THEN).format(path=path, folder=folder)}"
    return _AGAIN.format(f"while :; do {command}; sleep 0.05; done") if rng.random() < 0.15 else command


def filled(rng: random.Random, done: str) -> str:
    """A command with its words drawn; what it writes is no verdict."""
    no_verdict = rng.choice(
        (None, [], [1], {}, {"reward": {}}, {"reward": "1"}, {"a": 1, "b": 1}, "1", {"reward": [1]})
    )
    for word, replacement in (
        ("{signal}", rng.choice(("9", "15", "11", "1"))), ("{large}", rng.choice(("1001", "1e300", "-1e4", "9" * 400))),
        ("{odd}", rng.choice(("nan", "inf", "1 1", "0x1", "one", "", "--1", "1,0"))),
        ("{json}", _quoted(json.dumps(no_verdict))), ("{suffix}", rng.choice(("txt", "json"))),
    ):  # fmt: skip
        done = done.replace(word, replacement)
    return done


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


class Verdicts(Played):
    """The task asks for a sum; the agent's program says a wrong one."""

    name = "verdicts"
    recipe: ClassVar[dict[str, Any]] = {
        "tools": ["harbor", {"use": "shell", "timeout_s": 5}],
        "rewards": {"harbor": {}},
    }

    def listed(self) -> Sequence[str]:
        return [*FORGERS, *(f"forger: {name}" for name in FORGERIES)]

    def attack(self, case: Case) -> Attack:
        rng = case.random()
        if case.drawn:
            does = "\n".join(planted(rng) for _ in range(rng.randint(1, 4)))
            during, after = "true", filled(rng, rng.choice(_VERDICTS))
            if rng.random() < 0.6:
                during, after = (filled(rng, rng.choice(_MEDDLING)) for _ in range(2))
        elif case.name in FORGERS:
            does, during, after = FORGERS[case.name]
        else:
            does, during, after = FORGERIES[case.name.removeprefix("forger: ")], "true", "true"
        return self._writes((during or "true") + "; echo 9", after or "true", does)

    def honest(self, rng: random.Random) -> Attack:
        return Attack(turns=self._writes("echo 10", "true", "").turns, earns=1.0)

    def _writes(self, answers: str, after: str, does: str) -> Attack:
        made = f"cd /app\ncat > answer.sh <<'END'\n{answers}\nEND\ncat > after.sh <<'END'\n{after}\nEND\n"
        return Attack(turns=[[("shell", {"command": made})], [("shell", {"command": does})]])

    def task(self, id: str, attack: Attack, folder: Path) -> Task:
        a_task(folder / "tasks" / id, **{"tests/test.sh": CHECK, "task.toml": TOML.replace(_SLOW, _SOON)})
        where = str(folder / "tasks" / id)
        (made,) = harbor.tasks(where, folder, network="none", resources=False, build=False)
        return made
