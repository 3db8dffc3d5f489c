"""The sections `tasks` and `curriculum` of a recipe."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from agentrl.config.sections import IS_FILE, NAMES_FILE, NamesFile, PlugIn, Section, Short, alone
from agentrl.registry.installed import is_foreign

ROWS = ("jsonl", "parquet", "hf")
"""The keys of sources of rows. Each row becomes a task."""


class TaskSettings(Section, Short):
    """The source of tasks: exactly one of `source`, `jsonl`, `parquet` and `hf`. Without any key: no tasks.

    The keys from `prompt` to `columns` apply to rows, i.e. to `jsonl`, `parquet` and `hf`.
    """

    source: Annotated[str | None, NAMES_FILE] = Field(
        None, description="A function that returns or yields tasks: ./task.py:orders, or a name (agentrl list sources)."
    )
    args: dict[str, Any] = Field({}, description="Keyword arguments of `source`.")
    jsonl: Annotated[str | None, IS_FILE] = Field(
        None, description="A file with one JSON object per line, or a folder of such files."
    )
    parquet: Annotated[str | None, IS_FILE] = Field(None, description="A Parquet file, or a folder of such files.")
    hf: Annotated[str | None, NAMES_FILE] = Field(
        None, description="A data set for the package datasets: a folder (of save_to_disk, or of files), or a hub name."
    )
    split: str | None = Field(None, description="With hf: the split; needed if there are several.")
    subset: str | None = Field(None, description="With hf: the configuration of the data set.")
    revision: str | None = Field(None, description="With hf: a branch, a tag or a commit of the hub; default: main.")
    prompt: str | None = Field(
        None, description="The instruction of a row; {field} is replaced by the row's value of this field."
    )
    messages: str | None = Field(
        None, description="In place of prompt: field with the instruction's chat messages; dots lead inside."
    )
    id: str | None = Field(None, description="Field with the task's id; default: the number of the line or row.")
    tools: str | None = Field(None, description="Field with the names or definitions of the task's tools.")
    images: str | None = Field(
        None, description="Field with the path or paths of images, or the images, shown behind the instruction's text."
    )
    sandbox: str | None = Field(None, description="Field with the task's changes of sandbox.spec.")
    fields: dict[str, str] = Field(
        {}, description="Further names for values of a row: {answer: reward_model.ground_truth}; dots lead inside."
    )
    columns: dict[str, str | dict[str, Any]] = Field(
        {}, description="What every row must hold: {answer: string, level: {enum: [1, 2]}}; a type or a JSON schema."
    )
    exclude: dict[str, str] = Field(
        {},
        description="Ids of tasks that are left out, each with the reason; counted before `limit`. `a-*`: all such.",
    )
    limit: int | None = Field(None, gt=0, description="Use only this many tasks, from the front.")
    shuffle: bool = Field(False, description="Shuffle the tasks with the recipe's seed.")

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A string is the source."""
        return alone(value, "source")

    @classmethod
    def names_file(cls, key: str, written: Mapping[str, Any]) -> NamesFile | None:
        """Arguments of a built-in source may be paths; those of other functions are theirs, as they are written."""
        if key == "args":
            return None if is_foreign(str(written.get("source")), "sources") else NAMES_FILE
        return super().names_file(key, written)

    def excluded_by(self, id: str) -> str | None:
        """The key of `exclude` that a task's id fits; None if it takes part."""
        if id in self.exclude:
            return id
        return next((key for key in self.exclude if "*" in key and fnmatch.fnmatchcase(id, key)), None)

    @property
    def rows(self) -> str | None:
        """The key of the source of rows, or None."""
        return next((key for key in ROWS if getattr(self, key) is not None), None)

    @model_validator(mode="after")
    def _one_source(self) -> TaskSettings:
        fields = type(self).model_fields
        some = [name for name, field in fields.items() if getattr(self, name) != field.default]
        given = [name for name in ("source", *ROWS) if name in some]
        if some and len(given) != 1:
            raise ValueError("give exactly one of 'source', 'jsonl', 'parquet' and 'hf'")
        if (kind := self.rows) is not None and (self.prompt is None) == (self.messages is None):
            both = "takes 'prompt' or 'messages', not both" if self.prompt else "needs 'prompt'"
            raise ValueError(f'{kind!r} {both}, for example prompt: "{{question}}"')
        if stray := [name for name in ("split", "subset", "revision") if name in some and kind != "hf"]:
            raise ValueError(f"{stray[0]!r} is for 'hf'")
        return self


class CurriculumPart(PlugIn):
    """One entry of `curriculum`: a name, `{NAME: {...}}`, or `{use: NAME, ...}` with the part's own settings."""

    use: str = Field(description="A part (agentrl list curriculum), or ./task.py:MyPart.")
