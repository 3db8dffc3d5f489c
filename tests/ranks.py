"""Trainer ranks as torchrun starts them, but as forks of this process: nobody waits for torch to be imported."""

from __future__ import annotations

import os
import signal
import socket
import traceback
from collections.abc import Callable


def fork_ranks(size: int, work: Callable[[], object]) -> list[int]:
    """Runs `work` on so many ranks. Returns their exit codes, by rank (-9: killed by that signal).

    When one fails the others are killed, as torchrun does.
    """
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    ranks: dict[int, int] = {}
    for rank in range(size):
        child = os.fork()
        if not child:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            _end_with(work)
        ranks[child] = rank
    codes: dict[int, int] = {}
    while len(codes) < size:
        child, status = os.wait()
        codes[ranks.pop(child)] = code = os.waitstatus_to_exitcode(status)
        if code:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    return [codes[rank] for rank in range(size)]


def _end_with(work: Callable[[], object]) -> None:
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
