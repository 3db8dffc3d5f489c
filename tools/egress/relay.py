"""Inside a sandbox: takes connections on a loopback port to the egress proxy, which listens on a unix socket.

Usage: `python3 -I -S relay.py PORT SOCKET`; says `ready` on stdout when it listens. Programs know proxies only by
host and port, and the sandbox has no other network than its own loopback.
"""

# Every sandbox with a list of hosts waits for this to start, and asyncio would take it five times as long.
import select
import sys
import time
from _socket import AF_INET, AF_UNIX, SHUT_WR, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket

CHUNK = 1 << 16
FAILED = select.POLLHUP | select.POLLERR


class Link:
    """Two connected sockets, whose bytes go from each to the other, until both have ended or one fails."""

    def __init__(self, relay, *ends):
        self.relay, self.ends = relay, ends
        self.talking = set(ends)  # those that may say more
        self.waiting = dict.fromkeys(ends, b"")  # what each has not taken yet
        for end in ends:
            end.setblocking(False)
            relay.links[end.fileno()] = self, end
        self.watch()

    def ready(self, end, events):
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

    def watch(self):
        """Waits for what can be gone on with: nothing is read that the other side has no room for."""
        for end, other in (self.ends, self.ends[::-1]):
            reads = end in self.talking and not self.waiting[other]
            self.relay.wait(end, (select.POLLIN if reads else 0) | (select.POLLOUT if self.waiting[end] else 0))
        if not self.talking and not any(self.waiting.values()):
            self.close()

    def close(self):
        for end in self.ends:
            self.relay.wait(end, 0)
            del self.relay.links[end.fileno()]
            end.close()


class Relay:
    def __init__(self, port, path):
        self.path, self.poll, self.links, self.waited = path, select.poll(), {}, set()
        self.listener = socket(AF_INET, SOCK_STREAM)
        self.listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", port))
        self.listener.listen(128)
        self.wait(self.listener, select.POLLIN)

    def wait(self, end, events):
        """From now on for these events; for none, not at all: else the poll would tell for ever that it has failed."""
        fd = end.fileno()
        if events:
            self.poll.register(fd, events)
            self.waited.add(fd)
        elif fd in self.waited:
            self.poll.unregister(fd)
            self.waited.remove(fd)

    def run(self):
        while True:
            for fd, events in self.poll.poll():
                if fd == self.listener.fileno():
                    self.accept()
                elif fd in self.links:  # else: closed by what came before
                    link, end = self.links[fd]
                    link.ready(end, events)

    def accept(self):
        ends = []
        try:
            ends.append(socket(fileno=self.listener._accept()[0]))
            ends.append(socket(AF_UNIX, SOCK_STREAM))
            ends[1].connect(self.path)
        except OSError:
            for end in ends:
                end.close()
            time.sleep(0.05)  # out of descriptors: until some connection ends
        else:
            Link(self, *ends)


if __name__ == "__main__":
    relay = Relay(int(sys.argv[1]), sys.argv[2])
    print("ready", flush=True)
    relay.run()
