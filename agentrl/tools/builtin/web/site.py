"""Pages that this process makes itself, served to a browser under names of their own."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Request:
    """What a browser asks for.

    Attributes:
        path: without the query, as it was sent.
        query: the fields of the query, and of a form that was posted. Of several values of a field, the last.
    """

    method: str
    host: str
    path: str
    query: dict[str, str]
    cookies: dict[str, str]


@dataclass(frozen=True)
class Page:
    """What a browser is answered: by default a page of HTML."""

    body: str | bytes
    status: int = 200
    type: str = "text/html; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def moved(cls, to: str, **headers: str) -> Page:
        """The browser loads another address in place of this one."""
        return cls("", 303, headers={"Location": to, **headers})


class Site:
    """A server in this process for several named sites, in threads, on a free port of 127.0.0.1.

    It ends with the process.

    Args:
        hosts: by name (`shop.test`), what answers the requests to it. Called in several threads at once.

    Attributes:
        flag: of Chromium: it finds the sites under their names, and no other host. Addresses (`http://shop.test/`) are
            then the same in every run, which the free port is not.
    """

    def __init__(self, hosts: Mapping[str, Callable[[Request], Page]]) -> None:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hosts = dict(hosts)
        place = f"127.0.0.1:{self._server.server_address[1]}"
        self.flag = f"--host-resolver-rules={','.join(f'MAP {name} {place}' for name in hosts)},MAP * ~NOTFOUND"
        threading.Thread(target=self._server.serve_forever, name="agentrl-site", daemon=True).start()

    def close(self) -> None:
        """Ends the server. Needed only by who starts many."""
        self._server.shutdown()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    hosts: dict[str, Callable[[Request], Page]]
    daemon_threads = True
    request_queue_size = 128


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 300
    # One packet an answer: without both, a browser waits 40 ms for the second one.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer("")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        length = min(int(self.headers.get("Content-Length") or 0), 1 << 20)
        self._answer(self.rfile.read(length).decode(errors="replace"))

    def _answer(self, form: str) -> None:
        page = self._page(form)
        body = page.body.encode() if isinstance(page.body, str) else page.body
        self.send_response(page.status)
        for name, value in {"Content-Type": page.type, **page.headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _page(self, form: str) -> Page:
        address = urlsplit(self.path)
        host = (address.netloc or self.headers.get("Host", "")).partition(":")[0]
        if host not in self.server.hosts:
            return Page(f"{host} is not among the sites that are served here.", 403)
        query = parse_qs(address.query, keep_blank_values=True) | parse_qs(form, keep_blank_values=True)
        last = {name: values[-1] for name, values in query.items()}
        request = Request(self.command, host, address.path or "/", last, self._cookies())
        try:
            return self.server.hosts[host](request)
        except Exception as error:  # A bug of the site is seen on the page, not as a connection that breaks.
            return Page(f"{type(error).__name__}: {error}", HTTPStatus.INTERNAL_SERVER_ERROR)

    def _cookies(self) -> dict[str, str]:
        try:
            return {name: morsel.value for name, morsel in SimpleCookie(self.headers.get("Cookie", "")).items()}
        except CookieError:
            return {}

    def log_message(self, format: str, *args: object) -> None:
        """Not to the terminal of the run."""
