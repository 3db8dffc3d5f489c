"""The egress proxy: an HTTP proxy (CONNECT and plain) that lets sandboxes reach listed hosts and nothing else.

It runs beside the sandboxes, on the host, and listens on one unix socket a sandbox. Standard library only.

On stdin, a JSON object a line: `{"open": PATH, "allow": [HOST, ...]}` and `{"close": PATH}`; it ends with its stdin.
On stdout: `{"opened": PATH}`, `{"failed": PATH, "why": TEXT}`, and `{"refused": PATH, "target": "host:port",
"why": TEXT}`, the last once a sandbox and target.

An entry is `host`, `*.domain` (its subdomains) or an IPv4 address; `:port` behind it, else ports 80 and 443. A name
that resolves to an address that is not public (loopback, link-local, private) is refused unless that address is
listed too: who owns a name may not decide what of our network is reached. What is inside a CONNECT tunnel is not
looked at.
"""

import asyncio
import ipaddress
import json
import os
import resource
import socket
import sys
from urllib.parse import urlsplit

CHUNK = 1 << 16
HEAD_S, CONNECT_S, IDLE_S = 30, 20, 300
MOST_CONNECTIONS = 128  # of one sandbox
MOST_REPORTS = 1000  # refusals that are told of one sandbox
MOST_TOLD = 255  # characters of a host: no name is longer
DROPPED = ("connection", "proxy-", "keep-alive", "host", "upgrade", "te:")


class Refused(Exception):
    """Status and text of the answer."""


def entry(text):
    """(host, ports) of an entry."""
    host, _, port = text.lower().partition(":")
    return host.rstrip("."), {int(port)} if port else {80, 443}


class Outlet:
    """What one sandbox may reach."""

    def __init__(self, path, allow):
        self.path, self.entries, self.told, self.open = path, [entry(text) for text in allow], set(), 0
        self.server = None

    def listed(self, host, port):
        return any(
            port in ports and (host == name or (name[:2] == "*." and host.endswith(name[1:])))
            for name, ports in self.entries
        )

    def refuse(self, host, port, why):
        target = f"{ascii(host[:MOST_TOLD])[1:-1]}:{port}"  # a program inside chose it, and a terminal may show it
        if target not in self.told and len(self.told) < MOST_REPORTS:
            self.told.add(target)
            tell(refused=self.path, target=target, why=why)
        raise Refused("403 Forbidden", f"agentrl: {target}: {why}")

    async def connect(self, host, port):
        """Streams to a host that is allowed, by an address that is."""
        host = host.lower().rstrip(".")
        if not self.listed(host, port):
            self.refuse(host, port, "not in the sandbox's list of allowed hosts")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Refused("502 Bad Gateway", f"agentrl: {host}: {error}") from None
        addresses = list(dict.fromkeys(each[4][0] for each in found))
        fit = [each for each in addresses if ipaddress.ip_address(each).is_global or self.listed(each, port)]
        if not fit:
            self.refuse(host, port, f"it resolves to {addresses[0]}, which is not a public address and not listed")
        problem = None
        for address in fit:
            try:
                return await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_S)
            except (OSError, asyncio.TimeoutError) as error:  # noqa: UP041 - two types before Python 3.11
                problem = error
        raise Refused("502 Bad Gateway", f"agentrl: {host}:{port}: {problem or 'no answer'}")

    async def serve(self, reader, writer):
        self.open += 1
        up = None
        try:
            if self.open > MOST_CONNECTIONS:
                raise Refused("503 Service Unavailable", "agentrl: too many connections at the same time")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_S)
            host, port, forward = parse(head)
            up_reader, up = await self.connect(host, port)
            if forward is None:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                up.write(forward)
            await asyncio.gather(pump(reader, up), pump(up_reader, writer))
        except Refused as refusal:
            status, text = refusal.args
            body = text.encode("utf-8", "replace") + b"\n"
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, asyncio.TimeoutError):  # noqa: UP041
            pass
        finally:
            self.open -= 1
            for each in (up, writer):
                if each is not None:
                    each.close()


def parse(head):
    """(host, port, what to send on) of a request; nothing is sent on for CONNECT.

    One request a connection: the answer's end is the connection's, so that a second one cannot go elsewhere.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3:
        raise Refused("400 Bad Request", "agentrl: not an HTTP request")
    method, target, version = parts
    try:
        url = urlsplit("//" + target if method == "CONNECT" else target)
        host, port = url.hostname, url.port
    except ValueError:
        host = port = None
    if not host or (method == "CONNECT" and not port) or (method != "CONNECT" and url.scheme != "http"):
        raise Refused("400 Bad Request", "agentrl: this is a proxy: http://host/path, or CONNECT host:port")
    if method == "CONNECT":
        return host, port, None
    kept = [line for line in lines if line and not line.lower().startswith(DROPPED)]
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    authority = host if port is None else f"{host}:{port}"
    request = [f"{method} {path} {version}", f"Host: {authority}", "Connection: close", *kept, "", ""]
    return host, port or 80, "\r\n".join(request).encode("latin-1")


async def pump(reader, writer):
    while True:
        data = await asyncio.wait_for(reader.read(CHUNK), IDLE_S)
        if not data:
            break
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def tell(**fields):
    print(json.dumps(fields), flush=True)


async def main():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    outlets = {}
    while True:
        line = await commands.readline()
        if not line:
            return
        command = json.loads(line)
        if "open" in command:
            path = command["open"]
            outlet = Outlet(path, command["allow"])
            try:
                outlet.server = await asyncio.start_unix_server(outlet.serve, path)
                os.chmod(path, 0o666)  # the sandbox's user is another; the folder is the wall
            except OSError as error:
                tell(failed=path, why=str(error))
                continue
            outlets[path] = outlet
            tell(opened=path)
        elif command["close"] in outlets:
            outlets.pop(command["close"]).server.close()


if __name__ == "__main__":
    asyncio.run(main())
