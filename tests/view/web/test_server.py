from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from agentrl.store import RunDir
from agentrl.types.episode import Status
from agentrl.types.errors import AgentRLError
from agentrl.view.web.endpoints import ENDPOINTS
from agentrl.view.web.library import RunLibrary
from agentrl.view.web.query import Query
from agentrl.view.web.server import ViewServer
from tests.images import RED
from tests.store.make import make_episode

RECIPE = {"name": "house", "tasks": "./task.py:tasks", "rewards": {"exact_match": {}}, "credit": {"use": "gigpo"}}


def make_run(path: Path, groups: int = 3, **info: Any) -> Path:
    with RunDir.create(path, {"recipe": RECIPE, "base": str(path), **info}) as run:
        for group in range(groups):
            for member in range(4):
                status: Status = "infra_error" if group == member == 1 else "done"
                run.add(make_episode(f"g{group}/{member}", group=f"g{group}", iteration=group, status=status))
            run.add_credit(f"g{group}/0", "gigpo", [0.5, -0.5, 0.1, 0.0], {"step": [0.5, -0.5, 0.1, 0.0]})
            run.add_metrics({"iteration": group, "reward": group / 10, "loss": None})
    return path


@contextmanager
def serving(path: Path, cache: Path, **options: Any) -> Iterator[Browser]:
    library = RunLibrary(path, cache=cache)
    server = ViewServer(library, port=0, **options)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield Browser(server)
    finally:
        server.shutdown()
        server.server_close()
        library.close()


class Browser:
    """A browser with the cookie of a server."""

    def __init__(self, server: ViewServer) -> None:
        self.server = server
        self.headers: dict[str, str] = {}
        _, headers, _ = self.raw(f"/?token={server.token}")
        self.headers = {"Cookie": headers["Set-Cookie"].partition(";")[0]}

    def raw(self, path: str, method: str = "GET", **headers: str | None) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        sent = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection.request(method, path, headers={name: value for name, value in sent.items() if value is not None})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, response.headers, data

    def get(self, name: str, status: int = 200, **asked: str) -> Any:
        found, _, data = self.raw(f"/api/{name}?{urlencode(asked)}")
        assert found == status, data
        return json.loads(data)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with serving(make_run(tmp_path / "run"), tmp_path / "cache") as browser:
        yield browser


