"""The contract of engines: token ids in, sampled token ids with their log-probabilities out."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import msgspec

from agentrl.types.episode import Usage, VersionSpan, gap_in
from agentrl.types.errors import AgentRLError, DeadPolicy, EngineError, RecipeError
from agentrl.types.memory import TextMemory
from agentrl.types.task import Message, Task


class ContextOverflow(AgentRLError):
    """The prompt leaves no room for a single new token: the episode ends as truncated."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters.

    Attributes:
        temperature: 0 is greedy; the log-probabilities returned are under this temperature (greedy: under 1).
        top_p: nucleus mass. Log-probabilities are those of the renormalised distribution.
        max_tokens: maximum number of new tokens.
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
    """Tool call that an API returns apart from the text. `arguments`: unparsed, JSON or not."""

    id: str
    name: str
    arguments: str


class NativeReply(msgspec.Struct, frozen=True):
    """Reply of an API that returns tool calls apart from the text."""

    text: str
    calls: list[NativeCall]


Finish = Literal["stop", "length", "abort"]


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Sampled completion. `logprobs` is as long as `token_ids`; `usage` is for engines that count tokens and cost.

    Callers use `sample`, which checks it.

    Attributes:
        native: reply of an API that returned calls: these are run, under their ids. The tokens hold them as text.
        queue_s: seconds in which the request waited for its first computation; None: the engine does not know.
        decode_s: seconds from there to the last token, its prompt included; None: the engine does not know.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish: Finish
    versions: list[VersionSpan]
    usage: Usage | None = None
    native: NativeReply | None = None
    queue_s: float | None = None
    decode_s: float | None = None


