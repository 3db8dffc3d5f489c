"""Rollout context: objects and settings that the episodes of a run share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentrl.chat.renderer import Renderer
from agentrl.config.limits import Limits
from agentrl.rewards.components import RewardSet
from agentrl.rollouts.agent import Agent
from agentrl.rollouts.conversation.policies import EpisodePolicies
from agentrl.rollouts.conversation.state import Conversations
from agentrl.rollouts.faults.outage import Outage
from agentrl.rollouts.faults.stalls import Stall
from agentrl.rollouts.hindsight import HindsightScorer
from agentrl.rollouts.information_gain import AnswerScorer
from agentrl.rollouts.states.registry import StateRule
from agentrl.sandbox.task_specs import TaskSpecs
from agentrl.tools.toolset import ToolSet
from agentrl.types.engine import Engine, Sampling
from agentrl.types.sandbox import Backend, SandboxSpec
from agentrl.types.task import Task


def _ignore(*event: object) -> None:
    """Default of callbacks: does nothing."""


@dataclass(frozen=True)
class RolloutContext:
    """Objects and settings that the episodes of a run share.

    Attributes:
        tools: the recipe's tools.
        make_agent: makes an agent for an episode.
        backend: sandbox backend; None if no tool needs a sandbox, or if workers run the episodes.
        specs: sandbox specs by task.
        agent_needs_sandbox: whether the agent itself runs in the episode's sandbox.
        states: decides which state a turn has; None: states are not recorded, because nothing reads them.
        put_blob: stores a long output or an image, and returns its hash.
        get_blob: reads a blob by its hash; None: images stay in memory while their episode runs.
        on_failure: receives every failed attempt, retried or not (a dict for `failures.jsonl`).
        on_stall: receives stalls of the event loop of a worker.
        on_stage: called when an episode enters a stage: (episode id, stage; None when the episode ends).
        conversations: the state of the episodes in flight, once their tools are open.
        answer_scorer: scores the gold answer before every turn; unused in evaluations and demonstrations.
        hindsight: scores every turn again once the outcome is known; used in the same episodes.
        outage: tracks outages of the backend.
        speakers: auxiliary policies, for the contexts that name them.
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
    agent_needs_sandbox: bool = False
    states: StateRule | None = field(default_factory=StateRule)
    put_blob: Callable[[bytes], str] | None = None
    get_blob: Callable[[str], bytes] | None = None
    on_failure: Callable[[dict[str, Any]], None] = _ignore
    on_stall: Callable[[Stall], None] = _ignore
    on_stage: Callable[[str, str | None], None] = _ignore
    conversations: Conversations = field(default_factory=Conversations)
    answer_scorer: AnswerScorer | None = None
    hindsight: HindsightScorer | None = None
    outage: Outage = field(default_factory=Outage)
    speakers: EpisodePolicies = field(default_factory=EpisodePolicies)

    def sandbox_of(self, task: Task) -> SandboxSpec | None:
        """Returns the spec of the sandbox for an episode of the task; None if it needs none.

        Raises:
            TaskError: the task's tools or sandbox settings are wrong.
        """
        if self.backend is None:
            return None
        needed = any(entry.needs_sandbox for entry in self.tools.part(task))
        needed = needed or self.rewards.needs_sandbox or self.agent_needs_sandbox
        return self.specs.of(task) if needed else None
