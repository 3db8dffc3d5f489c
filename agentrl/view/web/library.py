"""The runs that a viewer shows: found in a folder, kept open while they are looked at, and followed while they grow."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agentrl.store import heartbeat
from agentrl.store.info import OtherFormat
from agentrl.store.lock import is_held
from agentrl.store.reader import RunReader
from agentrl.types.errors import StoreError, nearest
from agentrl.view.web.query import RequestError
from agentrl.view.web.text_index import Requests, TextIndex

Decode = Callable[[int], str]
Json = dict[str, Any]
Value = TypeVar("Value")

_OPEN = 6
"""Runs that are kept open."""
_DEPTH = 5
"""Folders below the given one that are searched for runs."""
_PATIENCE_S = 0.5
"""Time for which what a run consists of is taken as known."""

_FILES = {
    "info": ("run.json",),
    "metrics": ("metrics.jsonl",),
    "failures": ("failures.jsonl",),
    "live": (heartbeat.NAME,),
    "episodes": ("episodes", "scores"),
    "credit": ("credit",),
    "tokens": ("tokens",),
}
"""Parts of a run that a page shows, and what they are made of. A folder counts with its files."""


@dataclass(frozen=True)
class Helpers:
    """Functions of higher layers.

    Attributes:
        decoder: makes the decoder of a run's tokens; None: its tokenizer is not available.
        estimators: describes the built-in estimators.
        recompute: the credit of a group under a built-in estimator.
    """

    decoder: Callable[[RunReader], Decode | None] = lambda run: None
    estimators: Callable[[], Sequence[Json]] = lambda: ()
    recompute: Callable[[RunReader, str, str], Json] | None = None


@dataclass
class ViewedRun:
    """A run that is open.

    Attributes:
        key: its name in requests.
        texts: what its index lacks.
        seen: sizes and times of its parts, when it was read last.
    """

    key: str
    reader: RunReader
    texts: TextIndex
    seen: dict[str, Any]
    _cached: OrderedDict[Any, Any] = field(default_factory=OrderedDict)
    _decoder: Decode | None = None
    _mutex: threading.RLock = field(default_factory=threading.RLock)
    _looked_at: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> Path:
        return self.reader.path

    def refresh(self) -> None:
        """Reads what was added since the last time.

        Raises:
            RequestError: the run was deleted, or another one is in its place.
        """
        with self._mutex:
            now = time.monotonic()
            if now - self._looked_at < _PATIENCE_S and (self.path / "run.json").exists():
                return
            seen = parts_of(self.path)
            if seen["info"] is None:
                raise gone(self.path)
            if seen != self.seen:
                id = self.reader.id
                self.reader.refresh()
                if self.reader.id != id:
                    raise gone(self.path)
                self.seen = seen
                self.texts.wake()
            self._looked_at = now

    def cached(self, of: Sequence[str], key: Any, make: Callable[[], Value]) -> Value:
        """Returns `make()`, or what it returned earlier while the named parts of the run were the same."""
        named = (key, tuple(self.seen[part] for part in of))
        with self._mutex:
            if named in self._cached:
                self._cached.move_to_end(named)
                kept: Value = self._cached[named]
                return kept
        value = make()
        with self._mutex:
            self._cached[named] = value
            while len(self._cached) > 24:
                self._cached.popitem(last=False)
        return value

    def decoder(self, helpers: Helpers) -> Decode | None:
        """The decoder of its tokens. A run that has just begun may have none yet."""
        with self._mutex:
            self._decoder = self._decoder or helpers.decoder(self.reader)
        return self._decoder

    def close(self) -> None:
        self.texts.close()
        self.reader.close()


class RunLibrary:
    """The runs of a folder, or one run.

    Args:
        path: a run, or a folder.
        cache: the folder of text indexes; default: that of the user.
        builds: whether the text index of an open run is built in the background.

    Raises:
        StoreError: there is no such folder.

    Attributes:
        requests: those that are being answered.
    """

    def __init__(
        self, path: str | Path, helpers: Helpers = Helpers(), cache: Path | None = None, *, builds: bool = True
    ) -> None:
        self.root, self.helpers, self.requests = Path(path).resolve(), helpers, Requests()
        self.single = (self.root / "run.json").exists()
        if not self.root.is_dir():
            raise StoreError(
                "there is no such folder", place=str(path), remedy="name a run, or a folder that holds runs"
            )
        self._cache, self._builds = cache or user_cache(), builds
        self._open: OrderedDict[str, ViewedRun] = OrderedDict()
        self._mutex = threading.RLock()

    def keys(self) -> list[str]:
        """The keys of all runs."""
        return [self.root.name] if self.single else list(_found(self.root))

    def path_of(self, key: str) -> Path:
        """The folder of a run.

        Raises:
            RequestError: there is none of this key.
        """
        if self.single:
            if key == self.root.name:
                return self.root
        elif key and not {"", ".", ".."} & set(key.split("/")) and (self.root / key / "run.json").is_file():
            return self.root / key
        if key in self._open:
            raise gone(self._open[key].path)
        raise RequestError(404, f"there is no run {key!r}", place=str(self.root), remedy=nearest(key, self.keys()))

    def run(self, key: str) -> ViewedRun:
        """A run, with all that was added to it.

        Raises:
            RequestError: there is none, it was deleted, or another version of agentrl wrote it.
        """
        path = self.path_of(key)
        with self._mutex:
            if key in self._open:
                try:
                    self._open[key].refresh()
                except RequestError:
                    self._open.pop(key).close()
                    if not (path / "run.json").exists():
                        raise
            if key not in self._open:
                self._open[key] = self._opened(key, path)
            self._open.move_to_end(key)
            while len(self._open) > _OPEN:
                self._open.popitem(last=False)[1].close()
            return self._open[key]

    def close(self) -> None:
        """Closes all runs."""
        with self._mutex:
            while self._open:
                self._open.popitem()[1].close()

    def _opened(self, key: str, path: Path) -> ViewedRun:
        seen = parts_of(path)
        try:
            reader = RunReader(path)
        except OtherFormat as error:
            raise RequestError(409, error.message, place=error.place, remedy=error.remedy) from None
        texts = TextIndex(reader, self._cache, self.requests)
        if self._builds:
            texts.begin()
        return ViewedRun(key, reader, texts, seen)


def user_cache() -> Path:
    """The folder of text indexes: `AGENTRL_CACHE/view`, else `~/.cache/agentrl/view`."""
    if given := os.environ.get("AGENTRL_CACHE"):
        return Path(given).absolute() / "view"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl" / "view"


def state_of(path: Path, info: Mapping[str, Any]) -> str:
    """Returns `running` if a process writes the run, `ended` if it is finished, else `stopped`."""
    return "running" if is_held(path / "lock") else "ended" if info.get("finished") else "stopped"


def parts_of(path: Path) -> dict[str, Any]:
    """Sizes and times of the parts of a run, which change with them; None: the part is not there."""
    return {part: tuple(map(_stamp, [path / name for name in names])) for part, names in _FILES.items()} | {
        "info": _stamp(path / "run.json")
    }


def _stamp(path: Path) -> Any:
    try:
        found = path.stat()
        if not path.is_dir():
            return found.st_size, found.st_mtime_ns
        return tuple(
            (entry.name, entry.stat().st_size) for entry in sorted(os.scandir(path), key=lambda each: each.name)
        )
    except OSError:
        return None


def gone(path: Path) -> RequestError:
    """The run was deleted."""
    return RequestError(410, "the run was deleted, moved or replaced", place=str(path), remedy="reload the page")


def _found(root: Path, prefix: str = "", depth: int = 0) -> Iterator[str]:
    """Keys of the runs below a folder. A run is not searched for further ones."""
    try:
        entries = sorted((entry for entry in os.scandir(root) if entry.is_dir()), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if os.path.isfile(os.path.join(entry.path, "run.json")):
            yield prefix + entry.name
        elif depth < _DEPTH and not entry.name.startswith(".") and not entry.is_symlink():
            yield from _found(Path(entry.path), f"{prefix}{entry.name}/", depth + 1)
