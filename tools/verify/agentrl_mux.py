"""Multiplexer of connections over one pair of pipes.

In the sandbox of the tests it is a relay: `python3 agentrl_mux.py SOCKET` listens on a unix socket. In the sandbox of
the code, `agentrl_server.py` uses it to start a process per connection. The driver only copies bytes between the two.
Frames: uint32 number of the connection, uint32 length, content; an empty frame closes the connection.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

MOST = 256 << 20
"""Maximum total of buffered bytes; beyond it the process exits, because there is no backpressure."""

CHUNK = 1 << 18
HEAD = struct.Struct(">II")
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Writer:
    """Buffered writer to a non-blocking descriptor.

    Args:
        watch: callback with True while data is buffered.
    """

    waiting = 0  # bytes buffered in all writers

    def __init__(self, fd: int, watch: Callable[[bool], None]) -> None:
        os.set_blocking(fd, False)
        self.fd, self.watch, self.buffer = fd, watch, bytearray()

    def write(self, data: bytes) -> None:
        self.buffer += data
        Writer.waiting += len(data)
        if Writer.waiting > MOST:
            os._exit(1)
        self.flush()

    def flush(self) -> None:
        """Writes buffered data. Raises OSError if the reader closed."""
        try:
            while self.buffer:
                done = os.write(self.fd, self.buffer[:CHUNK])
                del self.buffer[:done]
                Writer.waiting -= done
        except BlockingIOError:
            pass
        except OSError:
            self.drop()
            raise
        self.watch(bool(self.buffer))

    def drop(self) -> None:
        Writer.waiting -= len(self.buffer)
        self.buffer.clear()


class Link:
    """Connection at this end."""

    def __init__(self, mux: Mux, number: int, sock: socket.socket) -> None:
        self.mux, self.number, self.sock, self.closing = mux, number, sock, False
        self.events = READ
        mux.selector.register(sock, READ, self.ready)
        self.writer = Writer(sock.fileno(), self.watch)

    def watch(self, wants: bool) -> None:
        events = READ | WRITE if wants else READ
        if events != self.events:
            self.events = events
            self.mux.selector.modify(self.sock, events, self.ready)

    def ready(self, events: int) -> None:
        if events & WRITE:
            self.put(b"")
        if events & READ and self.number in self.mux.links:
            try:
                data = self.sock.recv(CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self.mux.say(self.number, data)
            if not data:
                self.close()

    def put(self, data: bytes) -> None:
        """Writes data; closes only after the buffer is written."""
        try:
            self.writer.write(data)
        except OSError:
            self.close()
        else:
            if self.closing and not self.writer.buffer:
                self.close()

    def close(self) -> None:
        if self.mux.links.pop(self.number, None):
            self.writer.drop()
            self.mux.selector.unregister(self.sock)
            self.sock.close()
            if self.mux.closed:
                self.mux.closed(self.number)


class Mux:
    """Event loop of the multiplexer.

    Args:
        opened: returns the socket of a connection opened by the other end, by number.
        closed: callback with the number of a closed connection.
        listener: socket that accepts connections at this end.
    """

    def __init__(
        self,
        opened: Callable[[int], socket.socket] | None = None,
        closed: Callable[[int], None] | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        self.opened, self.closed = opened, closed
        self.selector, self.inbox, self.count = selectors.DefaultSelector(), bytearray(), 0
        self.links: dict[int, Link] = {}
        self.writes = False
        self.out = Writer(1, self.watch)
        os.set_blocking(0, False)
        self.selector.register(0, READ, lambda _: self.hear())
        if listener is not None:
            self.selector.register(listener, READ, lambda _: self.accept(listener))

    def run(self) -> NoReturn:
        while True:
            for key, events in self.selector.select():
                if key.fd in self.selector.get_map():
                    key.data(events)

    def watch(self, wants: bool) -> None:
        if wants != self.writes:
            self.writes = wants
            if wants:
                self.selector.register(1, WRITE, lambda _: self.tell(b""))
            else:
                self.selector.unregister(1)

    def accept(self, listener: socket.socket) -> None:
        self.count += 1
        self.links[self.count] = Link(self, self.count, listener.accept()[0])

    def say(self, number: int, data: bytes) -> None:
        self.tell(HEAD.pack(number, len(data)) + data)

    def tell(self, data: bytes) -> None:
        try:
            self.out.write(data)
        except OSError:
            os._exit(0)

    def hear(self) -> None:
        data = os.read(0, CHUNK)
        if not data:
            os._exit(0)
        self.inbox += data
        at = 0
        while len(self.inbox) - at >= HEAD.size:
            number, size = HEAD.unpack_from(self.inbox, at)
            if size > MOST:
                os._exit(1)
            if len(self.inbox) - at - HEAD.size < size:
                break
            start = at + HEAD.size
            at = start + size
            self.deliver(number, bytes(self.inbox[start:at]))
        del self.inbox[:at]

    def deliver(self, number: int, content: bytes) -> None:
        link = self.links.get(number)
        if link is None and content and self.opened is not None and number > self.count:
            self.count = number
            link = self.links[number] = Link(self, number, self.opened(number))
        if link is not None:
            link.closing = link.closing or not content
            link.put(content)


if __name__ == "__main__":
    door = socket.socket(socket.AF_UNIX)
    door.bind(sys.argv[1])
    door.listen(64)
    relay = Mux(listener=door)
    relay.say(0, b"")  # signals the driver that the relay listens
    relay.run()
