"""The sections `tasks` and `curriculum` of a recipe: what is played."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, model_validator

from agentrl.config.sections import Section, Short, alone, named


class TaskSettings(Section, Short):
    """Where tasks come from: exactly one of `source` and `jsonl`."""

    source: str | None = Field(None, description="A function that returns or yields tasks, e.g. ./task.py:orders.")
    args: dict[str, Any] = Field({}, description="Keyword arguments of `source`.")
    jsonl: str | None = Field(None, description="A JSON object per line.")
    prompt: str | None = Field(None, description="With jsonl: the instruction; {field} is replaced by the row's.")
    id: str | None = Field(None, description="With jsonl: field that holds the task's id; default: line number.")
    limit: int | None = Field(None, gt=0, description="Use only the first so many tasks.")
    shuffle: bool = Field(False, description="Shuffle the order (from the recipe's seed).")

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A reference alone is the source."""
        return alone(value, "source")

    @model_validator(mode="after")
    def _one_source(self) -> TaskSettings:
        if (self.source is None) == (self.jsonl is None):
            raise ValueError("give exactly one of 'source' and 'jsonl'")
        if self.jsonl is not None and self.prompt is None:
            raise ValueError("'jsonl' needs 'prompt', for example prompt: \"{question}\"")
        return self


class CurriculumPart(Short):
    """One entry of `curriculum`: a name, `{NAME: {...}}`, or `{use: NAME, ...}` with the part's own settings."""

    model_config = ConfigDict(extra="allow", frozen=True)

    use: str = Field(description="A part of docs/curriculum.md, or ./task.py:MyPart.")

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A name, or a name with its settings."""
        found = named(value)
        if isinstance(found, dict) and "use" not in found and len(found) == 1:
            (name,) = found
            raise ValueError(f"the settings of {name} are keys and values, {{{name}: {{key: value}}}}")
        return found
