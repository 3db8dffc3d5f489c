"""Fork server: imports modules once, then runs each Python program in a fork of itself.

    fork_server.py SCRIPT MODULE ...    SCRIPT begins the import path with its folder, as in `python SCRIPT`; "": none

Stdin is a Unix socket. The first line there says that the modules are imported (`{}`), or why none of them may be
(`{"fault": ...}`): what a module starts or opens when it is imported, all forks would share. A request is one byte
with six descriptors: a file with `{"argv", "env", "cwd"}` (JSON), then stdin, stdout, stderr, the input of lifeline.py
and a pipe. `argv` is what follows the interpreter in a command: a script or `-m MODULE`, and arguments. lifeline.py is
told the fork's group, to end it with who asked. The pipe gets the fork's process id in a line, and its exit code in
another. The end of stdin ends the server, not its forks.

A fork has a session, streams, folder, environment and `__main__` of its own, and new random numbers.
Standard library of any Python 3.9+.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import socket
import sys
import time
import types
from contextlib import suppress
from typing import Any

Request = dict[str, Any]
OWN_FOLDER = not (sys.flags.isolated or getattr(sys.flags, "safe_path", False))
"""True if Python puts the folder of its program before the import path."""


def imported(modules: list[str]) -> str:
    """Imports modules; returns the fault of the first that cannot be forked, else ""."""
    before = _open_files()
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:
            return f"{name} cannot be imported: {type(error).__name__}: {error}"
        if len(os.listdir("/proc/self/task")) > 1:
            return f"{name} starts a thread when it is imported: a fork would lack it"
        if _open_files() - before:
            gc.collect()
        if left := _open_files() - before:
            return f"{name} opens {', '.join(sorted(left))} when it is imported: all forks would share it"
    gc.collect()
    gc.freeze()  # else each fork copies the pages of all objects
    return ""


def _open_files() -> set[str]:
    """Returns the open descriptors with what they are, for example `7 -> socket:[4711]`."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the folder itself was one
            found.add(f"{number} -> {os.readlink(f'/proc/self/fd/{number}')}")
    return found


def serve(channel: socket.socket) -> Request:
    """Forks for each request; returns the request in the fork. Exits at the end of the channel."""
    poll, running = select.poll(), dict[int, tuple[int, int]]()
    poll.register(channel, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready != channel.fileno():
                pid, pipe = running.pop(ready)
                poll.unregister(ready)
                os.close(ready)
                _tell(pipe, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(pipe)
                continue
            byte, given, _, _ = socket.recv_fds(channel, 1, 6)
            if not byte:
                os._exit(0)
            if not (pid := os.fork()):
                others = [channel.detach(), *running, *(pipe for _, pipe in running.values())]
                return _fork(given, others)
            for each in given[:-1]:
                os.close(each)
            of_process = os.pidfd_open(pid)
            running[of_process] = (pid, given[-1])
            poll.register(of_process, select.POLLIN)


def _fork(given: list[int], others: list[int]) -> Request:
    """Makes a process of its own of a fork."""
    os.setsid()
    file, *streams, watch, pipe = given
    with suppress(OSError):
        os.write(watch, b"+%d\n" % os.getpid())  # before anybody can see this process
    _tell(pipe, os.getpid())
    os.lseek(file, 0, os.SEEK_SET)
    with open(file, "rb") as body:
        request: Request = json.load(body)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for each in (*others, *streams, watch, pipe):
        os.close(each)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    if (numpy := sys.modules.get("numpy.random")) is not None:  # `random` does it by itself
        numpy.seed()
    return request


def _tell(pipe: int, number: int) -> None:
    with suppress(OSError):  # nobody waits for it
        os.write(pipe, b"%d\n" % number)


def run(argv: list[str]) -> None:
    """Runs a program as Python does: a script, or `-m MODULE`."""
    sys.argv = argv
    if argv[0] == "-m":
        _begin_path(os.getcwd())
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    _begin_path(folder_of(argv[0]))
    main = types.ModuleType("__main__")
    main.__file__ = argv[0]
    sys.modules["__main__"] = main
    with open(argv[0], "rb") as file:
        code = compile(file.read(), argv[0], "exec", dont_inherit=True)
    exec(code, main.__dict__)


def folder_of(script: str) -> str:
    return os.path.dirname(os.path.realpath(script))


def _begin_path(folder: str) -> None:
    if OWN_FOLDER and sys.path[:1] != [folder]:
        sys.path.insert(0, folder)


def main(script: str, modules: list[str]) -> None:
    channel = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    if OWN_FOLDER:
        sys.path[:1] = [folder_of(script)] if script else []
    fault = imported(modules)
    sys.stdout.flush()
    sys.stderr.flush()  # else forks would write what waits there, too
    channel.sendall(json.dumps({"fault": fault} if fault else {}).encode() + b"\n")
    run(serve(channel)["argv"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
