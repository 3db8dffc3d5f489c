"""Rows of files and data sets: JSON lines, JSON, Parquet, and data sets of the package datasets."""

from __future__ import annotations

import datetime
import decimal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.chat.foreign import from_json
from agentrl.types.errors import TaskError, needs
from agentrl.types.http.hub import explained, is_of_hub
from agentrl.types.jsonl import read_rows

_BATCH = 512  # rows that are turned into Python values at a time


class Row(NamedTuple):
    """A row with its place for messages; `stem` and `number` make its id, `folder` is that of its paths."""

    stem: str
    number: int
    place: str
    folder: Path
    data: dict[str, Any]


class RowSource(NamedTuple):
    """A source of rows, as a section of a recipe names it.

    Attributes:
        kind: `jsonl`, `parquet` or `hf`.
        name: the file, folder or data set.
        section: path of the section in the recipe, for error messages: `tasks`, `stages.0.sft`.
        split, subset, revision: of a data set.
    """

    kind: str
    name: str
    section: str
    split: str | None = None
    subset: str | None = None
    revision: str | None = None

    @property
    def key(self) -> str:
        """The key of the recipe that names the source."""
        return f"{self.section}.{self.kind}"


def rows_of(source: RowSource, base: Path) -> Iterator[Row]:
    """Yields the rows of a source.

    Args:
        base: the folder that paths are relative to.

    Raises:
        TaskError: the file or data set does not exist, or cannot be read.
        MissingExtra: the package that reads it is not installed.
    """
    return _READERS[source.kind](source, base)


def inside(data: Mapping[str, Any], path: str, key: str) -> Any:
    """Returns the value at a dotted path. It also leads into JSON text, and by numbers into lists.

    Args:
        key: the key of the recipe that names the path.

    Raises:
        TaskError: the path leads nowhere.
    """
    found: Any = data
    for step in [path] if path in data else path.split("."):
        found = from_json(found)
        if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
            continue
        if not isinstance(found, Mapping) or step not in found:
            there = f"it has: {', '.join(map(str, found))}" if isinstance(found, Mapping) else f"there is {found!r:.60}"
            raise TaskError(f"{key}: the row has no {path!r} (at {step!r})", remedy=there)
        found = found[step]
    return found


def is_pattern(name: str) -> bool:
    """Returns whether the name of a file is a pattern of names: `./jobs/**/trajectory.json`."""
    return any(mark in name for mark in "*?[")


def files_of(pattern: Path) -> list[Path]:
    """Returns the files that fit an absolute pattern, sorted by name."""
    folder = _folder_of(pattern)
    return sorted(found for found in folder.glob(str(pattern.relative_to(folder))) if found.is_file())


def _folder_of(pattern: Path) -> Path:
    """Returns the part of a pattern that is a plain path."""
    return Path(*takewhile(lambda part: not is_pattern(part), pattern.parts))


def _files(source: RowSource, base: Path, *suffixes: str) -> list[tuple[str, Path]]:
    """Returns the file, the files of a pattern, or all files of a folder with the first of these endings that occurs,
    recursively and sorted by name; each with the stem of its rows' ids. Files of one name have the folders in it,
    joined by dots.
    """
    path = (base / source.name).resolve()
    if is_pattern(source.name) and not path.exists():
        found = files_of(path)
        if not found:
            raise TaskError(f"no file fits {path}", place=source.key, remedy="patterns are relative to the recipe")
        path = _folder_of(path)
    elif not path.is_dir():
        return [(path.stem, path)]
    else:
        found = next(filter(None, (sorted(path.rglob(f"*{suffix}")) for suffix in suffixes)), [])
    if not found:
        raise TaskError(f"the folder {path} holds no {suffixes[0]} file", place=source.key)
    count = Counter(each.stem for each in found)
    inner = {each: ".".join(each.relative_to(path).with_suffix("").parts) for each in found}
    return [(each.stem if count[each.stem] == 1 else inner[each], each) for each in found]


