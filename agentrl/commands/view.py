"""`agentrl view`: runs in a browser."""

from __future__ import annotations

import os
import threading
import webbrowser
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentrl.api.credit import credit_of_group
from agentrl.commands.look import token_text
from agentrl.commands.output import progress, write_json, write_line
from agentrl.estimators.registry import ESTIMATORS
from agentrl.registry.listing import entries
from agentrl.view.web.export import export as export_page
from agentrl.view.web.library import Helpers, RunLibrary
from agentrl.view.web.server import ViewServer


def view(path: Path, host: str, port: int, *, opens: bool, as_json: bool) -> None:
    """Serves a run, or the runs of a folder, until Ctrl-C."""
    library = RunLibrary(path, helpers())
    server = ViewServer(library, host, port)
    try:
        if as_json:
            write_json({"url": server.url, "host": host, "port": server.port})
        else:
            write_line(f"{server.url}\nCtrl-C ends it.{_from_afar(server)}")
        if opens and _has_screen():
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        threading.Thread(target=_estimators, daemon=True).start()  # the first page waits less
        server.serve_forever()
    finally:
        server.server_close()
        library.close()


def helpers() -> Helpers:
    """Functions that the viewer takes from other rooms."""
    return Helpers(decoder=token_text, estimators=_estimators, recompute=credit_of_group)


@cache
def _estimators() -> list[dict[str, Any]]:
    """The built-in estimators that can be used here."""
    return [
        {"name": each.name, "does": each.does, "granularity": each.about["granularity"], "needs": each.about["needs"]}
        for each in entries(ESTIMATORS)
        if not each.missing
    ]


def _has_screen() -> bool:
    """True if a browser that is started here can be seen."""
    remote = "SSH_CONNECTION" in os.environ
    return not remote and (os.name != "posix" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ)


def _from_afar(server: ViewServer) -> str:
    """Says how to look at it from another machine."""
    if "SSH_CONNECTION" not in os.environ or server.host not in ("127.0.0.1", "localhost", "::1"):
        return ""
    return f"\nOn your own machine: ssh -L {server.port}:localhost:{server.port} THIS-MACHINE, then open the URL there."


def export(path: Path, page: Path, episodes: int, *, as_json: bool) -> None:
    """Writes the page of a run, and prints its path."""
    with TemporaryDirectory() as cache:  # what a page needs of a text index is built in no time
        library = RunLibrary(path, helpers(), Path(cache), builds=False)
        try:
            with progress() as reporter:
                export_page(library, page, episodes, reporter)
        finally:
            library.close()
    write_json({"page": page}) if as_json else print(page)
