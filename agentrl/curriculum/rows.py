"""Tasks of rows: JSON lines, Parquet files, and data sets of the package datasets."""

from __future__ import annotations

import datetime
import decimal
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.config.tasks import TaskSettings
from agentrl.types.errors import TaskError, needs
from agentrl.types.http.hub import explained, is_of_hub
from agentrl.types.jsonl import read_rows
from agentrl.types.parts.schemas import complaint
from agentrl.types.task import Task

_BATCH = 512  # rows that are turned into Python values at a time


class Row(NamedTuple):
    """A row with its place for messages; `stem` and `number` make its id, `folder` is that of its paths."""

    stem: str
    number: int
    place: str
    folder: Path
    data: dict[str, Any]


def tasks_of_rows(kind: str, settings: TaskSettings, base: Path) -> Iterator[Task]:
    """Reads the tasks of a source of rows.

    Raises:
        TaskError: the file or data set does not exist, a row does not fit, or two have one id; it names file, row and
            column.
        MissingExtra: the package that reads it is not installed.
    """
    asked, places = _Asked(settings), dict[str, str]()
    for row in _READERS[kind](getattr(settings, kind), settings, base):
        try:
            task = asked.task(row)
        except TaskError as error:
            raise TaskError(error.message, place=row.place, remedy=error.remedy) from None
        if task.id in places and settings.excluded_by(task.id) is None:
            remedy = f"the first is {places[task.id]}; episode ids need unique task ids"
            raise TaskError(f"task id {task.id!r} comes twice", place=row.place, remedy=remedy)
        places[task.id] = row.place
        yield task


class _Asked:
    """Requirements of the section `tasks` for each row."""

    def __init__(self, settings: TaskSettings) -> None:
        self.settings = settings
        self.prompt = _fields(settings.prompt) if settings.prompt is not None else []
        shown = f"the prompt is {settings.prompt!r} ({_BRACES})"
        self.named = {key: getattr(settings, key) for key in _NAMING if getattr(settings, key)}
        self.needed = {name: f"tasks.columns.{name} asks for it" for name in settings.columns}
        self.needed |= {path: f"tasks.{key} names it" for key, path in self.named.items() if "." not in path}
        self.needed |= dict.fromkeys(self.prompt, shown)
        kinds = {name: {"type": kind} if isinstance(kind, str) else kind for name, kind in settings.columns.items()}
        if wrong := [kind for kind in settings.columns.values() if isinstance(kind, str) and kind not in _TYPES]:
            raise TaskError(f"there is no type {wrong[0]!r}", place="tasks.columns", remedy=f"take {', '.join(_TYPES)}")
        self.schema = {"type": "object", "properties": kinds, "additionalProperties": True}

    def task(self, row: Row) -> Task:
        """The task of a row.

        Raises:
            TaskError: the row does not fit.
        """
        settings, data = self.settings, row.data
        for name, why in self.needed.items():
            if name not in data:
                raise TaskError(f"the row has no field {name!r}", remedy=f"it has: {', '.join(data)}; {why}")
        held = {key: _inside(data, path, key) for key, path in self.named.items()}
        for name in self.prompt:
            if data[name] is None:
                raise TaskError(f"{name!r} is empty (null), and the prompt shows it", remedy="drop or fill such rows")
        if (wrong := complaint(self.schema, data)) is not None:
            wrong = wrong.replace("argument", "column", 1)
            raise TaskError(f"{wrong}; it is {_held(wrong, data)}", remedy="tasks.columns says what rows hold")
        if "id" in held and not isinstance(held["id"], str | int):
            raise TaskError(f"the id {settings.id!r} is {held['id']!r:.80}", remedy="give text or whole numbers")
        id = str(held["id"]) if "id" in held else f"{row.stem}-{row.number}"
        instruction = self._instruction(row, held)
        if "images" in held:
            data = {name: value for name, value in data.items() if not _holds_bytes(value)}
        data |= {name: _inside(row.data, path, f"fields.{name}") for name, path in settings.fields.items()}
        seed, tools, sandbox = data.get("seed") or 0, held.get("tools"), held.get("sandbox")
        return Task(id=id, instruction=instruction, data=data, seed=seed, tools=tools, sandbox=sandbox).checked()

    def _instruction(self, row: Row, held: Mapping[str, Any]) -> list[dict[str, Any]]:
        settings, data = self.settings, row.data
        images = _images(held["images"], str(settings.images), row.folder) if "images" in held else None
        if settings.messages:
            messages = _messages(held["messages"], settings.messages)
            return [*messages[:-1], {**messages[-1], "content": _with(messages[-1].get("content"), images)}]
        try:
            text = (settings.prompt or "").format(**data)
        except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:  # e.g. {price:d} of a text
            raise TaskError(f"does not fit the prompt {settings.prompt!r}: {error}") from None
        return [{"role": "user", "content": _with(text, images)}]


