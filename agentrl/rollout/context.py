"""What the episodes of one run share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentrl.chat.renderer import Renderer
from agentrl.config.limits import Limits
from agentrl.rewards.components import RewardSet
from agentrl.rollout.agent import Agent
from agentrl.rollout.faults.outage import Outage
from agentrl.rollout.information_gain import AnswerScorer
from agentrl.sandbox.task_specs import TaskSpecs
from agentrl.tools.toolset import ToolSet
from agentrl.types.engine import Engine, Sampling
from agentrl.types.sandbox import Backend, SandboxSpec
from agentrl.types.task import Task


def _ignore(*event: object) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True)
class RolloutContext:
    """Everything that episodes of one run share.

    Attributes:
        tools: of the recipe.
        make_agent: a fresh agent for an episode.
        backend: None when no tool needs a sandbox, or where workers with sandboxes of their own play.
        specs: of the sandboxes, by task.
        keyed: whether the state is noted that each turn acts on: credit reads it.
        put_blob: keeps a long output, returns its hash.
        on_failure: is told of every failed attempt, retried or not (a dict for `failures.jsonl`).
        on_stage: is told when an episode enters a stage: (episode id, stage or None when it ended).
        answer_scorer: scores the gold answer before every turn; not used in evaluations and demonstrations.
        outage: how long the backend has been unavailable.
    """

    engine: Engine
    renderer: Renderer
    tools: ToolSet
    make_agent: Callable[[], Agent]
    rewards: RewardSet
    sampling: Sampling
    limits: Limits
    max_turns: int
    seed: int
    system: str | None = None
    backend: Backend | None = None
    specs: TaskSpecs = field(default_factory=lambda: TaskSpecs(SandboxSpec()))
    keyed: bool = True
    put_blob: Callable[[bytes], str] | None = None
    on_failure: Callable[[dict[str, Any]], None] = _ignore
    on_stage: Callable[[str, str | None], None] = _ignore
    answer_scorer: AnswerScorer | None = None
    outage: Outage = field(default_factory=Outage)

    def sandbox_of(self, task: Task) -> SandboxSpec | None:
        """The spec of the sandbox that an episode of the task has; None if it has none.

        Raises:
            TaskError: what the task says of its tools or its sandbox does not fit.
        """
        if self.backend is None:
            return None
        needed = self.rewards.needs_sandbox or any(entry.needs_sandbox for entry in self.tools.part(task))
        return self.specs.of(task) if needed else None
