"""The process launcher: each object has a process on this machine, connected by a socket pair.

A message is its length (8 bytes) and a pickle. End of file means that the other side is gone: the parent then fails
the pending calls, and the child closes its object and exits.

A second socket pair carries the pulse (`pulse.py`): once the object is made, the parent sends a byte from time to time,
and a thread of the child sends it back. A process that does not is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from typing import Any

from agentrl.distributed.handle import CLOSE_S, ActorHost, WorkerDied, portable, unwrap
from agentrl.distributed.pulse import silence

_LENGTH = struct.Struct("!Q")


class ProcessLauncher:
    """Starts a process for each object, with the same interpreter and working directory."""

    host = "127.0.0.1"

    async def open(self) -> None:
        """Nothing to reserve: processes start with their objects."""

    async def spawn(self, name: str, cls: type, *args: Any) -> ProcessHandle:
        """Starts a process and makes the object in it."""
        ours, theirs = socket.socketpair()
        beats, beaten = socket.socketpair()
        with theirs, beaten:
            # A session of its own: only the driver receives Ctrl-C, and it closes its handles.
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "agentrl.distributed.process", str(theirs.fileno()), str(beaten.fileno()),
                name,  # for `ps`
                stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno(), beaten.fileno()], start_new_session=True,
            )  # fmt: skip
        reader, writer = await asyncio.open_connection(sock=ours)
        handle = ProcessHandle(name, process, reader, writer, *await asyncio.open_connection(sock=beats))
        try:
            await handle.request("make", cls, args)
            handle.watch()
        except BaseException:
            await handle.close()
            raise
        return handle

    async def close(self) -> None:
        """Nothing to free: the processes exit when their handles close."""


class ProcessHandle:
    """Handle of an object in another process of this machine."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        heard: asyncio.StreamReader,
        pulse: asyncio.StreamWriter,
    ) -> None:
        self.name, self.pid = name, process.pid
        self._process, self._reader, self._writer = process, reader, writer
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._died = ""  # why the process died; "" while it is alive
        self._listening = asyncio.create_task(self._listen())
        self._heard, self._pulse = heard, pulse
        self._watching: asyncio.Task[None] | None = None

    async def call(self, method: str, *args: Any) -> Any:
        """Calls the method in the object's process."""
        return await self.request("call", method, args)

    async def request(self, what: str, *args: Any) -> Any:
        """Calls the method `what` of the object's `ActorHost`."""
        if self._died:
            raise self._death()
        number = next(self._numbers)
        reply = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(_framed((number, what, args)))
            return unwrap(await reply)
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """Closes the socket, which makes the process close its object and exit. Kills it after `CLOSE_S`."""
        self._died = self._died or "was closed"
        self._writer.close()
        await self._end()
        await self._listening
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self._pulse.close()

    async def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                number, reply = await _read(self._reader)
                if (waiting := self._waiting.get(number)) is not None and not waiting.done():
                    waiting.set_result(reply)
        if not self._died:
            self._writer.close()
            self._died = _how_it_ended(await self._end())
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result((self._death(), None))

    def watch(self) -> None:
        """Kills the process from now on if it falls silent."""
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        with suppress(EOFError, OSError):  # it is gone: `_listen` sees to it
            silent = await silence(self._ping)
            self._died = self._died or silent
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _ping(self) -> None:
        self._pulse.write(b".")
        await self._heard.readexactly(1)

    async def _end(self) -> int:
        """Waits for the process, and kills it after `CLOSE_S`. Returns its exit status."""
        try:
            async with asyncio.timeout(CLOSE_S):
                return await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            return await self._process.wait()

    def _death(self) -> WorkerDied:
        return WorkerDied(f"its process {self.pid} {self._died}", place=self.name)


def _how_it_ended(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


def _framed(message: Any) -> bytes:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


async def _read(reader: asyncio.StreamReader) -> Any:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


# The rest runs in the child process.


def answer_pings(descriptor: int) -> None:
    """Sends back every byte that comes, until the other side hangs up."""
    with socket.socket(fileno=descriptor) as pulse, suppress(OSError):
        while byte := pulse.recv(1):
            pulse.sendall(byte)


async def serve(descriptor: int) -> None:
    """Answers the parent's requests until the parent closes the socket.

    Args:
        descriptor: file descriptor of the child's end of the socket pair.
    """
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, writer.close)
    host = ActorHost()
    at_work: set[asyncio.Task[None]] = set()

    async def answer(number: int, what: str, args: tuple[Any, ...]) -> None:
        reply = await getattr(host, what)(*args)
        try:
            framed = _framed((number, reply))
        except Exception as error:  # a value that cannot be pickled
            framed = _framed((number, (portable(error), None)))
        if not writer.is_closing():
            writer.write(framed)

    with suppress(EOFError, OSError):
        while True:
            number, what, args = await _read(reader)
            task = asyncio.create_task(answer(number, what, args))
            at_work.add(task)
            task.add_done_callback(at_work.discard)
    writer.close()
    async with asyncio.timeout(CLOSE_S):
        await host.close()


def main() -> None:
    """Entry point of the child process."""
    sys.path.insert(0, os.getcwd())  # as in the command line
    threading.Thread(target=answer_pings, args=(int(sys.argv[2]),), daemon=True).start()
    asyncio.run(serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
