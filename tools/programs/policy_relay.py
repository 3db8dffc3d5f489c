"""Relay inside a sandbox: forwards HTTP requests of programs to the host over stdin and stdout.

Usage: `python3 -I -S -B relay.py`. Listens on a free loopback port and prints `ready PORT`. A request is a line of JSON
on stdout, `{"id", "method", "path", "headers", "body"}`, its response a line on stdin, `{"id", "status", "headers",
"body"}`; bodies are in Base64. A sandbox without a network thus reaches only this server.
"""

import base64
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PASSED = ("authorization", "content-type", "x-api-key", "x-session-id", "x-agentrl-group", "x-stainless-retry-count")


class Relay:
    def __init__(self):
        self.lock, self.waiting, self.number = threading.Lock(), {}, 0

    def ask(self, request):
        """Sends a request and waits for the host's response."""
        slot = [threading.Event(), None]
        with self.lock:
            self.number += 1
            self.waiting[self.number] = slot
            print(json.dumps({**request, "id": self.number}), flush=True)
        slot[0].wait()
        return slot[1]

    def listen(self):
        """Receives responses until stdin is closed."""
        for line in sys.stdin:
            response = json.loads(line)
            slot = self.waiting.pop(response["id"])
            slot[1] = response
            slot[0].set()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_request(self):
        if "Transfer-Encoding" in self.headers:
            self.send_error(411, explain="send the body with a Content-Length")
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: self.headers[name] for name in PASSED if name in self.headers}
        request = {"method": self.command, "path": self.path, "headers": headers}
        response = self.server.relay.ask({**request, "body": base64.b64encode(body).decode()})
        said = base64.b64decode(response["body"])
        self.send_response(response["status"])
        for name, value in {**response["headers"], "Content-Length": str(len(said))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_POST = do_PUT = do_DELETE = handle_request

    def log_message(self, *said):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.relay = Relay()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready", server.server_address[1], flush=True)
    server.relay.listen()
