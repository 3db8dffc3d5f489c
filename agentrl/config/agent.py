"""The sections `agent` and `sampling` of a recipe."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from agentrl.config.sections import PlugIn, Section, WithPlugIn


class FormatSettings(PlugIn):
    """The `agent.format` key: a name, or `{use: NAME, ...}` with the parser's own settings."""

    use: str = Field(
        "auto",
        description="A format (agentrl list formats), ./file.py:Parser, or auto: the format in which the model's chat "
        "template writes calls (hermes if it writes none).",
    )


class AgentSettings(WithPlugIn):
    """The agent that drives the episode, and the format of tool calls."""

    use: str = Field("tool_agent", description="An agent (agentrl list agents), or ./task.py:MyAgent.")
    system: str | None = Field(None, description="System prompt.")
    max_turns: int = Field(10, gt=0, description="Maximum number of model turns; a longer episode is truncated.")
    describe_tools: bool = Field(
        True, description="Describe the tools in the prompt; false for a model that knows them from demonstrations."
    )
    format: FormatSettings = Field(default_factory=FormatSettings, description="How tool calls are written.")

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A name, or a name with its settings; without a name, the default agent."""
        found = super().spelled_out(value)
        if isinstance(found, dict) and found.get("use", "") is None:
            return {key: item for key, item in found.items() if key != "use"}
        return found


class SamplingSettings(Section):
    """Sampling parameters of the policy."""

    temperature: float = Field(1.0, ge=0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus mass; training supports only 1.")
    max_tokens: int = Field(256, gt=0, description="Maximum number of new tokens per turn.")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        description="Stop strings: a reply ends with the token that completes one. The format tags adds its closing "
        "tags.",
    )
