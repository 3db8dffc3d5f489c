"""The sections `agent` and `sampling` of a recipe."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from agentrl.config.sections import PlugIn, Section, WithPlugIn


class FormatSettings(PlugIn):
    """The `agent.format` key: a name, or `{use: NAME, ...}` with the parser's own settings."""

    use: str = Field(
        "auto",
        description="A format (agentrl list formats), ./file.py:Parser, or auto: as the model's chat template writes "
        "calls (hermes if it writes none).",
    )


class AgentSettings(WithPlugIn):
    """Who drives the episode, and how calls are written."""

    use: str = Field("tool_agent", description="An agent (agentrl list agents), or ./task.py:MyAgent.")
    system: str | None = Field(None, description="System message.")
    max_turns: int = Field(10, gt=0, description="Model turns; an episode that needs more is truncated.")
    describe_tools: bool = Field(
        True, description="Tell the model about the tools; false for one that knows them from demonstrations."
    )
    format: FormatSettings = Field(default_factory=FormatSettings, description="How tool calls are written.")

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A name, or a name with its settings; no name is the default."""
        found = super().spelled_out(value)
        if isinstance(found, dict) and found.get("use", "") is None:
            return {key: item for key, item in found.items() if key != "use"}
        return found


class SamplingSettings(Section):
    """How replies are sampled."""

    temperature: float = Field(1.0, ge=0, description="0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus mass; training takes 1 only.")
    max_tokens: int = Field(256, gt=0, description="New tokens in one turn at most.")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="Strings: a reply ends with the token that completes one. Format tags adds its closing tags."
    )
