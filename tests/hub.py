"""A Hugging Face Hub on this machine, which the real huggingface_hub reads from and pushes to.

It serves what huggingface_hub asks of https://huggingface.co: information about repositories, trees, files at
revisions, new repositories, and commits, of which large files arrive by LFS's basic transfer. It keeps all in memory.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_loopback"
"""The token that may push and read private and gated repositories."""
OWNER = "me"
"""The account of the token."""

Files = dict[str, bytes]


@dataclass
class Repository:
    """A repository: every commit with all of its files, and the commits of branches and tags."""

    private: bool = False
    gated: bool = False
    commits: dict[str, Files] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes], *tags: str) -> str:
        """Adds a commit with these files, to the branch main and to further revisions. Returns its hash."""
        digest = hashlib.sha1(f"{len(self.commits)}".encode())
        for name, data in sorted(files.items()):
            digest.update(name.encode() + data)
        sha = digest.hexdigest()
        self.commits[sha] = dict(files)
        self.refs |= dict.fromkeys(("main", *tags), sha)
        return sha

    @property
    def main(self) -> Files:
        """The files of the branch main."""
        return self.commits[self.refs["main"]]


class Hub:
    """The hub.

    Attributes:
        repositories: by OWNER/NAME.
        lfs: uploaded large files, by SHA-256.
        asked: every request, as `METHOD PATH`.
        full: pushed files are refused, as by a storage quota.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.lfs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.full = False
        self.url = ""

    def put(self, name: str, folder: Path, *tags: str, gated: bool = False) -> str:
        """Adds the files of a folder as a commit of a repository, and makes it if it is missing. Returns the commit."""
        repository = self.repositories.setdefault(name, Repository(gated=gated))
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
        return repository.commit(files, *tags)

    def environment(self, home: Path, token: str | None = TOKEN) -> dict[str, str]:
        """Environment variables with which huggingface_hub talks to this hub, with a cache of its own."""
        found = {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
        return {**found, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": token or "", "NO_PROXY": "127.0.0.1"}


@contextmanager
def open_hub() -> Iterator[Hub]:
    """A hub that listens on a free port until the block ends."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Environment variables of huggingface_hub in this process, which reads them when it is imported."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    reload_constants()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        reload_constants()


def reload_constants() -> None:
    """Makes huggingface_hub and transformers read the environment variables again; both keep the address of a hub."""
    from huggingface_hub import constants, hf_api

    importlib.reload(constants)
    hf_api.api.endpoint = constants.ENDPOINT  # of its functions
    if (shared := getattr(sys.modules.get("transformers.utils.hub"), "_hf_api", None)) is not None:
        shared.endpoint = constants.ENDPOINT


class _Refused(Exception):
    def __init__(self, status: int, code: str, message: str = "") -> None:
        self.status, self.code, self.message = status, code, message or code


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: tests read `Hub.asked`."""

    def do_GET(self) -> None:
        self._answer("GET")

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def _answer(self, method: str) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{method} {path}")
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            for verbs, pattern, handler in _ROUTES:
                if method in verbs and (found := re.fullmatch(pattern, path)):
                    return handler(self, **found.groupdict())
            raise _Refused(404, "EntryNotFound", f"{method} {path} is not served")
        except _Refused as refused:
            said = json.dumps({"error": refused.message}).encode()
            self._send(said, refused.status, {"X-Error-Code": refused.code, "X-Error-Message": refused.message})

    def _send(self, data: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _json(self, found: Any, status: int = 200) -> None:
        self._send(json.dumps(found).encode(), status, {"Content-Type": "application/json"})

    @property
    def _known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _require_token(self) -> None:
        if not self._known:
            raise _Refused(401, "", "Invalid username or password.")

    def _repository(self, name: str, *, files: bool = False) -> Repository:
        found = self.hub.repositories.get(name)
        if found is None or (found.private and not self._known):
            raise _Refused(404, "RepoNotFound", "Repository not found")
        if files and found.gated and not self._known:
            raise _Refused(403, "GatedRepo", f"Access to model {name} is restricted")
        return found

    def _at(self, repository: Repository, revision: str) -> tuple[str, Files]:
        sha = repository.refs.get(revision, revision)
        if sha not in repository.commits:
            raise _Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha, repository.commits[sha]

    def whoami(self) -> None:
        self._require_token()
        self._json({"name": OWNER, "type": "user", "orgs": [], "auth": {"accessToken": {"role": "write"}}})

    def info(self, name: str, revision: str | None = None) -> None:
        repository = self._repository(name)
        sha, files = self._at(repository, revision or "main")
        siblings = [{"rfilename": path} for path in files]
        about = {"id": name, "modelId": name, "sha": sha, "siblings": siblings, "tags": []}
        self._json({**about, "private": repository.private, "gated": "manual" if repository.gated else False})

    def tree(self, name: str, revision: str) -> None:
        _, files = self._at(self._repository(name), revision)
        entries: list[dict[str, Any]] = []
        for path, data in files.items():
            entry = {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            if _is_large(path):
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            entries.append(entry)
        self._json(entries)

    def resolve(self, name: str, revision: str, path: str) -> None:
        sha, files = self._at(self._repository(name, files=True), revision)
        if path not in files:
            raise _Refused(404, "EntryNotFound", f"{path} is not in the repository")
        data = files[path]
        etag = (hashlib.sha256 if _is_large(path) else hashlib.sha1)(data).hexdigest()
        self._send(data, headers={"ETag": f'"{etag}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"})

    def create(self) -> None:
        self._require_token()
        asked = json.loads(self.body)
        name = f"{asked.get('organization') or OWNER}/{asked['name']}"
        if name in self.hub.repositories:
            return self._json({"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"}, 409)
        self.hub.repositories[name] = Repository(private=asked.get("visibility") == "private")
        self.hub.repositories[name].commit({".gitattributes": b""})
        self._json({"url": f"{self.hub.url}/{name}", "name": name})

    def validate(self) -> None:
        self._json({"errors": [], "warnings": []})

    def preupload(self, name: str, revision: str) -> None:
        self._require_token()
        files = [
            {"path": each["path"], "uploadMode": "lfs" if _is_large(each["path"]) else "regular", "shouldIgnore": False}
            for each in json.loads(self.body)["files"]
        ]
        self._json({"files": files})

    def batch(self, name: str) -> None:
        self._require_token()
        objects = []
        for each in json.loads(self.body)["objects"]:
            href = f"{self.hub.url}/lfs/{each['oid']}"
            needed = {"upload": {"href": href}, "verify": {"href": f"{href}/verify"}}
            objects.append(each if each["oid"] in self.hub.lfs else {**each, "actions": needed})
        self._json({"transfer": "basic", "objects": objects})

    def upload(self, oid: str) -> None:
        if self.hub.full:
            raise _Refused(403, "", "the storage limit is reached")
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise _Refused(400, "", "the content has another hash")
        self.hub.lfs[oid] = self.body
        self._send(b"")

    def verify(self, oid: str) -> None:
        self._send(b"", 200 if oid in self.hub.lfs else 404)

    def commit(self, name: str, revision: str) -> None:
        self._require_token()
        repository = self._repository(name)
        files = dict(self._at(repository, revision)[1])
        for line in map(json.loads, self.body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.lfs[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        sha = repository.commit(files)
        self._json({"success": True, "commitOid": sha, "commitUrl": f"{self.hub.url}/{name}/commit/{sha}"})


def _is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".bin"))


_REPO = r"(?P<name>[\w.-]+/[\w.-]+)"
_KIND = "(?:models|datasets)"
_ROUTES = (
    (("GET",), "/api/whoami-v2", _Handler.whoami),
    (("POST",), "/api/repos/create", _Handler.create),
    (("POST",), "/api/validate-yaml", _Handler.validate),
    (("GET",), rf"/api/{_KIND}/{_REPO}/revision/(?P<revision>.+)", _Handler.info),
    (("GET",), rf"/api/{_KIND}/{_REPO}/tree/(?P<revision>[^/]+)(/.*)?", _Handler.tree),
    (("POST",), rf"/api/models/{_REPO}/preupload/(?P<revision>[^/]+)", _Handler.preupload),
    (("POST",), rf"/api/models/{_REPO}/commit/(?P<revision>[^/]+)", _Handler.commit),
    (("GET",), rf"/api/{_KIND}/{_REPO}", _Handler.info),
    (("POST",), rf"/{_REPO}\.git/info/lfs/objects/batch", _Handler.batch),
    (("PUT",), r"/lfs/(?P<oid>\w+)", _Handler.upload),
    (("POST",), r"/lfs/(?P<oid>\w+)/verify", _Handler.verify),
    (("GET", "HEAD"), rf"/(datasets/)?{_REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _Handler.resolve),
)
