"""Session: the agent's interface to an episode. One per episode attempt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from agentrl.rollouts.conversation.conversation import Conversation, SampledTurns, TurnSource
from agentrl.rollouts.conversation.policies import SELF, EpisodePolicies, EpisodePolicy
from agentrl.rollouts.conversation.state import EpisodeState, SessionMisused
from agentrl.rollouts.conversation.tool_prompt import ToolPrompt
from agentrl.tools.toolset import ToolBox
from agentrl.types import values
from agentrl.types.episode import POLICY, Node, TurnDraft
from agentrl.types.errors import nearest
from agentrl.types.memory import TextMemory
from agentrl.types.task import Message


class Forkable(Protocol):
    """Attempt of a session, which implements forks."""

    @property
    def forks_left(self) -> int:
        """Number of forks left, see `Session.forks_left`."""
        ...

    def fork(self, turn: int | None) -> AbstractAsyncContextManager[Session]:
        """Forks the session, see `Session.fork`."""
        ...


class Session(Conversation):
    """Main conversation of one episode.

    An agent calls `generate`, then `run_tools` or `respond`, until `outcome` is set or a limit ends it. All messages
    and tokens are recorded here; nothing else writes the record. Values from agents and tools are checked here and
    converted to types that a record can hold (`agentrl/types/values.py`).

    Args:
        state: of the episode, shared by its conversations.
        box: its tools.
        speaker: the main policy.
        source: of its turns; default: the policies.
        speakers: auxiliary policies, for other conversations.
        forks: implements `fork`; None: not supported.

    Attributes:
        info: data of the agent for reward functions, as JSON; environments override equal keys.
        memory: the policy's text memory; None: it has none.
    """

    def __init__(
        self,
        state: EpisodeState,
        box: ToolBox,
        speaker: EpisodePolicy,
        source: TurnSource | None = None,
        speakers: EpisodePolicies | None = None,
        forks: Forkable | None = None,
    ) -> None:
        tool_prompt = ToolPrompt(box, speaker.renderer, speaker.sampling)
        box.check()
        super().__init__(state, tool_prompt, speaker, source or SampledTurns())
        self._speakers = speakers or EpisodePolicies()
        self._forks = forks
        self.info: dict[str, Any] = {}
        self.memory: TextMemory | None = None

    @property
    def rng(self) -> random.Random:
        """Random numbers for agents; fixed by the episode's id and the run's seed."""
        return self.state.rng

    def fork(self, turn: int | None = None) -> AbstractAsyncContextManager[Session]:
        """Forks the episode: opens a second session that continues from a turn of this one, for use in `async with`.

        It is an episode of the same group, which names this one as its parent: the same conversation, token for token,
        and separate tools in the same state. It is scored and recorded when the block ends. A limit that it reaches
        ends only the block; any other exception propagates, and ends the episode with all of its forks.

        Args:
            turn: the first turn that is sampled again; None: the next one. Also of a fork whose block has ended.

        Raises:
            ForkRefused: it cannot be forked: a tool forbids it, the turn does not exist, or it is not a rollout.
            ReplayDiffers: calls that had to run again gave other results.
        """
        if self._forks is None:
            raise SessionMisused(
                "this session cannot be forked", place=f"episode {self.id}", remedy="run it in a rollout"
            )
        return self._forks.fork(turn)

    def sampled(self, turn: TurnDraft) -> Node | None:
        """Returns the tokens of a turn, with their log-probabilities if the engine returns them.

        None if it was not sampled here: a fork takes turns of its parent, and other policies have no tokens.
        """
        node = self.state.recording.trajectory.nodes[turn.node]
        return node if node.kind == "sampled" else None

    @property
    def split(self) -> str:
        """Split of the episode: `train`, `eval`, `rollout` or `demo`. An agent may sample more in evaluations."""
        return self.state.split

    @property
    def forks_left(self) -> int:
        """Number of forks left; 0 in an evaluation, a demonstration and an episode that resumes a stored one."""
        return 0 if self._forks is None else self._forks.forks_left

    def take(self, opening: list[Message], tools: list[dict[str, Any]] | None, seconds: float) -> None:
        """Takes the opening and the tools of a program's requests, and the time that its replies took."""
        self.state.seconds["generate"] = seconds
        self.opening = opening or self.opening
        self._tool_prompt.definitions = tools if tools is not None else self.definitions

    def context(
        self,
        name: str,
        messages: list[Message],
        *,
        tools: Sequence[str] | None = None,
        role: str | None = None,
        policy: str = POLICY,
    ) -> Conversation:
        """Opens another conversation of this episode: a sub-agent, a critic, a second player.

        Its turns count in the same limits and are recorded, rewarded and trained with the others. Conversations may run
        concurrently.

        Args:
            name: unique among the episode's contexts.
            tools: names of its callable tools; None: all, and none for another policy.
            role: speaking role, for credit by role; default: the name.
            policy: speaking policy: `policy`, the main one; `self`, the main one where it does not train; or a name
                under `policies` in the recipe.

        Raises:
            SessionMisused: the name is taken, or a tool or the policy does not exist.
        """
        speaker = self.speaker if policy == POLICY else self._speaker_of(name, policy)
        own = self._tool_prompt
        prompt = own.part(tools) if speaker is self.speaker else own.of_policy(speaker, tools)
        opened = Conversation(self.state, prompt, speaker, self.source, values.text(name), values.text(role or name))
        opened.begin(messages)
        opened.begin_engine()
        return opened

    def _speaker_of(self, context: str, policy: str) -> EpisodePolicy:
        """Returns the policy of a context that is not the main one, or does not train."""
        speaker = self._speakers.find(policy)
        if speaker is None and policy == SELF:
            return self.speaker.untrained(self.speaker.renderer, self.speaker.sampling)
        if speaker is None:
            known = [POLICY, SELF, *self._speakers.known, *self._speakers.trained]
            raise SessionMisused(
                f"context {context!r} names the policy {policy!r}, and the run has {', '.join(map(repr, known))}",
                place=f"episode {self.id}",
                remedy=f"an entry {policy!r} under 'policies' in the recipe, or {nearest(policy, known)}",
            )
        return speaker
