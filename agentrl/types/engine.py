"""What an engine is: token ids in, sampled token ids with their log-probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from agentrl.types.episode import Usage, VersionSpan
from agentrl.types.errors import AgentRLError
from agentrl.types.task import Message, Task


class ContextOverflow(AgentRLError):
    """The prompt leaves no room for a single new token: the episode ends as truncated."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample.

    Attributes:
        temperature: 0 is greedy; the log-probabilities returned are under this temperature (greedy: under 1).
        top_p: nucleus mass. Log-probabilities are those of the renormalised distribution.
        max_tokens: at most so many new tokens.
        stop_token_ids: sampling ends after one of these, which is part of the completion.
        stop: strings: sampling ends after the token that completes one in the text of the completion.
        seed: fixes the draw of this one completion, whatever else is in the batch.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    seed: int | None = None


class NativeCall(msgspec.Struct, frozen=True):
    """A tool call as an API gives it, beside the text. `arguments`: as it wrote them, JSON or not."""

    id: str
    name: str
    arguments: str


class NativeReply(msgspec.Struct, frozen=True):
    """A reply of an API that gives tool calls beside the text."""

    text: str
    calls: list[NativeCall]


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine sampled. `logprobs` is as long as `token_ids`; `usage` is for engines that count and cost.

    Attributes:
        native: of an API that gave calls: these are what is run, under their ids. The tokens hold them as text.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length", "abort"]
    versions: list[VersionSpan]
    usage: Usage | None = None
    native: NativeReply | None = None


class Engine(Protocol):
    """A source of completions.

    An engine that shows tools to its model itself may have a method `use_tools(session, renderer)`: it is told the
    renderer of an episode whose tools are not those of the recipe, after `begin_session` and when they change.

    Every context of an episode is a session of its own. An engine that answers from a script or a record may have a
    method `begin_context(session, task, messages, seed, *, episode, name)`, called in place of `begin_session` for
    contexts beside the main one.

    An engine that takes images has an attribute `sees = True`. If it does not read them off the negative ids in the
    prompt (`types/parts/placeholders.py`), it has a method `use_images(session, read)`, called after `begin_session`:
    `read(blob)` gives the file of an image part of the live conversation. If its model does not take every image, it
    has a method `check_image(data)`, which raises `ImageRefused` (`types/parts/intake.py`): every image is checked
    where it is handed in.

    The live conversation may be rewritten at any time: messages go, and others come in their place. One that is still
    there is the same object. An engine that must know its own may have `replied(session, message)`: it is told the
    message that its last reply has become.

    One whose sessions have a state may have `skip(token_ids, session)`: the reply to this prompt was taken from another
    episode's record.

    Attributes:
        name: for records and messages.
        trainable: whether tokens and log-probabilities are exact, so that episodes may be trained on.
        max_context: prompt and completion together hold at most so many tokens.
        checkpoint_names: whether `update` takes weights under the names of the family's checkpoints, not under those
            that transformers gives them in memory; they differ for mixtures of experts.
        takes_adapters: whether `update` takes a LoRA adapter (`engines/adapters.py`) in place of all weights.
    """

    name: str
    trainable: bool
    max_context: int
    checkpoint_names: bool
    takes_adapters: bool

    async def start(self) -> None:
        """Makes sure that the engine is there and fits the recipe. May be called twice.

        Raises:
            EngineError: it is not, or does not.
        """
        ...

    def begin_session(self, session: str, task: Task, messages: list[Message], seed: int) -> None:
        """Tells that an episode starts.

        Args:
            messages: the live conversation; grows while the episode runs, and agents rewrite it.
            seed: of the episode.
        """
        ...

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        """Samples a continuation.

        Args:
            token_ids: the whole prompt.
            session: episode id; calls of one session share a prefix, and an engine may keep its cache.

        Raises:
            EngineError: the engine failed (not the model): the episode is retried.
        """
        ...

    async def score(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]], at: Sequence[int] | None = None
    ) -> list[list[float]]:
        """Log-probabilities (temperature 1) of each continuation's tokens after the shared `prefix`.

        Args:
            at: continuation k comes after the first `at[k]` (1 or more) tokens of the prefix; default: after all.
        """
        ...

    async def update(self, weights: Any, version: int) -> None:
        """Takes new weights; completions that start afterwards carry `version`."""
        ...

    def end_session(self, session: str) -> None:
        """Drops what is kept for `session`. Never raises."""
        ...

    async def close(self) -> None:
        """Frees everything. May be called twice."""
        ...
