"""The section `engine` of a recipe: the inference engine that samples from the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from agentrl.config.sections import NAMES_FILE, NamesFile, PlugIn, misplaced, section_at
from agentrl.registry.installed import is_foreign
from agentrl.registry.kinds import registry_of
from agentrl.registry.registry import Loaded
from agentrl.types.engine import Engine
from agentrl.types.errors import RecipeError


class EngineSettings(PlugIn):
    """The engine. Other keys are its own settings (agentrl list engines); those of user code are checked with it."""

    use: str = Field(
        "torch",
        description="torch: in this process; vllm: vLLM servers; openai: an API (not trainable); or "
        "./file.py:Engine, with its settings next to `use`.",
    )

    @classmethod
    def names_file(cls, key: str, written: Mapping[str, Any]) -> NamesFile | None:
        """Settings of an engine that takes them as they are written: only plug-ins among them may be code."""
        use = str(written.get("use") or cls.model_fields["use"].default)
        if key == "use" or is_foreign(use, "engines"):
            return NAMES_FILE
        try:
            declared = registry_of("engines").settings_of(registry_of("engines").find(use), use)
        except RecipeError:  # the check of the recipe tells it
            return None
        section = section_at(declared.model, [key])
        names = not declared.as_written or (section is not None and issubclass(section, PlugIn))
        return NAMES_FILE if names else None

    @property
    def built_in(self) -> Loaded[type[Engine]] | None:
        """The built-in engine with its settings; None: user code, which is found from the recipe's folder."""
        return None if is_foreign(self.use, "engines") else registry_of("engines").chosen(self)

    @property
    def starts_servers(self) -> bool:
        """True if opening the engine starts servers."""
        return (found := self.built_in) is not None and found.plug_in.starts_servers(found.settings)

    @property
    def weights(self) -> Literal["recipe", "own", "any"]:
        """The weights that the engine samples (`Engine.weights`)."""
        return "any" if (found := self.built_in) is None else found.plug_in.weights

    @model_validator(mode="after")
    def _fits(self) -> Self:
        try:
            _ = self.built_in
        except RecipeError as error:
            key = (error.place or "").removeprefix("engine").removeprefix(".")
            raise misplaced(key, error.message, self.settings.get(key), error.remedy) from None
        return self