def files_of(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_the_token_is_exchanged_for_a_cookie_that_only_this_site_sends(browser: Browser) -> None:
    status, headers, _ = browser.raw(f"/?token={browser.server.token}")
    assert (status, headers["Location"]) == (303, "./")
    assert "SameSite=Strict" in headers["Set-Cookie"]
    assert "HttpOnly" in headers["Set-Cookie"]
    assert browser.server.token not in headers["Set-Cookie"]
    assert browser.raw("/?token=wrong")[0] == 403


def test_data_needs_the_cookie(browser: Browser) -> None:
    status, _, data = browser.raw("/api/runs", Cookie=None)
    assert status == 401
    assert "URL that the terminal printed" in json.loads(data)["error"]["remedy"]
    assert browser.raw("/api/runs", Cookie=f"{browser.server.cookie}=guess")[0] == 401
    assert browser.raw("/api/runs")[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8400", "localhost.evil.example", ""])
def test_a_name_that_somebody_made_point_here_is_refused(browser: Browser, host: str) -> None:
    assert browser.raw("/api/runs", Host=host)[0] == 403
    assert browser.raw("/", Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1", "[::1]:8400", "10.0.0.3:8400"])
def test_a_tunnel_may_have_another_port_and_address(browser: Browser, host: str) -> None:
    assert browser.raw("/api/runs", Host=host)[0] == 200


def test_pages_of_others_are_refused(browser: Browser) -> None:
    assert browser.raw("/api/runs", Origin="https://evil.example")[0] == 403
    assert browser.raw("/api/runs", Origin="null")[0] == 403
    own = f"127.0.0.1:{browser.server.port}"
    assert browser.raw("/api/runs", Host=own, Origin=f"http://{own}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_nothing_but_get(browser: Browser, method: str) -> None:
    assert browser.raw("/api/runs", method)[0] == 405


@pytest.mark.parametrize(
    "path", ["/../cli.py", "/%2e%2e/cli.py", "//etc/passwd", "/web/server.py", "/api/../index.html"]
)
def test_only_files_of_the_page_are_served(browser: Browser, path: str) -> None:
    assert browser.raw(path)[0] == 404


def test_the_page_forbids_what_is_not_its_own(browser: Browser) -> None:
    status, headers, page = browser.raw("/", Cookie=None)
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self' 'sha256-" in policy
    assert b"<script" in page
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]


def test_every_url_of_the_page_is_relative() -> None:
    from agentrl.view.web import files

    page = files.page()
    assert 'href="/' not in page
    assert 'src="/' not in page
    assert '"/' not in page.partition("importmap")[2].partition("</script>")[0]


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AgentRLError, match=r"(?s)cannot listen at 127.0.0.1.*in use.*--port 0"):
            ViewServer(RunLibrary(make_run(tmp_path / "run"), cache=tmp_path), port=taken.getsockname()[1])


def test_an_address_of_another_machine_is_told(tmp_path: Path) -> None:
    with pytest.raises(AgentRLError, match="cannot listen at 192.0.2.1"):
        ViewServer(RunLibrary(make_run(tmp_path / "run"), cache=tmp_path), host="192.0.2.1", port=0)


def test_nothing_is_written_to_the_run(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    before = files_of(path)
    with serving(path, tmp_path / "cache") as browser:
        for name in ("runs", "head", "metrics", "episodes", "facets", "updates"):
            browser.get(name, run="run")
        browser.get("episode", run="run", id="g0/0")
    assert files_of(path) == before


def test_a_deleted_run_is_told(browser: Browser, tmp_path: Path) -> None:
    browser.get("head", run="run")
    shutil.rmtree(tmp_path / "run")
    error = browser.get("episodes", 410, run="run")["error"]
    assert "deleted" in error["what"]
    assert "Traceback" not in json.dumps(browser.get("runs"))


def test_a_run_of_another_version_is_told(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs" / "new")
    make_run(tmp_path / "runs" / "old")
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | {"format": 99}))
    with serving(tmp_path / "runs", tmp_path / "cache") as browser:
        assert "format 99" in browser.get("head", 409, run="new")["error"]["what"]
        runs = {run["key"]: run for run in browser.get("runs")["runs"]}
        assert "format 99" in runs["new"]["problem"]["what"]
        assert runs["old"]["problem"] is None
        assert runs["old"]["episodes"] == 12


def test_a_torn_shard_leaves_the_other_episodes(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    (shard,) = (path / "episodes").iterdir()
    data = bytearray(shard.read_bytes())
    shard.write_bytes(data[:-20])
    with serving(path, tmp_path / "cache") as browser:
        rows = browser.get("episodes", run="run")["rows"]
        assert rows
        error = browser.get("episode", 500, run="run", id="g2/3")["error"]
        assert "cannot be read" in error["what"]
        assert browser.get("episode", run="run", id="g0/0")["episode"]["id"] == "g0/0"


@pytest.mark.parametrize(
    ("name", "asked", "status"),
    [
        ("nonsense", {}, 404),
        ("head", {}, 422),
        ("head", {"run": "../run"}, 404),
        ("head", {"run": "nothing"}, 404),
        ("episode", {"run": "run", "id": "none"}, 404),
        ("episodes", {"run": "run", "sort": "id; DROP TABLE episodes"}, 422),
        ("episodes", {"run": "run", "reward_min": "much"}, 422),
        ("episodes", {"run": "run", "offset": "-1"}, 422),
        ("blob", {"run": "run", "sha": "../../run.json"}, 422),
        ("blob", {"run": "run", "sha": "0" * 64}, 404),
        ("text", {"run": "run", "id": "g0/0", "path": "/episode/turns"}, 404),
    ],
)
def test_what_cannot_be_answered_has_a_reason(browser: Browser, name: str, asked: dict[str, str], status: int) -> None:
    error = browser.get(name, status, **asked)["error"]
    assert error["what"]
    assert "Traceback" not in json.dumps(error)


def test_a_port_beyond_65535_is_told(tmp_path: Path) -> None:
    with pytest.raises(AgentRLError, match=r"(?s)70000 is no port.*--port 0"):
        ViewServer(RunLibrary(make_run(tmp_path / "run"), cache=tmp_path), port=70_000)


def test_a_host_that_has_no_address_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*asked: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(AgentRLError, match=r"(?s)'workstaton' is no address of this machine.*--host 127\.0\.0\.1"):
        ViewServer(RunLibrary(make_run(tmp_path / "run"), cache=tmp_path), host="workstaton", port=0)
    monkeypatch.undo()
    with pytest.raises(AgentRLError, match="is no address of this machine"):
        ViewServer(RunLibrary(tmp_path / "run", cache=tmp_path), host="x" * 64, port=0)  # longer than a name may be


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_the_printed_url_names_a_host_that_a_browser_can_open(tmp_path: Path, host: str) -> None:
    shown = socket.gethostname() if host == "0.0.0.0" else host
    library = RunLibrary(make_run(tmp_path / "run", groups=1), cache=tmp_path / "cache")
    with ViewServer(library, host=host, port=0) as server:
        assert server.url == f"http://{shown}:{server.port}/?token={server.token}"
    library.close()


def test_a_browser_that_asks_for_an_icon_gets_none_and_no_error(browser: Browser) -> None:
    status, _, data = browser.raw("/favicon.ico")
    assert (status, data) == (204, b"")


def test_a_blob_is_served_as_a_document_that_can_do_nothing(tmp_path: Path) -> None:
    """An image of an agent may be an SVG or a page in disguise."""
    path = make_run(tmp_path / "run", groups=1)
    with RunDir.open(path) as run:
        sha = run.put_blob(RED)
        run.add(make_episode("pictured", blob=sha))
    with serving(path, tmp_path / "cache") as browser:
        status, headers, data = browser.raw(f"/api/blob?run=run&sha={sha}&start=1&length=3")
    assert (status, data, headers["Content-Type"]) == (200, b"PNG", "image/png")
    assert headers["X-Size"] == str(len(RED))
    assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_cookies_of_other_programs_do_not_matter(browser: Browser) -> None:
    ours = browser.headers["Cookie"]
    for more in (f"a/b=1; {ours}", f"{ours}; c", f"x={{1,2}};{ours};", f"{browser.server.cookie}=old; {ours}"):
        assert browser.raw("/api/runs", Cookie=more)[0] == 200, more
    for more in ("a/b=1", f"x{ours}", ours.replace("=", ""), f"{browser.server.cookie}=\xe9"):
        status, _, data = browser.raw("/api/runs", Cookie=more)
        assert status == 401, more
        assert "URL that the terminal printed" in json.loads(data)["error"]["remedy"]


def test_a_run_whose_folder_is_no_unicode_is_listed(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "plain", groups=1)
    odd = make_run(tmp_path / "runs" / "odd", groups=1)
    odd.rename(tmp_path / "runs" / os.fsdecode(b"odd\xff"))
    with serving(tmp_path / "runs", tmp_path / "cache") as browser:
        runs = {run["key"]: run for run in browser.get("runs")["runs"]}
    assert {run["episodes"] for run in runs.values()} == {4}
    assert len(runs) == 2
    assert {"plain"} < set(runs)


def test_a_browser_that_leaves_before_its_answer_is_no_error(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, left, ended = threading.Event(), threading.Event(), threading.Event()
    errors: list[tuple[object, ...]] = []

    def slow(library: RunLibrary, ask: Query) -> dict[str, str]:
        asked.set()
        left.wait()
        return {}

    def answered(request: Any, client: Any) -> None:
        answer_it(request, client)
        if client == gone:
            ended.set()

    answer_it = browser.server.process_request_thread
    monkeypatch.setitem(ENDPOINTS, "head", slow)
    monkeypatch.setattr(browser.server, "process_request_thread", answered)
    monkeypatch.setattr(browser.server, "handle_error", lambda *error: errors.append(error))
    with socket.create_connection(("127.0.0.1", browser.server.port)) as connection:
        gone = connection.getsockname()
        cookie = browser.headers["Cookie"]
        connection.sendall(f"GET /api/head HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
        asked.wait()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close resets
    left.set()
    ended.wait()
    assert errors == []
