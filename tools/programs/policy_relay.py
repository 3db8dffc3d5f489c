"""Relay inside a sandbox: forwards HTTP requests of programs to the host over stdin and stdout.

Usage: `python3 -I -S -B relay.py`. Listens on a free loopback port and prints `ready PORT`. A request is a line of JSON
on stdout, `{"id", "method", "path", "headers", "body"}`, its response a line on stdin, `{"id", "status", "headers",
"body"}`; bodies are in Base64. A sandbox without a network thus reaches only this server.
"""

from __future__ import annotations

import base64
import json
import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Message = dict[str, Any]

PASSED = ("authorization", "content-type", "x-api-key", "x-session-id", "x-agentrl-group", "x-stainless-retry-count")


class Relay:
    """Requests under way, by number."""

    def __init__(self) -> None:
        self.lock, self.number = threading.Lock(), 0
        self.waiting: dict[int, queue.SimpleQueue[Message]] = {}

    def ask(self, request: Message) -> Message:
        """Sends a request and waits for the host's response."""
        response: queue.SimpleQueue[Message] = queue.SimpleQueue()
        with self.lock:
            self.number += 1
            self.waiting[self.number] = response
            print(json.dumps({**request, "id": self.number}), flush=True)
        return response.get()

    def listen(self) -> None:
        """Receives responses until stdin is closed."""
        for line in sys.stdin:
            response = json.loads(line)
            self.waiting.pop(response["id"]).put(response)


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
        response = self.server.relay.ask({**request, "body": base64.b64encode(body).decode()})
        content = base64.b64decode(response["body"])
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
    print("ready", server.server_address[1], flush=True)
    server.relay.listen()
