"""Tasks of rows: JSON lines, Parquet files, and data sets of the package datasets."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.chat.foreign import chat_messages, from_json, tool_definitions, with_system
from agentrl.config.tasks import TaskSettings
from agentrl.curriculum.tables import Row, RowSource, inside, rows_of
from agentrl.types.errors import TaskError
from agentrl.types.parts.schemas import complaint
from agentrl.types.task import Task


def tasks_of_rows(kind: str, settings: TaskSettings, base: Path) -> Iterator[Task]:
    """Reads the tasks of a source of rows.

    Raises:
        TaskError: the file or data set does not exist, a row does not fit, or two have one id; it names file, row and
            column.
        MissingExtra: the package that reads it is not installed.
    """
    asked, places = _Asked(settings), dict[str, str]()
    source = RowSource(kind, getattr(settings, kind), "tasks", settings.split, settings.subset, settings.revision)
    for row in rows_of(source, base):
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
        fields = {name: inside(data, path, f"tasks.fields.{name}") for name, path in settings.fields.items()}
        shown = {**data, **fields}
        shown |= {path: inside(data, path, "tasks.prompt") for path in self.prompt if "." in path and path not in shown}
        for name, why in self.needed.items():
            if name not in (shown if name in self.prompt else data):
                raise TaskError(f"the row has no field {name!r}", remedy=f"it has: {', '.join(data)}; {why}")
        held = {key: inside(data, path, f"tasks.{key}") for key, path in self.named.items()}
        for name in self.prompt:
            if shown[name] is None:
                raise TaskError(f"{name!r} is empty (null), and the prompt shows it", remedy="drop or fill such rows")
        if (wrong := complaint(self.schema, data)) is not None:
            wrong = wrong.replace("argument", "column", 1)
            raise TaskError(f"{wrong}; it is {_held(wrong, data)}", remedy="tasks.columns says what rows hold")
        if "id" in held and not isinstance(held["id"], str | int):
            raise TaskError(f"the id {settings.id!r} is {held['id']!r:.80}", remedy="give text or whole numbers")
        id = str(held["id"]) if "id" in held else f"{row.stem}-{row.number}"
        instruction = self._instruction(row, held, shown)
        if "images" in held:
            data = {name: value for name, value in data.items() if not _holds_bytes(value)}
        data = {**data, **fields}
        seed, sandbox = data.get("seed") or 0, from_json(held.get("sandbox"))
        if isinstance(sandbox, str) and sandbox.strip():
            sandbox = {"image": sandbox}
        tools = _tools(held["tools"], str(settings.tools)) if "tools" in held else None
        return Task(id=id, instruction=instruction, data=data, seed=seed, tools=tools, sandbox=sandbox).checked()

    def _instruction(self, row: Row, held: Mapping[str, Any], shown: Mapping[str, Any]) -> list[dict[str, Any]]:
        settings, data = self.settings, row.data
        images = _images(held["images"], str(settings.images), row.folder) if "images" in held else None
        if settings.messages:
            given = from_json(held["messages"])
            if isinstance(given, str) and given.strip():
                given = [{"role": "user", "content": given}]
            messages = with_system(chat_messages(given, settings.messages), data, settings.messages)
            if messages[-1]["role"] == "assistant":
                raise TaskError(
                    f"{settings.messages} ends with a reply of the assistant, which the policy would be shown",
                    remedy="end with what it answers; tasks.fields names an answer for rewards, and a stage sft learns "
                    "replies",
                )
            return [*messages[:-1], {**messages[-1], "content": _with(messages[-1].get("content"), images)}]
        try:
            text = _PROMPT.vformat(settings.prompt or "", (), shown)
        except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:  # e.g. {price:d} of a text
            raise TaskError(f"does not fit the prompt {settings.prompt!r}: {error}") from None
        return [{"role": "user", "content": _with(text, images)}]


class _Prompt(string.Formatter):
    """Formats prompts. Fields may be paths; objects and lists of a row are written as JSON, as the row has them."""

    def get_field(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs[name], name

    def format_field(self, value: Any, spec: str) -> str:
        if not spec and isinstance(value, Mapping | list):
            return json.dumps(value, ensure_ascii=False, default=str)
        return str(super().format_field(value, spec))


_PROMPT = _Prompt()


def _tools(given: Any, field: str) -> Any:
    """Names of tools as they are; definitions checked, in any form; both also as JSON text."""
    listed = from_json(given)
    if not isinstance(listed, list):
        return listed
    return [each if _is_name(each) else tool_definitions([each], field, start=k)[0] for k, each in enumerate(listed)]


def _is_name(given: Any) -> bool:
    return isinstance(given, str) and not given.strip().startswith("{")


_NAMING = ("messages", "id", "tools", "sandbox", "images")
"""Keys of `tasks` that name a field of the rows, by a path of dots."""

_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")


def _held(wrong: str, data: Mapping[str, Any]) -> str:
    """Formats the value of the column that an error message names."""
    name = wrong.partition("'")[2].partition("'")[0].partition(".")[0]
    return f"{data.get(name)!r:.80}"


def _with(content: Any, images: list[Any] | None) -> Any:
    """The content of the instruction; with images, and where a row could have some, a list of parts."""
    if images is None:
        return content
    return [*([content] if isinstance(content, str) else content), *images]


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
    """Returns the fields of a prompt, which may be paths."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(prompt) if name is not None]
    except ValueError as error:
        raise TaskError(f"{prompt!r}: {error}", place="tasks.prompt", remedy=_BRACES) from None
    if "" in names:
        raise TaskError(f"{prompt!r} has a {{}} without a name", place="tasks.prompt", remedy=_BRACES)
    return names