class Engine(ABC):
    """Source of completions. A subclass defines `generate`; all else has a default, and what is a flag is off.

    Its settings in a recipe are the parameters of its constructor, or its pydantic model `Settings` (docs/engines.md).
    Each context of an episode is a session of its own. The live conversation may be rewritten at any time: messages are
    removed and replaced. A message that remains is the same object.

    Attributes:
        name: for records and messages.
        trainable: whether tokens and log-probabilities are exact, so that episodes may be trained on.
        max_context: maximum number of tokens of prompt and completion together; by default there is none.
        weights: what it samples: `recipe`: the recipe's model; `own`: weights of its own, as an API; `any`: either.
        sees: whether prompts may contain images.
        continues: whether it samples after any tokens (default: yes), so that an agent can begin a reply.
        reads_messages: whether it answers from the conversation, so that workers cannot reach it through the driver.
        script_name: the recipe's script that it plays; workers play it themselves.
        one_by_one: why it computes completions one by one, for a note at the start.
        takes_weights: whether `update` has an effect (default: yes), which is then checked.
        takes_changes: whether `update` takes `ChangedWeights` now, in place of all weights.
        takes_adapters: whether `update` takes an `Adapter` in place of all weights.
        checkpoint_names: whether `update` takes weights under the names of the family's checkpoints, not under those
            that transformers gives them in memory; they differ for mixtures of experts.
        holds_weights: whether each instance has weights of its own in this process: several policies at a time.
        shares_gpu: whether it and the trainer take turns on a GPU: weights for it are kept off the GPU.
        spreads_scores: whether several calls of `score` at the same time run on several servers.
        rounds_apart: whether log-probabilities in half precision differ from the trainer's, which computes otherwise.
        memory: text memory of the policy that it samples, which stands in the prompt of episodes; None: it has none.
    """

    Settings: ClassVar[type[Any]]
    weights: ClassVar[Literal["recipe", "own", "any"]] = "any"
    continues: ClassVar[bool] = True
    reads_messages: ClassVar[bool] = False
    takes_weights: ClassVar[bool] = True
    holds_weights: ClassVar[bool] = False
    spreads_scores: ClassVar[bool] = False
    rounds_apart: ClassVar[bool] = False
    name: str = "engine"
    trainable: bool = False
    max_context: int = 1_000_000_000
    sees: bool = False
    script_name: str = ""
    one_by_one: str | None = None
    takes_changes: bool = False
    takes_adapters: bool = False
    checkpoint_names: bool = False
    shares_gpu: bool = False
    memory: TextMemory | None = None

    # The class, for a recipe that names it. `settings`: its own, checked; `recipe`: an `agentrl.config.recipe.Recipe`.

    @classmethod
    def starts_servers(cls, settings: Any) -> bool:
        """Returns True if opening the engine starts servers. Default: no."""
        return False

    @classmethod
    def sees_images(cls, recipe: Any) -> bool:
        """Returns False if the engine will refuse images, with the recipe's model. Default: it is not known, True."""
        return True

    @classmethod
    def check(cls, settings: Any, recipe: Any) -> None:
        """Raises RecipeError if the settings do not fit the rest of the recipe. Default: they do."""

    @classmethod
    def check_training(cls, settings: Any, recipe: Any) -> None:
        """Raises RecipeError if the recipe cannot be trained with the engine. Default: it can."""

    @classmethod
    def check_machine(cls, settings: Any, recipe: Any) -> None:
        """Raises EngineError, before a training, if this machine lacks what the engine starts. Default: nothing."""

    @classmethod
    def open(cls, opening: Any) -> Self:
        """Makes the engine of a recipe. Default: the constructor, with the settings and what it takes by name.

        Args:
            opening: what the recipe gives, an `agentrl.engines.opening.EngineOpening`.
        """
        return cls(**opening.arguments)

    @classmethod
    def serve(cls, opening: Any) -> Any:
        """Starts the servers (`agentrl.engines.vllm.launch.Servers`) that engines of the recipe will attach to.

        Raises:
            RecipeError: the engine needs no server, the default.
        """
        use = opening.recipe.engine.use
        raise RecipeError(f"engine.use is {use!r}, which needs no server", place="engine", remedy="--set engine=vllm")

    # The engine as a whole.

    async def start(self) -> None:
        """Raises EngineError if the engine is unavailable or does not fit the recipe. May be called twice."""

    async def refuse_trained(self) -> None:
        """Raises EngineError if its weights are not the recipe's model but those of a training. Default: they are."""

    def called(self, who: str) -> None:
        """Receives the name of its owner, for messages: `policies.NAME`."""

    def require(self, ids: Iterable[str]) -> None:
        """Receives the ids of the planned episodes before the first one. Raises StoreError if it cannot play one."""

    async def attachable(self) -> Sequence[str] | None:
        """Returns the URLs of the servers that workers attach engines of their own to (`EngineOpening.urls`).

        Raises:
            EngineError: no server can be used.

        Returns:
            None, the default: workers reach the engine through the driver.
        """
        return None

    def counts(self) -> dict[str, Any]:
        """Returns what it does now, as JSON values, for the heartbeat of a run; from any thread. Default: its name."""
        return {"name": self.name}

    async def close(self) -> None:
        """Frees all resources. May be called twice."""

    # A session.

    def begin_session(self, session: str, task: Task, messages: list[Message], seed: int) -> None:
        """Announces the start of an episode.

        Args:
            messages: the live conversation; grows while the episode runs, and agents rewrite it.
            seed: of the episode.
        """

    def begin_context(
        self, session: str, task: Task, messages: list[Message], seed: int, *, episode: str, name: str
    ) -> None:
        """Announces a context of an episode other than the main one. Default: `begin_session`."""
        self.begin_session(session, task, messages, seed)

    def use_tools(self, session: str, renderer: Any) -> None:
        """Receives the renderer of an episode whose tools differ from the recipe's, and on each change.

        For engines that show tools to their model themselves: `renderer.parser.functions` has them.
        """

    def begin_reply(self, session: str, text: str) -> None:
        """Receives the text that the next reply begins with: the prompt ends with its tokens.

        For engines that do not sample after these tokens.
        """

    def use_images(self, session: str, read: Callable[[str], bytes]) -> None:
        """Receives a function that returns the file of an image part of the conversation, by its blob.

        For engines that do not read images off the negative ids in the prompt (`types/parts/placeholders.py`).
        """

    def check_image(self, data: bytes) -> None:
        """Raises ImageRefused, where an image is handed in, if the model does not take it. Default: it does."""

    @abstractmethod
    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        """Samples a continuation.

        Args:
            token_ids: the whole prompt.
            session: episode id; calls of one session share a prefix, and an engine may keep its cache.

        Raises:
            EngineError: the engine failed (not the model): the episode is retried.
        """

    def replied(self, session: str, message: Message) -> None:
        """Receives the message of the conversation that the last reply became."""

    async def skip(self, token_ids: Sequence[int], session: str) -> None:
        """Advances a session with state: the reply to this prompt was taken from a record."""

    def end_session(self, session: str) -> None:
        """Drops the state of `session`. Never raises."""

    # The model.

    async def score(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]], at: Sequence[int] | None = None
    ) -> list[list[float]]:
        """Log-probabilities (temperature 1) of each continuation's tokens after the shared `prefix`.

        Args:
            at: continuation k comes after the first `at[k]` (1 or more) tokens of the prefix; default: after all.

        Raises:
            TypeError: the engine cannot score, the default.
        """
        raise TypeError(f"the {self.name} engine cannot score: use torch or vllm")

    async def update(self, weights: Any, version: int) -> None:
        """Loads new weights; completions that start afterwards carry `version`.

        Raises:
            TypeError: the engine takes no weights, the default.
        """
        raise TypeError(f"the {self.name} engine cannot be trained: use torch or vllm")

    async def rest(self) -> None:
        """Frees what the trainer needs, until the next update."""


