"""The local server of the viewer.

It answers GET alone, and changes nothing. It is for the person who started it: data needs a cookie, which the token of
the printed URL is exchanged for. A page of another site cannot use it: the cookie is SameSite=Strict, and requests
whose Host or Origin is not this server's are refused, so that a name that is made to point here (DNS rebinding) is no
help.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
import socket
import socketserver
import zlib
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from agentrl.types.errors import AgentRLError
from agentrl.types.values import scrubbed
from agentrl.view.web import files
from agentrl.view.web.endpoints import answer, error_of
from agentrl.view.web.library import RunLibrary
from agentrl.view.web.query import Query, RequestError

PORT = 8400
_COMPRESSED = 4096
"""Bytes from which a response is compressed."""
_IDLE_S = 120.0
"""Time after which a silent connection is closed."""


class ViewServer(ThreadingHTTPServer):
    """Serves a library until `shutdown`.

    Args:
        host, port: where to listen; port 0: a free one.

    Raises:
        AgentRLError: the port is in use, or the address is not of this machine.

    Attributes:
        token: opens the viewer; it is in the printed URL.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, library: RunLibrary, host: str = "127.0.0.1", port: int = PORT) -> None:
        self.library, self.host = library, host
        self.token, self.secret = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self.cookie = f"agentrl-view-{secrets.token_hex(4)}"  # cookies of a host are shared by all its ports
        self.static = files.names()
        self.page = files.page()
        self.policy = files.policy(self.page)
        self.address_family = _family(host)
        try:
            super().__init__((host, port), _Handler)
        except OverflowError:
            raise AgentRLError(f"{port} is no port", remedy="--port 0 takes a free one") from None
        except OSError as error:
            what = f"cannot listen at {host}, port {port}: {error.strerror}"
            raise AgentRLError(what, remedy="--port 0 takes a free one; another viewer may run") from None

    def server_bind(self) -> None:
        """Binds without looking up the name of the address, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, self.port

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The URL to open, with the token."""
        return f"http://{self._name}:{self.port}/?token={self.token}"

    @property
    def _name(self) -> str:
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return self.host
        if address.is_unspecified:
            return socket.gethostname()
        return f"[{address}]" if address.version == 6 else str(address)

    def admits(self, host: str) -> bool:
        """Returns True if a Host is this server's: an address, or a name of this machine, and no name that somebody
        else made point here."""
        name = urlsplit(f"//{host}").hostname or ""
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in {"localhost", self.host.lower(), socket.gethostname().lower()} or name.endswith(".localhost")
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a browser that has gone away."""


def _family(host: str) -> socket.AddressFamily:
    try:
        return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as error:  # no such name; one that is no name
        raise AgentRLError(f"{host!r} is no address of this machine: {error}", remedy="--host 127.0.0.1") from None


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "agentrl", ""
    timeout = _IDLE_S

    def do_GET(self) -> None:
        try:
            self._get()
        except RequestError as refused:
            self._send(refused.status, _json(error_of(refused)), "application/json")
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _not_allowed(self) -> None:
        self.close_connection = True  # what follows may be a body
        refused = RequestError(405, f"{self.command} is not allowed: the viewer only reads")
        self._send(refused.status, _json(error_of(refused)), "application/json", {"Allow": "GET"})

    do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_CONNECT = do_TRACE = _not_allowed

    def _get(self) -> None:
        self._check_origin()
        asked = urlsplit(self.path)
        place, given = unquote(asked.path).lstrip("/"), dict(parse_qsl(asked.query, keep_blank_values=True))
        if place in ("", "index.html"):
            self._page(given.get("token"))
        elif place.startswith("api/"):
            self._api(place.removeprefix("api/"), given)
        elif place in self.server.static:
            path = self.server.static[place]
            self._send(200, path.read_bytes(), files.TYPES[path.suffix], {"Cache-Control": "no-cache"})
        elif place == "favicon.ico":
            self._send(204, b"", "image/x-icon")
        else:
            raise RequestError(404, f"there is no file {place[:200]!r}")

    def _check_origin(self) -> None:
        """Refuses the pages of others.

        Raises:
            RequestError: the request is for another host, or a page of another one made it.
        """
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if not self.server.admits(host):
            raise RequestError(
                403, f"the viewer is not {host[:200]!r}", remedy="open the URL that the terminal printed"
            )
        if origin is not None and urlsplit(origin).netloc != host:
            raise RequestError(403, f"a page of {origin[:200]!r} may not read the viewer")

    def _page(self, token: str | None) -> None:
        if token is None:
            html = {"Content-Security-Policy": self.server.policy, "Cache-Control": "no-cache"}
            self._send(200, self.server.page.encode(), files.TYPES[".html"], html)
            return
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            raise RequestError(403, "the token is not of this viewer", remedy="open the URL that the terminal printed")
        cookie = f"{self.server.cookie}={self.server.secret}; HttpOnly; SameSite=Strict"
        self._send(303, b"", files.TYPES[".html"], {"Set-Cookie": cookie, "Location": "./"})

    def _api(self, name: str, given: Mapping[str, str]) -> None:
        if not self._known():
            raise RequestError(401, "this browser has no access", remedy="open the URL that the terminal printed")
        found = answer(self.server.library, name, Query(given))
        if isinstance(found, tuple):
            data, kind, size = found
            alone = {"X-Size": str(size), "Content-Security-Policy": "default-src 'none'; sandbox"}
            self._send(200, data, kind, alone)
        else:
            self._send(200, _json(found), "application/json")

    def _known(self) -> bool:
        """True if the browser has the cookie. Programs of this host may have set further ones, well formed or not."""
        pairs = (pair.strip().partition("=") for pair in self.headers.get("Cookie", "").split(";"))
        held = (value for name, _, value in pairs if name == self.server.cookie)
        return any(hmac.compare_digest(value.encode(), self.server.secret.encode()) for value in held)

    def _send(self, status: int, data: bytes, kind: str, more: Mapping[str, str] | None = None) -> None:
        headers = {
            "Content-Type": kind,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
            **(more or {}),
        }
        if (
            len(data) >= _COMPRESSED
            and "gzip" in self.headers.get("Accept-Encoding", "")
            and not kind.startswith("image/")
        ):
            packer = zlib.compressobj(1, wbits=31)
            data, headers["Content-Encoding"] = packer.compress(data) + packer.flush(), "gzip"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except (UnicodeEncodeError, TypeError, OverflowError):  # lone surrogates; keys or numbers that JSON lacks
        return json.dumps(scrubbed(value), default=str).encode()
