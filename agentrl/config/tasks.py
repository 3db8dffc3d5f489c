"""The sections `tasks` and `curriculum` of a recipe."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from agentrl.config.sections import PlugIn, Section, Short, alone


class TaskSettings(Section, Short):
    """The source of tasks: exactly one of `source` and `jsonl`. Without any key: there are no tasks."""

    source: str | None = Field(None, description="A function that returns or yields tasks, e.g. ./task.py:orders.")
    args: dict[str, Any] = Field({}, description="Keyword arguments of `source`.")
    jsonl: str | None = Field(None, description="A file with one JSON object per line.")
    prompt: str | None = Field(
        None, description="With jsonl: the instruction; {field} is replaced by the row's value of this field."
    )
    id: str | None = Field(None, description="With jsonl: field with the task's id; default: the line number.")
    tools: str | None = Field(None, description="With jsonl: field with the names or definitions of the task's tools.")
    images: str | None = Field(
        None,
        description="With jsonl: field with the path or paths of images, shown behind the instruction's text.",
    )
    sandbox: str | None = Field(None, description="With jsonl: field with the task's changes of sandbox.spec.")
    exclude: dict[str, str] = Field(
        {}, description="Ids of tasks that are left out, each with the reason; counted before `limit`."
    )
    limit: int | None = Field(None, gt=0, description="Use only this many tasks, from the front.")
    shuffle: bool = Field(False, description="Shuffle the tasks with the recipe's seed.")

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A string is the source."""
        return alone(value, "source")

    @model_validator(mode="after")
    def _one_source(self) -> TaskSettings:
        fields = type(self).model_fields
        some = any(getattr(self, name) != field.default for name, field in fields.items())
        if some and (self.source is None) == (self.jsonl is None):
            raise ValueError("give exactly one of 'source' and 'jsonl'")
        if self.jsonl is not None and self.prompt is None:
            raise ValueError("'jsonl' needs 'prompt', for example prompt: \"{question}\"")
        return self


class CurriculumPart(PlugIn):
    """One entry of `curriculum`: a name, `{NAME: {...}}`, or `{use: NAME, ...}` with the part's own settings."""

    use: str = Field(description="A part (agentrl list curriculum), or ./task.py:MyPart.")