class Adapter(msgspec.Struct, frozen=True):
    """A LoRA adapter, which `update` of an engine with `takes_adapters` accepts instead of all weights.

    Attributes:
        save: writes the adapter to a folder in peft's format.
        base: returns the base weights under their checkpoint names; called only if a server has other weights.
    """

    save: Callable[[Path], None]
    base: Callable[[], Awaitable[Mapping[str, Any]]]


class ChangedWeights(dict[str, Any]):
    """The weights that a training changes, which `update` of an engine with `takes_changes` accepts: others stay."""


class NoAdapters(EngineError):
    """The engine does not accept adapters, or not this one. The trainer then sends merged weights."""


async def sample(engine: Engine, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
    """Samples a completion and checks it. Records hold only completions from here.

    Raises:
        EngineError: the engine failed, or its result is not a valid completion.
        DeadPolicy: its log-probabilities are not finite.
    """
    given = await engine.generate(token_ids, sampling, session)
    if (fault := next(_faults(given), "")) != "":
        raise EngineError(
            f"what the engine gave is no completion: {fault}",
            place=engine.name,
            remedy="mend the engine: `Completion` in agentrl/types/engine.py says what it gives",
        )
    _finite(given.logprobs, engine)
    return _rounded(given) if max(given.logprobs, default=0.0) > 0.0 else given


async def score(
    engine: Engine, prefix: Sequence[int], continuations: Sequence[Sequence[int]], at: Sequence[int] | None = None
) -> list[list[float]]:
    """Returns the log-probabilities of continuations, see `Engine.score`.

    Raises:
        EngineError: the engine failed, or did not return one number per token.
        DeadPolicy: they are not finite.
    """
    given = await engine.score(prefix, continuations, at)
    wanted = [len(each) for each in continuations]
    if (
        not isinstance(given, list)
        or any(not isinstance(each, list) or not _are_numbers(each) for each in given)
        or [len(each) for each in given] != wanted
    ):
        raise EngineError(
            f"what the engine gave are no scores of {len(wanted)} continuations with a number for each of their tokens",
            place=engine.name,
        )
    for each in given:
        _finite(each, engine)
    return given


def _faults(given: Any) -> Iterator[str]:
    """Yields the faults of a completion: types of its parts first, then values."""
    if not isinstance(given, Completion):
        yield f"it is of type {type(given).__name__}"
        return
    ids, logprobs, versions, usage = given.token_ids, given.logprobs, given.versions, given.usage
    if not isinstance(ids, list) or not _are(ids, int):
        yield "its tokens are no list of integers"
    elif ids and not 0 <= min(ids) <= max(ids) < MOST_TOKENS:
        yield f"it has the token {min(ids) if min(ids) < 0 else max(ids)}"
    elif not isinstance(logprobs, list) or not _are_numbers(logprobs):
        yield "its log-probabilities are no list of numbers"
    elif len(logprobs) != len(ids):
        yield f"it has {len(logprobs)} log-probabilities for {len(ids)} tokens"
    elif logprobs and ROUNDING < max(logprobs) < math.inf:
        yield f"it has the log-probability {max(logprobs):g}, and none is above 0"
    elif not isinstance(versions, list) or not _are(versions, VersionSpan):
        yield "its versions are no list of VersionSpan"
    elif not all([_are(msgspec.structs.astuple(span), int) and 0 <= span.version < _MOST for span in versions]):
        yield "its versions are no numbers from 0 on"
    elif (gap := gap_in(versions, len(ids))) is not None:
        yield gap
    elif given.finish not in _FINISHES:
        yield f"it finished by {given.finish!r}, and not by {', '.join(map(repr, _FINISHES))}"
    elif usage is not None and not _is_usage(usage):
        yield f"its usage is {usage!r}"
    elif not (_is_duration(given.queue_s) and _is_duration(given.decode_s)):
        yield f"it waited {given.queue_s!r} and was computed in {given.decode_s!r} seconds"
    elif given.native is not None and not _is_native(given.native):
        yield "its calls beside the text are no NativeReply of texts"


ROUNDING = 1e-3
"""Log-probabilities up to this much above 0 are rounded to 0."""

MOST_TOKENS = 1 << 31
"""Exclusive upper bound of token ids."""

_MOST = 1 << 63  # counts are below this, which the index of a run can hold
_LARGEST = sys.float_info.max
_FINISHES: tuple[str, ...] = get_args(Finish)


def _are(values: Sequence[Any], *kinds: type) -> bool:
    return set(map(type, values)).issubset(kinds)  # exact types: a bool is not a token id


def _are_numbers(values: Sequence[Any]) -> bool:
    """Floats, and whole numbers that a float can hold."""
    if (kinds := set(map(type, values))) == {float}:
        return True
    return kinds.issubset((int, float)) and all(abs(value) <= _LARGEST for value in values if type(value) is int)


def _is_usage(usage: Any) -> bool:
    if not isinstance(usage, Usage):
        return False
    counts, cost = (usage.prompt_tokens, usage.completion_tokens), usage.cost
    return (
        _are(counts, int) and _are_numbers([cost]) and 0 <= min(counts) <= max(counts) < _MOST and 0 <= cost < math.inf
    )


def _is_duration(seconds: Any) -> bool:
    return seconds is None or (_are_numbers([seconds]) and 0 <= seconds < math.inf)


def _is_native(native: Any) -> bool:
    if not isinstance(native, NativeReply) or not isinstance(native.calls, list):
        return False
    if not all(isinstance(call, NativeCall) for call in native.calls):
        return False
    return _are([native.text, *(text for call in native.calls for text in msgspec.structs.astuple(call))], str)


def _finite(values: list[float], engine: Engine) -> list[float]:
    """Returns the values after checking that all are finite. (One check of the sum: it is finite only if all are, or
    overflows.)
    """
    if not math.isfinite(sum(values)) and not all(map(math.isfinite, values)):
        raise DeadPolicy(f"the log-probabilities of tokens are not finite: {values[:8]}", place=engine.name)
    return values


def _rounded(given: Completion) -> Completion:
    return msgspec.structs.replace(given, logprobs=[min(0.0, value) for value in given.logprobs])