_NAMING = ("messages", "id", "tools", "sandbox", "images")
"""Keys of `tasks` that name a field of the rows, by a path of dots."""

_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")


def _held(wrong: str, data: Mapping[str, Any]) -> str:
    """Formats the value of the column that an error message names."""
    name = wrong.partition("'")[2].partition("'")[0].partition(".")[0]
    return f"{data.get(name)!r:.80}"


def _messages(given: Any, field: str) -> list[dict[str, Any]]:
    """Chat messages; keys without a value, which tables have for every message, are left out."""
    if not isinstance(given, Sequence) or not given or not all(isinstance(each, Mapping) for each in given):
        raise TaskError(f"{field!r} is {given!r:.80}", remedy='give messages: [{"role": "user", "content": ...}]')
    return [{name: value for name, value in each.items() if value is not None} for each in given]


def _with(content: Any, images: list[Any] | None) -> Any:
    """The content of the instruction; with images, and where a row could have some, a list of parts."""
    if images is None:
        return content
    return [*([content] if isinstance(content, str) else content), *images]


def _inside(data: Mapping[str, Any], path: str, key: str) -> Any:
    """Returns the value at a dotted path. `key`: the key of `tasks` that names it."""
    found: Any = data
    for step in [path] if path in data else path.split("."):
        if not isinstance(found, Mapping) or step not in found:
            there = f"it has: {', '.join(map(str, found))}" if isinstance(found, Mapping) else f"there is {found!r:.60}"
            raise TaskError(f"tasks.{key}: the row has no {path!r} (at {step!r})", remedy=there)
        found = found[step]
    return found


def _images(given: Any, field: str, folder: Path) -> list[Any]:
    """Parts of a row's images. Paths are relative to the file's folder."""
    listed = [] if given is None else given if isinstance(given, list) else [given]
    return [{"type": "image", "image": _image(each, field, folder)} for each in listed]


def _image(each: Any, field: str, folder: Path) -> Any:
    held = each.get("bytes") or each.get("path") if isinstance(each, Mapping) else each
    if isinstance(held, bytes):
        return held
    if not isinstance(held, str):
        raise TaskError(f"{field} is {each!r:.80}", remedy="a path, or a list of paths, relative to this file")
    return held if held.startswith("data:") else str(folder / held)


def _holds_bytes(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_bytes, value.values()))
    return isinstance(value, bytes) or (isinstance(value, list) and any(map(_holds_bytes, value)))


_BRACES = "{field} is replaced by the row's, braces of the text are written {{ and }}"


