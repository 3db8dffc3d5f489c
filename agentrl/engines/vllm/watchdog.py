"""Watchdog of a server: stops the server and all its processes when the process that started it is gone.

Run as a script, by path: `watchdog.py PARENT SECONDS COMMAND...`. It exits with the command's status. On SIGTERM, which
the kernel also sends when the parent dies, it sends SIGTERM to the command's process group, and SIGKILL SECONDS later.
A signal to the server alone is not enough: if the server crashes, its workers survive and keep the GPU's memory.

The watchdog itself may be killed: Ray kills the children of a process that ends. A second watchdog, detached from it,
then reads end of file from a pipe and stops the server in the same way.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

PR_SET_PDEATHSIG = 1


def main() -> int:
    parent, seconds, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    started: list[subprocess.Popen[bytes]] = []
    asked: list[int] = []

    def end(*_: object) -> None:
        asked.append(1)
        for server in started:
            send(server.pid, signal.SIGTERM)
            signal.alarm(seconds)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGALRM, lambda *_: send(started[0].pid, signal.SIGKILL))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return 1
    tell = second_watchdog(seconds)
    # The child reports its id itself, before it becomes the server: this process may be killed between two lines.
    started.append(
        subprocess.Popen(
            command, start_new_session=True, preexec_fn=lambda: os.write(tell, f"{os.getpid()}\n".encode())
        )
    )
    if asked:  # SIGTERM arrived before the server started
        end()
    status = started[0].wait()
    send(started[0].pid, signal.SIGKILL)  # processes that the server left behind
    os.write(tell, b"over")
    return status if status >= 0 else 128 - status


def send(group: int, number: int) -> None:
    """Signals a process group, if it exists."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def second_watchdog(seconds: int) -> int:
    """Starts a process that stops the server if this one is killed.

    Returns:
        File descriptor of a pipe: the server's process id is written to it, and `over` when the server ended.
    """
    ours, tell = os.pipe()
    if child := os.fork():
        os.waitpid(child, 0)
        os.close(ours)
        return tell
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.close(tell)
    said = b""
    while more := os.read(ours, 100):
        said += more
    if said.endswith(b"\n"):
        send(int(said), signal.SIGTERM)
        time.sleep(seconds)
        send(int(said), signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
