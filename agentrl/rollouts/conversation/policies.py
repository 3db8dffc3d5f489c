"""The policies that speak in the contexts of an episode: the main one and auxiliary ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import msgspec

from agentrl.chat.renderer import Renderer
from agentrl.chat.thread import Prompt
from agentrl.rollouts.conversation.state import SessionMisused
from agentrl.types.engine import Completion, Engine, Sampling
from agentrl.types.episode import Branch, Drift, VersionSpan
from agentrl.types.errors import RecipeError
from agentrl.types.recording import Recording
from agentrl.types.trajectory import Trajectory

SELF = "self"
"""Policy name of contexts in which the policy speaks without training."""

TEXT_ONLY = Completion(token_ids=[], logprobs=[], finish="stop", versions=[])
"""Placeholder in the trajectory for a reply that is recorded as text only."""


def _nothing(prompt: Sequence[int]) -> int:
    return 0


@dataclass(frozen=True)
class EpisodePolicy:
    """Policy that speaks in conversations, with its engine and renderer.

    One of this class is auxiliary and frozen. Its tokens may be those of another tokenizer, so its replies are recorded
    as text only.

    Attributes:
        name: in the recipe.
        version: for a past version of the policy, the update after which it was taken.
        recorded: whether its replies are recorded token by token.
        trains: whether its replies train.
        further: whether it trains beside the main policy.
    """

    name: str
    engine: Engine
    renderer: Renderer
    sampling: Sampling
    version: int | None = None

    recorded: ClassVar[bool] = False
    trains: ClassVar[bool] = False
    further: ClassVar[bool] = False

    @property
    def owner(self) -> str:
        """Owner of the engine, for its errors."""
        return f"policies.{self.name}: "

    def room(self, prompt: Sequence[int]) -> int:
        """Returns the number of tokens that a prompt must leave free, besides the reply."""
        return 0

    def stamped(self, completion: Completion) -> Completion:
        """Returns a completion with the versions to record."""
        return completion

    def trajectory(self, recording: Recording) -> Trajectory:
        """Returns the trajectory of its prompts and replies."""
        return Trajectory()

    def node(self, recording: Recording, own: int, last: int) -> int:
        """Returns the node of a reply in the recording.

        Args:
            own: its node in the trajectory of the speaker.
            last: node in the recording of the conversation's reply before it.
        """
        return recording.trajectory.append_sampled(last, TEXT_ONLY, trained=False)

    def check_begins(self, begin: str, episode: str) -> None:
        """Checks that the engine can continue a reply.

        Raises:
            SessionMisused: it answers messages.
        """
        if not self.engine.continues:
            raise SessionMisused(
                f"{self.owner}{self.engine.name} answers messages, and cannot continue a reply that begins with "
                f"{begin[:60]!r}",
                place=f"episode {episode}",
                remedy="take an engine that samples from tokens: torch or vllm",
            )

    def fork(self, fork: Branch | Drift | None) -> Branch | Drift | None:
        """Returns the fork to record for a prompt: only a deliberate one, because its tokens are not recorded."""
        return msgspec.structs.replace(fork, at_token=0) if isinstance(fork, Branch) else None

    def untrained(self, renderer: Renderer, sampling: Sampling) -> EpisodePolicy:
        """Returns the same policy where its replies do not train, with a renderer for other tools."""
        return EpisodePolicy(SELF, self.engine, renderer, sampling, self.version)


class RecordedPolicy(EpisodePolicy):
    """The main policy where it does not train. Its replies are recorded token by token."""

    recorded = True

    def trajectory(self, recording: Recording) -> Trajectory:
        """Returns the episode's trajectory."""
        return recording.trajectory

    def node(self, recording: Recording, own: int, last: int) -> int:
        """Returns the node of a reply, which is in the recording."""
        return own

    def fork(self, fork: Branch | Drift | None) -> Branch | Drift | None:
        """Returns the fork."""
        return fork

    def untrained(self, renderer: Renderer, sampling: Sampling) -> EpisodePolicy:
        """Returns the same policy where its replies do not train."""
        return RecordedPolicy(SELF, self.engine, renderer, sampling, self.version)


class TrainedPolicy(RecordedPolicy):
    """Further policy that trains, on tokens of the main policy's tokenizer."""

    trains = further = True