def _fields(prompt: str) -> list[str]:
    """Returns the fields of a prompt: of `{user.name}` and `{items[0]}` the first part."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(prompt) if name is not None]
    except ValueError as error:
        raise TaskError(f"{prompt!r}: {error}", place="tasks.prompt", remedy=_BRACES) from None
    if "" in names:
        raise TaskError(f"{prompt!r} has a {{}} without a name", place="tasks.prompt", remedy=_BRACES)
    return names


def _files(given: str, base: Path, suffix: str, key: str) -> list[Path]:
    """Returns the file, or all files of a folder with this ending, recursively and sorted by name."""
    path = (base / given).resolve()
    if not path.is_dir():
        return [path]
    if not (found := sorted(path.rglob(f"*{suffix}"))):
        raise TaskError(f"the folder {path} holds no {suffix} file", place=f"tasks.{key}")
    return found


def _jsonl(name: str, settings: TaskSettings, base: Path) -> Iterator[Row]:
    for path in _files(name, base, ".jsonl", "jsonl"):
        for number, place, data in read_rows(path, "tasks.jsonl"):
            yield Row(path.stem, number, place, path.parent, data)


def _parquet(name: str, settings: TaskSettings, base: Path) -> Iterator[Row]:
    with needs("tables"):
        import pyarrow
        import pyarrow.parquet as parquet
    for path in _files(name, base, ".parquet", "parquet"):
        if not path.is_file():
            raise TaskError(
                f"there is no file {path}", place="tasks.parquet", remedy="paths are relative to the recipe"
            )
        number = 0
        try:
            for batch in parquet.ParquetFile(path).iter_batches(_BATCH):
                for data in batch.to_pylist():
                    number += 1
                    yield Row(path.stem, number, f"{path}, row {number}", path.parent, _plain(data))
        except (pyarrow.ArrowException, OSError) as error:
            remedy = "is it whole, and Parquet? tasks.jsonl reads JSON lines"
            raise TaskError(f"cannot be read as Parquet: {error}", place=str(path), remedy=remedy) from None


def _hf(name: str, settings: TaskSettings, base: Path) -> Iterator[Row]:
    local = (base / name).resolve()
    if name.startswith(("./", "../", "/")) and not local.exists():  # a name of the hub does not begin so
        raise TaskError(f"there is no folder {local}", place="tasks.hf", remedy="paths are relative to the recipe")
    with needs("hf"):
        import datasets
    there = str(local) if local.exists() else name
    try:
        if local.is_dir() and any((local / file).exists() for file in ("dataset_dict.json", "state.json")):
            found = datasets.load_from_disk(there)
        else:
            found = datasets.load_dataset(there, settings.subset)
    except Exception as error:  # the package raises all kinds: of the hub, of scripts, of files
        remedy = "give a folder beside the recipe, or the hub name of a data set that this machine can reach"
        if "onfig" in str(error) and settings.subset is None:
            remedy = "name the configuration: tasks: {hf: ..., subset: ...}"
        fault = f"{type(error).__name__}: {error}"[:600]
        if not local.exists() and is_of_hub(error):
            fault, remedy = explained(error, name, kind="dataset")
        raise TaskError(fault, place=f"tasks.hf {there}", remedy=remedy) from None
    chosen = _split(found, settings, there)
    stem, number = Path(there).name, 0
    for table in chosen.with_format("arrow").iter(_BATCH):
        for data in table.to_pylist():
            number += 1
            yield Row(stem, number, f"{name}, row {number}", local if local.is_dir() else base, _plain(data))


def _split(found: Any, settings: TaskSettings, name: str) -> Any:
    """Returns the split of the recipe, or the only one."""
    if not isinstance(found, Mapping):
        if settings.split is not None:
            raise TaskError(f"{name} has no splits", place="tasks.split", remedy="leave it out")
        return found
    if settings.split is None and len(found) == 1:
        return next(iter(found.values()))
    if settings.split not in found:
        what = "has several splits" if settings.split is None else f"has no split {settings.split!r}"
        raise TaskError(f"{name} {what}", place="tasks.split", remedy=f"take one of {', '.join(map(str, found))}")
    return found[settings.split]


def _plain(value: Any) -> Any:
    """A value of a table in JSON types: times as ISO text, decimals as text."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
        return value.isoformat()
    return str(value) if isinstance(value, decimal.Decimal | datetime.timedelta) else value


_Reader = Callable[[str, TaskSettings, Path], Iterator[Row]]
_READERS: dict[str, _Reader] = {"jsonl": _jsonl, "parquet": _parquet, "hf": _hf}