def _jsonl(source: RowSource, base: Path) -> Iterator[Row]:
    for stem, path in _files(source, base, ".jsonl", ".json"):
        for number, place, data in read_rows(path, source.key):
            yield Row(stem, number, place, path.parent, data)


def _parquet(source: RowSource, base: Path) -> Iterator[Row]:
    with needs("tables"):
        import pyarrow
        import pyarrow.parquet as parquet
    for stem, path in _files(source, base, ".parquet"):
        if not path.is_file():
            raise TaskError(f"there is no file {path}", place=source.key, remedy="paths are relative to the recipe")
        number = 0
        try:
            for batch in parquet.ParquetFile(path).iter_batches(_BATCH):
                for data in batch.to_pylist():
                    number += 1
                    yield Row(stem, number, f"{path}, row {number}", path.parent, _plain(data))
        except (pyarrow.ArrowException, OSError) as error:
            remedy = f"is it whole, and Parquet? {source.section}.jsonl reads JSON lines"
            raise TaskError(f"cannot be read as Parquet: {error}", place=str(path), remedy=remedy) from None


def _hf(source: RowSource, base: Path) -> Iterator[Row]:
    name = source.name
    local = (base / name).resolve()
    if name.startswith(("./", "../", "/")) and not local.exists():  # a name of the hub does not begin so
        raise TaskError(f"there is no folder {local}", place=source.key, remedy="paths are relative to the recipe")
    if local.exists() and source.revision is not None:
        place, remedy = f"{source.section}.revision", "leave it out, or name a data set of the hub"
        raise TaskError(f"{local} is a folder of this machine, and has no revisions", place=place, remedy=remedy)
    with needs("hf"):
        import datasets
    there = str(local) if local.exists() else name
    try:
        if local.is_dir() and any((local / file).exists() for file in ("dataset_dict.json", "state.json")):
            found = datasets.load_from_disk(there)
        else:
            found = datasets.load_dataset(there, source.subset, revision=source.revision)
    except Exception as error:  # the package raises all kinds: of the hub, of scripts, of files
        remedy = "give a folder beside the recipe, or the hub name of a data set that this machine can reach"
        if "onfig" in str(error) and source.subset is None:
            remedy = f"name the configuration: {source.section}: {{hf: ..., subset: ...}}"
        fault = f"{type(error).__name__}: {error}"[:600]
        if not local.exists() and is_of_hub(error):
            fault, remedy = explained(error, name, source.revision, kind="dataset")
        raise TaskError(fault, place=f"{source.key} {there}", remedy=remedy) from None
    chosen = _split(found, source, there)
    stem, number = Path(there).name, 0
    for table in chosen.with_format("arrow").iter(_BATCH):
        for data in table.to_pylist():
            number += 1
            yield Row(stem, number, f"{name}, row {number}", local if local.is_dir() else base, _plain(data))


def _split(found: Any, source: RowSource, name: str) -> Any:
    """Returns the split of the recipe, or the only one."""
    place = f"{source.section}.split"
    if not isinstance(found, Mapping):
        if source.split is not None:
            raise TaskError(f"{name} has no splits", place=place, remedy="leave it out")
        return found
    if source.split is None and len(found) == 1:
        return next(iter(found.values()))
    if source.split not in found:
        what = "has several splits" if source.split is None else f"has no split {source.split!r}"
        raise TaskError(f"{name} {what}", place=place, remedy=f"take one of {', '.join(map(str, found))}")
    return found[source.split]


def _plain(value: Any) -> Any:
    """A value of a table in JSON types: times as ISO text, decimals as text."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
        return value.isoformat()
    return str(value) if isinstance(value, decimal.Decimal | datetime.timedelta) else value


_READERS: dict[str, Callable[[RowSource, Path], Iterator[Row]]] = {"jsonl": _jsonl, "parquet": _parquet, "hf": _hf}
