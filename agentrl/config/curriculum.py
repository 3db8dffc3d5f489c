"""The section `curriculum` of a recipe."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from agentrl.config.sections import Short, named


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
