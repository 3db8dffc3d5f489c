"""Limits of an episode and the deadline of every stage. Nothing waits without an end."""

from __future__ import annotations

from pydantic import Field

from agentrl.config.sections import Section


class Limits(Section):
    """Deadlines and retries. All times in seconds."""

    episode_s: float = Field(1800, gt=0, description="Whole episode without scoring; beyond it: truncated.")
    sandbox_s: float = Field(
        60,
        gt=0,
        description="Getting a sandbox; beyond it: infra_error, retried. As long a backend may be unavailable before "
        "that costs an attempt: it is asked again meanwhile.",
    )
    open_s: float = Field(120, gt=0, description="Tool.open of all tools together; beyond it: user_error.")
    generate_s: float = Field(600, gt=0, description="One completion; beyond it: infra_error, retried.")
    score_s: float = Field(300, gt=0, description="All reward components; beyond it: user_error.")
    close_s: float = Field(20, gt=0, description="Closing tools and sandbox.")
    observation_chars: int = Field(
        20_000, gt=0, description="A tool result is cut in its middle beyond this; the whole goes to blobs/."
    )
    retries: int = Field(2, ge=0, description="Fresh attempts after an infrastructure failure.")
    backoff_s: float = Field(0.5, ge=0, description="Pause before the first retry; doubles each time.")
    user_errors: int = Field(
        8, ge=0, description="The run stops when more episodes than this failed by a bug in user code."
    )
    engine_failures: int = Field(
        8,
        gt=0,
        description="The run stops when so many episodes in a row were given up because the engine failed, or refused.",
    )
    sandbox_failures: int = Field(
        8,
        gt=0,
        description="The run stops when so many episodes in a row were given up because their sandboxes failed.",
    )
    service_failures: int = Field(
        8,
        gt=0,
        description="The run stops when so many episodes in a row were given up because tools, the agent or rewards "
        "raised InfraError.",
    )
