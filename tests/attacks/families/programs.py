"""Programs that kill, stop, starve and fill, in the sandbox of an episode that they are to lose."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from agentrl.api.certify.probes import ATTACKS as FORGERIES
from tests.attacks.cases import Case
from tests.attacks.played import Attack, Played, Turn
from tests.sandbox.attacks import ATTACKS

_ACTS = {
    "spin": "while True: pass",
    "sleep": "time.sleep(600)",
    "memory": "held = bytearray(b'x' * (SIZE << 20)); time.sleep(600)",
    "memory in pieces": "held = []\nwhile True: held.append(bytes(SIZE << 12)); time.sleep(0)",
    "a file": "open(f'FOLDER/{os.getpid()}', 'wb').write(b'x' * (SIZE << 20))",
    "files": "n = 0\nwhile True:\n    open(f'FOLDER/{os.getpid()}-{n}', 'w').close(); n += 1",
    "folders": "while True: os.mkdir('x'); os.chdir('x')",
    "signals": "while True:\n    for pid in PIDS:\n        try: os.kill(pid, SIGNAL)\n        except OSError: pass",
    "pipes": "held = []\nwhile True:\n    held.append(os.pipe()); os.set_blocking(held[-1][1], False)\n"
    "    os.write(held[-1][1], b'x' * 65536)",
    "sockets": "import socket\nheld = []\nwhile True: held.append(socket.socketpair())",
    "threads": "import threading\nwhile True: threading.Thread(target=time.sleep, args=(600,)).start()",
    "descriptors": "for fd in range(1024):\n    try: os.write(fd, b'x' * SIZE)\n    except OSError: pass",
    "closes": "os.closerange(0, 1024); time.sleep(SIZE / 100)",
    "ends": "os._exit(SIGNAL)",
    "ends by a signal": "os.kill(os.getpid(), SIGNAL)",
    "a new session": "os.setsid(); time.sleep(600)",
    "another name": "open('/proc/self/comm', 'w').write('toolbox'); time.sleep(600)",
    "a victim": "open('/proc/self/oom_score_adj', 'w').write('0')\n"
    "held = bytearray(b'x' * (SIZE << 20)); time.sleep(600)",
    "idle": "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); os.nice(19)\nwhile True: pass",
    "output": "while True: os.write(1 + SIGNAL % 2, b'x' * 65536)",
    "no rights": "os.chmod('FOLDER', 0)",
    "no folder": "os.chdir('/'); [os.rename('/work/' + n, '/tmp/' + n) for n in os.listdir('/work')]",
    "tracing": "import ctypes; [ctypes.CDLL(None).ptrace(16, pid, 0, 0) for pid in PIDS]",
    "memory of others": "[open(f'/proc/{pid}/mem', 'r+b') for pid in PIDS]",
    "names": "import socket; s = socket.socket(socket.AF_UNIX); s.bind('\\0x' + 'y' * (SIZE % 90)); time.sleep(600)",
    "watches": "import select\nheld = []\nwhile True: held.append(select.epoll())",
}
"""What a process does, in Python. Capital words are drawn."""
_PIDS = ("[1]", "[-1]", "[os.getppid()]", "[0]", "range(1, 300)", "[p for p in range(2, 300) if p != os.getpid()]")
_STARTS = {
    "here": "{act}",
    "child": "if os.fork() == 0:\n    try:\n{inner}\n    finally: os._exit(0)",
    "many": "for _ in range({count}):\n    if os.fork() == 0:\n        try:\n{deeper}\n        finally: os._exit(0)",
    "orphan": "if os.fork() == 0:\n    if os.fork() == 0:\n        os.setsid()\n        try:\n{deeper}\n"
    "        finally: os._exit(0)\n    os._exit(0)",
}
_FORMS = (
    "{}",
    "({}) &",
    "setsid bash -c {q} &",
    "bash -c {q}",
    "nohup bash -c {q} >/dev/null 2>&1 &",
    "timeout 1 bash -c {q}",
)


def program(rng: random.Random) -> str:
    """A program whose processes do one to three of the acts."""
    parts = ["import os, time, sys\nos.chdir('/work')"]
    for _ in range(rng.randint(1, 3)):
        act = _ACTS[rng.choice([*_ACTS])]
        for word, value in (
            ("SIZE", rng.choice((1, 8, 64, 200, 1000))), ("SIGNAL", rng.choice((1, 2, 9, 11, 15, 19, 20, 31, 63))),
            ("FOLDER", rng.choice(("/work", "/tmp", "/dev/shm"))), ("PIDS", rng.choice(_PIDS)),
        ):  # fmt: skip
            act = act.replace(word, str(value))
        start = _STARTS[rng.choice([*_STARTS])]
        parts.append(
            "try:\n"
            + _indented(
                start.format(act=act, inner=_indented(act, 8), deeper=_indented(act, 12), count=rng.choice((3, 20, 80)))
            )
            + "\nexcept BaseException: pass"
        )
    return "\n".join(parts)


def _indented(text: str, by: int = 4) -> str:
    return "\n".join(" " * by + line for line in text.splitlines())


def command(rng: random.Random) -> str:
    """Programs of the list, or drawn ones, one after the other or side by side."""
    parts = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        known = rng.choice([*ATTACKS.values(), *FORGERIES.values(), "", ""])
        code = program(rng)
        one = known or f"python3 - <<'END'\n{code}\nEND\n"
        parts.append(rng.choice(_FORMS).format(one, q=_quoted(one)) if rng.random() < 0.5 else one)
    return "\n".join(parts)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


class Programs(Played):
    """None of them makes the file that was asked for."""

    name = "programs"
    recipe: ClassVar[dict[str, Any]] = {
        "tools": [{"use": "shell", "timeout_s": 1}, {"use": "python", "timeout_s": 1}],
        "rewards": {"solved": {"use": "state_check", "timeout_s": 5}},
    }
    data: ClassVar[dict[str, Any]] = {"state": [{"command": "test -f /work/solved", "exit": 0}]}

    def listed(self) -> Sequence[str]:
        return [*ATTACKS, *(f"forger: {name}" for name in FORGERIES)]

    def attack(self, case: Case) -> Attack:
        rng = case.random()
        if not case.drawn:
            known = ATTACKS | {f"forger: {name}": attack for name, attack in FORGERIES.items()}
            return Attack(turns=[[("shell", {"command": known[case.name]})]] * 2, data=self.data)
        turns: list[Turn] = []
        for _ in range(rng.randint(1, 3)):
            kernel = rng.random() < 0.25
            turns.append([("python", {"code": program(rng)}) if kernel else ("shell", {"command": command(rng)})])
        return Attack(turns=turns, data=self.data)

    def honest(self, rng: random.Random) -> Attack:
        return Attack(turns=[[("shell", {"command": "touch /work/solved"})]], data=self.data, earns=1.0)
