"""The sections `agent`, `sampling` and `policies` of a recipe."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from agentrl.config.engine import EngineSettings
from agentrl.config.model import REVISION
from agentrl.config.sections import NAMES_FILE, PlugIn, Section, WithPlugIn
from agentrl.config.train import LoraSettings
from agentrl.types.paths import RELATIVE


class FormatSettings(PlugIn):
    """The `agent.format` key: a name, or `{use: NAME, ...}` with the parser's own settings."""

    use: str = Field(
        "auto",
        description="A format (agentrl list formats), ./file.py:Parser, or auto: the format in which the model's chat "
        "template writes calls (hermes if it writes none).",
    )


class StateSettings(PlugIn):
    """The `agent.state` key: a name, or `{use: NAME, ...}` with the signature's own settings."""

    use: str = Field(description="A signature (agentrl list states), or ./task.py:signature.")


class LastImagesSettings(Section):
    """The value `{last_images: N}` of the key `agent.history`."""

    last_images: int = Field(gt=0, description="How many images the next prompt shows, in addition to the task's.")


PROGRAM, GUEST = "program", "guest"
"""Agents that are external programs."""

DIALOGUE = "dialogue"
"""The agent that talks with an auxiliary policy."""


class AgentSettings(WithPlugIn):
    """The agent of the episode, and the format of tool calls."""

    kind: ClassVar[str] = "agents"
    with_settings: ClassVar[tuple[str, ...]] = (
        PROGRAM, GUEST, DIALOGUE, "compacting_agent", "delegating_agent", "reading_agent", "recent_agent",
        "retrying_agent", "synthesis_agent", "tree_agent", "counterfactual_agent",
    )  # fmt: skip

    use: str = Field(
        "tool_agent",
        description="An agent (agentrl list agents), or ./task.py:MyAgent. `program: [cmd, ...]` in its place starts "
        "an agent program for each episode (docs/programs.md).",
    )
    system: str | None = Field(None, description="System prompt.")
    max_turns: int = Field(10, gt=0, description="Maximum number of model turns; a longer episode is truncated.")
    describe_tools: bool = Field(
        True, description="Describe the tools in the prompt; false for a model that knows them from demonstrations."
    )
    format: FormatSettings = Field(default_factory=FormatSettings, description="How tool calls are written.")
    history: Literal["as_sampled", "as_template"] | LastImagesSettings = Field(
        "as_sampled",
        description="What earlier turns look like in the next prompt. as_sampled: their own tokens. as_template: each "
        "prompt is rendered whole by the chat template, which may drop earlier thoughts; a branch starts where the "
        "tokens differ. {last_images: N}: as_sampled, and only the last N images are shown.",
    )

    state: StateSettings | None = Field(
        None,
        description="What names the state that a turn acts on, for credit that compares turns at equal states (gigpo, "
        "gagpo); default: state_key() of the agent and the tools.",
    )

    @property
    def replies(self) -> Literal["as_sampled", "as_template"]:
        """Form of earlier replies in the next prompt."""
        return "as_sampled" if isinstance(self.history, LastImagesSettings) else self.history

    @property
    def last_images(self) -> int | None:
        """Number of images that prompts show, besides those of the task; None: all."""
        return self.history.last_images if isinstance(self.history, LastImagesSettings) else None

    @property
    def is_program(self) -> bool:
        """True if the agent is a program, which brings its own system prompt and tools."""
        return self.use in (PROGRAM, GUEST)

    @property
    def talks_with(self) -> str | None:
        """Name of the auxiliary policy that a dialogue agent needs, else None."""
        return str(self.settings.get("policy", "user")) if self.use == DIALOGUE else None

    @property
    def needs_sandbox(self) -> bool:
        """True if the agent itself runs in the episode's sandbox."""
        return self.is_program and self.settings.get("where") == "sandbox"

    @model_validator(mode="after")
    def _program_says_its_own(self) -> Self:
        if self.is_program and self.system is not None:
            raise ValueError("'system' does not reach a program, which says its own system prompt")
        if self.is_program and self.history != "as_sampled":
            raise ValueError("'history' does not reach a program, which sends its own history")
        if self.is_program and self.state is not None:
            raise ValueError("'state' does not reach a program, whose turns have no state: use credit without states")
        return self

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A name, or a name with its settings; a program with its settings; without a name, the default agent."""
        if isinstance(value, dict) and isinstance(value.get("program"), list):
            rest = {key: item for key, item in value.items() if key != "program"}
            if rest.get("where") == "sandbox":
                named = [part for part in value["program"] if isinstance(part, str) and part.startswith(RELATIVE)]
                rest["files"] = [*named, *(rest.get("files") or ())]
            return {**rest, "use": PROGRAM, "command": value["program"]}
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


class EarlierSelves(Section):
    """Past snapshots of the trained policy, as a `checkpoint` setting."""

    every: int = Field(gt=0, description="One is kept of the policy before training, and after every so many updates.")
    last: int = Field(5, gt=0, description="How many play, the newest ones; 1: only the newest.")

    def at(self, iteration: int) -> list[int]:
        """Returns the iterations of the snapshots that play with the policy of `iteration`, oldest first."""
        newest = iteration // self.every
        return [number * self.every for number in range(max(0, newest + 1 - self.last), newest + 1)]


class PolicySettings(Section):
    """One entry of `policies`: an auxiliary policy next to the main one. It is frozen unless `train` is set."""

    engine: EngineSettings | None = Field(
        None, description="An API or a served model (openai), or your own engine; with `checkpoint`, where it runs."
    )
    checkpoint: Annotated[str | EarlierSelves | None, NAMES_FILE] = Field(
        None,
        description="Frozen weights: a run (its newest checkpoint), a checkpoint, a model folder, or OWNER/NAME of the "
        "Hugging Face Hub. {every: N}: earlier selves of the policy that trains.",
    )
    revision: str | None = Field(None, description=REVISION)
    script: str | None = Field(None, description="Name of a script (under `scripts`) that speaks.")
    lora: LoraSettings | None = Field(
        None, description="With `train`: adapters of its own, on the model that the training starts from."
    )
    train: bool = Field(False, description="Trains together with the policy, with the settings of the section `train`.")
    outcome: dict[str, float] | None = Field(
        None,
        min_length=1,
        description="With `train`: its outcome, as weights of reward components; default: the episode's reward.",
    )
    sampling: SamplingSettings | None = Field(None, description="Its sampling parameters; default: the recipe's.")

    @property
    def launches_servers(self) -> bool:
        """True if opening the policy starts a server."""
        return self.engine is not None and self.engine.starts_servers

    @property
    def selves(self) -> EarlierSelves | None:
        """The settings of past snapshots; None: not self-play."""
        return self.checkpoint if isinstance(self.checkpoint, EarlierSelves) else None

    @model_validator(mode="after")
    def _trains_adapters(self) -> Self:
        if self.train and self.lora is None:
            raise ValueError("'train' needs adapters: lora: {rank: 16}; a second whole model is not trained")
        if self.lora is not None and not self.train:
            raise ValueError("'lora' are adapters that train: add train: true, or name frozen weights: checkpoint")
        if self.outcome is not None and not self.train:
            raise ValueError("'outcome' is what a policy trains on: add lora and train: true")
        given = {"engine": self.engine, "checkpoint": self.checkpoint, "script": self.script}
        beside = [name for name, value in given.items() if value is not None]
        if self.revision is not None and not isinstance(self.checkpoint, str):
            raise ValueError("'revision' is of a name of the Hugging Face Hub: give it as 'checkpoint'")
        if self.train and beside:
            raise ValueError(f"a policy that trains is the recipe's model with adapters: remove '{beside[0]}'")
        return self

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.train:
            return self
        weights = "any" if self.engine is None else self.engine.weights
        if self.script is not None and (self.engine is not None or self.checkpoint is not None):
            raise ValueError("'script' speaks alone: remove 'engine' and 'checkpoint'")
        if self.script is None and self.engine is None and self.checkpoint is None:
            raise ValueError("nobody speaks: give 'engine', 'checkpoint', 'script', or 'lora' and train: true")
        if weights == "recipe" and self.checkpoint is None:
            raise ValueError("'engine' runs weights here: give 'checkpoint', or {use: openai, ...} for a served model")
        if weights == "own" and self.checkpoint is not None:
            raise ValueError("an API has weights of its own: remove 'checkpoint'")
        if self.selves is not None and self.engine is not None:
            raise ValueError("earlier selves speak in this process: remove 'engine'")
        return self
