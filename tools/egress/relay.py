"""Relay inside a sandbox: forwards connections from a loopback port to the egress proxy's unix socket.

Usage: `python3 -I -S relay.py PORT SOCKET`; prints `ready` when it listens. Programs address proxies only by host and
port, and the sandbox has only its loopback network.
"""

# Each sandbox with an allowlist waits for this to start, and asyncio would take five times as long.
from __future__ import annotations

import select
import sys
import time
from _socket import AF_INET, AF_UNIX, SHUT_WR, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket

CHUNK = 1 << 16
FAILED = select.POLLHUP | select.POLLERR


class Link:
    """Pair of sockets; forwards bytes in both directions until both ends close or one fails."""

    def __init__(self, relay: Relay, near: socket, far: socket) -> None:
        self.relay, self.ends = relay, (near, far)
        self.talking = {near, far}  # ends that may send more
        self.waiting = dict.fromkeys(self.ends, b"")  # unsent bytes of each end
        for end in self.ends:
            end.setblocking(False)
            relay.links[end.fileno()] = self, end
        self.watch()

    def ready(self, end: socket, events: int) -> None:
        other = self.ends[end is self.ends[0]]
        try:
            if self.waiting[end] and events & (select.POLLOUT | FAILED):
                self.waiting[end] = self.waiting[end][end.send(self.waiting[end]) :]
                if not self.waiting[end] and other not in self.talking:
                    end.shutdown(SHUT_WR)
            if end in self.talking and not self.waiting[other] and events & (select.POLLIN | FAILED):
                self.waiting[other] = end.recv(CHUNK)
                if not self.waiting[other]:
                    self.talking.discard(end)
                    other.shutdown(SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        self.watch()

    def watch(self) -> None:
        """Registers the next events: reads only if the other end has sent all of its data."""
        for end, other in (self.ends, self.ends[::-1]):
            reads = end in self.talking and not self.waiting[other]
            self.relay.wait(end, (select.POLLIN if reads else 0) | (select.POLLOUT if self.waiting[end] else 0))
        if not self.talking and not any(self.waiting.values()):
            self.close()

    def close(self) -> None:
        for end in self.ends:
            self.relay.wait(end, 0)
            del self.relay.links[end.fileno()]
            end.close()


class Relay:
    def __init__(self, port: int, path: str) -> None:
        self.path, self.poll = path, select.poll()
        self.links: dict[int, tuple[Link, socket]] = {}  # and the end, by its descriptor
        self.waited: set[int] = set()
        self.listener = socket(AF_INET, SOCK_STREAM)
        self.listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", port))
        self.listener.listen(128)
        self.wait(self.listener, select.POLLIN)

    def wait(self, end: socket, events: int) -> None:
        """Polls an end for events; unregisters it without any, because poll would report errors forever."""
        fd = end.fileno()
        if events:
            self.poll.register(fd, events)
            self.waited.add(fd)
        elif fd in self.waited:
            self.poll.unregister(fd)
            self.waited.remove(fd)

    def run(self) -> None:
        while True:
            for fd, events in self.poll.poll():
                if fd == self.listener.fileno():
                    self.accept()
                elif fd in self.links:  # else: closed by an earlier event
                    link, end = self.links[fd]
                    link.ready(end, events)

    def accept(self) -> None:
        ends: list[socket] = []
        try:
            ends.append(socket(fileno=self.listener._accept()[0]))  # type: ignore[attr-defined]
            ends.append(socket(AF_UNIX, SOCK_STREAM))
            ends[1].connect(self.path)
        except OSError:
            for end in ends:
                end.close()
            time.sleep(0.05)  # out of descriptors: wait for connections to close
        else:
            Link(self, *ends)


if __name__ == "__main__":
    relay = Relay(int(sys.argv[1]), sys.argv[2])
    print("ready", flush=True)
    relay.run()
