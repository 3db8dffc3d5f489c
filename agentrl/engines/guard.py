"""Beside a server: ends it, with all its processes, when the process that started it is gone, however that went.

Run as a script, by path: `guard.py PARENT SECONDS COMMAND...`. It ends with the command's status. Asked to end
(SIGTERM), or told by the kernel that its parent died, it asks the command's process group to end, and kills it SECONDS
later. The server itself would not do: its workers, which hold the GPU's memory, outlive one that does not end in order.
"""

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress

PR_SET_PDEATHSIG = 1


def main() -> int:
    parent, seconds, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    started: list[subprocess.Popen[bytes]] = []
    asked: list[int] = []

    def send(number: int) -> None:
        for server in started:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, number)

    def end(*_: object) -> None:
        asked.append(1)
        send(signal.SIGTERM)
        signal.alarm(seconds)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGALRM, lambda *_: send(signal.SIGKILL))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return 1
    started.append(subprocess.Popen(command, start_new_session=True))
    if asked:  # in between
        end()
    status = started[0].wait()
    send(signal.SIGKILL)  # what it left behind
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
