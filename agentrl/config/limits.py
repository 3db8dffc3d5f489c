"""Limits of an episode, and the deadline of each of its stages. Every wait is bounded."""

from __future__ import annotations

from pydantic import Field

from agentrl.config.sections import Section


class Limits(Section):
    """Deadlines and retries. All times are in seconds."""

    episode_s: float = Field(1800, gt=0, description="Whole episode without scoring; after that it is truncated.")
    sandbox_s: float = Field(
        60,
        gt=0,
        description="Starting a sandbox; after that infra_error, retried. An outage of the backend that is shorter "
        "than this costs no attempt: the request is repeated.",
    )
    open_s: float = Field(120, gt=0, description="Tool.open of all tools together; after that user_error.")
    generate_s: float = Field(600, gt=0, description="One completion; after that infra_error, retried.")
    score_s: float = Field(
        300,
        gt=0,
        description="All reward functions of your own together; after that user_error. Each built-in verifier has as "
        "much for itself; after that 0.",
    )
    close_s: float = Field(20, gt=0, description="Closing tools and sandbox.")
    observation_chars: int = Field(
        20_000, gt=0, description="A longer tool result is cut in the middle; the whole result is stored in blobs/."
    )
    image_mb: float = Field(
        8.0, gt=0, description="Size of an image's file, in millions of bytes; a larger one is refused."
    )
    image_pixels: int = Field(25_000_000, gt=0, description="Width times height of an image; a larger one is refused.")
    retries: int = Field(2, ge=0, description="Fresh attempts after an infrastructure failure.")
    backoff_s: float = Field(0.5, ge=0, description="Pause before the first retry; doubles each time.")
    user_errors: int = Field(
        8, ge=0, description="The run stops when more episodes than this failed because of a bug in user code."
    )
    engine_failures: int = Field(
        8,
        gt=0,
        description="The run stops when this many episodes in a row failed because the engine failed or refused.",
    )
    sandbox_failures: int = Field(
        8,
        gt=0,
        description="The run stops when this many episodes in a row failed because their sandboxes failed.",
    )
    service_failures: int = Field(
        8,
        gt=0,
        description="The run stops when this many episodes in a row failed because tools, the agent or rewards raised "
        "InfraError.",
    )
