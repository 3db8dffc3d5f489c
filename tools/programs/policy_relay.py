"""Relay inside a sandbox: forwards HTTP requests of programs to the host over stdin and stdout.

Listens on a free loopback port; its first message is `{"port": PORT}`. A request is a message on stdout,
`{"id", "method", "path", "headers"}`, its response one on stdin, `{"id", "status", "headers"}`, both with their bodies,
in frames (`../shared/frames.py`). A sandbox without a network thus reaches only this server.
"""

from __future__ import annotations

import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from frames import claimed_stdout, frame, next_frame

Message = dict[str, Any]
PASSED = (
    "authorization", "content-type", "x-api-key", "x-goog-api-key", "x-session-id", "x-agentrl-group",
    "x-stainless-retry-count",
)  # fmt: skip


class Relay:
    """Requests under way, by number."""

    def __init__(self) -> None:
        self.out, self.lock, self.number = claimed_stdout(), threading.Lock(), 0
        self.waiting: dict[int, queue.SimpleQueue[tuple[Message, bytes]]] = {}

    def ask(self, request: Message, body: bytes) -> tuple[Message, bytes]:
        """Sends a request and waits for the host's response."""
        response: queue.SimpleQueue[tuple[Message, bytes]] = queue.SimpleQueue()
        with self.lock:
            self.number += 1
            self.waiting[self.number] = response
            self.send({**request, "id": self.number}, body)
        return response.get()

    def send(self, message: Message, body: bytes = b"") -> None:
        self.out.write(frame(message, body))
        self.out.flush()

    def listen(self) -> None:
        """Receives responses until stdin is closed."""
        while (response := next_frame(sys.stdin.buffer)) is not None:
            self.waiting.pop(response[0]["id"]).put(response)


class Server(ThreadingHTTPServer):
    """Server on a free loopback port."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.relay = Relay()


class Handler(BaseHTTPRequestHandler):
    """Passes a request on, and its response back."""

    protocol_version = "HTTP/1.1"
    server: Server

    def handle_request(self) -> None:
        if "Transfer-Encoding" in self.headers:
            self.send_error(411, explain="send the body with a Content-Length")
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: self.headers[name] for name in PASSED if name in self.headers}
        request = {"method": self.command, "path": self.path, "headers": headers}
        response, content = self.server.relay.ask(request, body)
        self.send_response(response["status"])
        for name, value in {**response["headers"], "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = handle_request

    def log_message(self, format: str, *words: object) -> None:
        """Writes no log."""


if __name__ == "__main__":
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.relay.send({"port": server.server_address[1]})
    server.relay.listen()