@dataclass(frozen=True)
class MainPolicy(TrainedPolicy):
    """The main policy.

    Attributes:
        reserve: returns the number of tokens that a prompt must leave free, besides the reply.
        memory: version of the text memory in the episode's prompt; None: the policy has none. Its updates change the
            memory, and not the engine's weights.
    """

    reserve: Callable[[Sequence[int]], int] = _nothing
    memory: int | None = None

    further = False

    @property
    def owner(self) -> str:
        """The empty name: the engine is that of the recipe."""
        return ""

    def room(self, prompt: Sequence[int]) -> int:
        """Returns the result of `reserve`."""
        return self.reserve(prompt)

    def stamped(self, completion: Completion) -> Completion:
        """Returns a completion with the version of the text memory, if there is one."""
        if self.memory is None:
            return completion
        return msgspec.structs.replace(completion, versions=[VersionSpan(self.memory, 0, len(completion.token_ids))])


class Opponents(Protocol):
    """Pool of policies of which one is chosen at the start of each episode."""

    @property
    def ready(self) -> bool:
        """True if the pool has any yet."""
        ...

    async def chosen(self, group: str, iteration: int | None) -> EpisodePolicy:
        """Chooses the opponent of a group's episodes. It stays open until it is released.

        Args:
            iteration: choose as after this update; None: as after the last one.
        """
        ...

    def release(self, speaker: EpisodePolicy) -> None:
        """Releases it after an episode."""
        ...


@dataclass(frozen=True)
class EpisodePolicies:
    """Auxiliary policies of a recipe by name.

    Attributes:
        opponents: pools from which one is chosen at the start of an episode.
        trained: trainable policies, added by a training.
        awaited: names of trainable policies that are not added yet.
        heard: names that some context has used.
    """

    known: Mapping[str, EpisodePolicy] = field(default_factory=dict)
    opponents: Mapping[str, Opponents] = field(default_factory=dict)
    trained: dict[str, EpisodePolicy] = field(default_factory=dict)
    awaited: Sequence[str] = ()
    heard: set[str] = field(default_factory=set)

    async def bound(self, group: str, iteration: int | None) -> EpisodePolicies:
        """Returns the policies of one episode, with chosen opponents."""
        there = {name: each for name, each in self.opponents.items() if each.ready}
        chosen = {name: await each.chosen(group, iteration) for name, each in there.items()}
        return replace(self, known={**self.known, **chosen}) if chosen else self

    def release(self) -> None:
        """Releases the opponents after their episode."""
        for name, opponents in self.opponents.items():
            if name in self.known:
                opponents.release(self.known[name])

    def require(self) -> None:
        """Checks that opponents are available.

        Raises:
            RecipeError: no training has begun.
        """
        for name, opponents in self.opponents.items():
            if not opponents.ready:
                raise without_training(name)

    def find(self, name: str) -> EpisodePolicy | None:
        """Returns a policy by name; None if it does not exist.

        Raises:
            RecipeError: it exists in a training only.
        """
        self.heard.add(name)
        found = self.known.get(name) or self.trained.get(name)
        if found is None and name in (*self.opponents, *self.awaited):
            raise without_training(name)
        return found

    @property
    def unheard(self) -> list[str]:
        """Names that no context has used."""
        return [name for name in (*self.known, *self.opponents, *self.trained) if name not in self.heard]


def without_training(name: str) -> RecipeError:
    """Returns the error for opponents or trainable policies that are requested without a training."""
    return RecipeError(
        "it speaks in a training only, and no reinforcement has begun",
        place=f"policies.{name}",
        remedy=f"name frozen weights: --set policies.{name}='{{checkpoint: RUN/checkpoints/NAME}}'; in demonstrations, "
        "tasks in which it does not speak",
    )


def fork_at(prompt: Prompt, branch: Branch) -> Branch | Drift | None:
    """Returns the fork to record for a prompt. `branch`: the reason, if it was deliberate."""
    if prompt.branched_at is None:
        return None
    if prompt.hides:
        return Branch(turn=0, reason="images", at_token=prompt.branched_at)
    if prompt.drift is not None:
        return Drift(turn=0, kind=prompt.drift, at_token=prompt.branched_at)
    return msgspec.structs.replace(branch, at_token=prompt.branched_at)
