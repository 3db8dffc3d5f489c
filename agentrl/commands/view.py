"""`agentrl view`: runs in a browser."""

from __future__ import annotations

import os
import threading
import webbrowser
from pathlib import Path

from agentrl.commands.look import token_text
from agentrl.commands.output import write_json, write_line
from agentrl.store.run_dir import RunDir
from agentrl.view.html import export_html
from agentrl.view.web.library import Helpers, Library
from agentrl.view.web.server import ViewServer


def view(path: Path, host: str, port: int, *, opens: bool, as_json: bool) -> None:
    """Serves a run, or the runs of a folder, until Ctrl-C."""
    library = Library(path, Helpers(decoder=token_text))
    server = ViewServer(library, host, port)
    try:
        if as_json:
            write_json({"url": server.url, "host": host, "port": server.port})
        else:
            write_line(f"{server.url}\nCtrl-C ends it.{_from_afar(server)}")
        if opens and _has_screen():
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        server.serve_forever()
    finally:
        server.server_close()
        library.close()


def _has_screen() -> bool:
    """True if a browser that is started here can be seen."""
    remote = "SSH_CONNECTION" in os.environ
    return not remote and (os.name != "posix" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ)


def _from_afar(server: ViewServer) -> str:
    """How to look at it from another machine."""
    if "SSH_CONNECTION" not in os.environ or server.host not in ("127.0.0.1", "localhost", "::1"):
        return ""
    return f"\nOn your own machine: ssh -L {server.port}:localhost:{server.port} THIS-MACHINE, then open the URL there."


def export(path: Path, page: Path, episodes: int, *, as_json: bool) -> None:
    """Writes the page of a run, and prints its path."""
    with RunDir.read(path) as run:
        export_html(run, page, episodes=episodes, decode=token_text(run))
    write_json({"page": page}) if as_json else print(page)
