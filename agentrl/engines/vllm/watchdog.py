"""Beside a server: ends it, with all its processes, when the process that started it is gone, however that went.

Run as a script, by path: `watchdog.py PARENT SECONDS COMMAND...`. It ends with the command's status. Asked to end
(SIGTERM), or told by the kernel that its parent died, it asks the command's process group to end, and kills it SECONDS
later. The server itself would not do: its workers, which hold the GPU's memory, outlive one that does not end in order.

The watchdog may be killed, too: Ray kills the children of a process that ends. A second one, which is nobody's child,
then reads the end of a pipe, and does the same.
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
    started.append(subprocess.Popen(command, start_new_session=True))
    os.write(tell, f"{started[0].pid}\n".encode())
    if asked:  # in between
        end()
    status = started[0].wait()
    send(started[0].pid, signal.SIGKILL)  # what it left behind
    os.write(tell, b"over")
    return status if status >= 0 else 128 - status


def send(group: int, number: int) -> None:
    """Signals a process group, if there is one."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def second_watchdog(seconds: int) -> int:
    """Starts a process that ends the server if we are gone before we said that it is over. Returns where to say it."""
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
