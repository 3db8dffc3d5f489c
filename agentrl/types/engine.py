"""Engine protocol: token ids in, sampled token ids with their log-probabilities out."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol, get_args

import msgspec

from agentrl.types.episode import Usage, VersionSpan, gap_in
from agentrl.types.errors import AgentRLError, DeadPolicy, EngineError
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
    """

    token_ids: list[int]
    logprobs: list[float]
    finish: Finish
    versions: list[VersionSpan]
    usage: Usage | None = None
    native: NativeReply | None = None


class Engine(Protocol):
    """Source of completions.

    An engine that shows tools to its model itself may have a method `use_tools(session, renderer)`, called after
    `begin_session` and on each change with the renderer of an episode whose tools differ from the recipe's.

    Each context of an episode is a separate session. An engine that answers from a script or a record may have a
    method `begin_context(session, task, messages, seed, *, episode, name)`, called in place of `begin_session` for
    contexts other than the main one.

    An engine that takes images has an attribute `sees = True`. If it does not read them off the negative ids in the
    prompt (`types/parts/placeholders.py`), it has a method `use_images(session, read)`, called after `begin_session`:
    `read(blob)` returns the file of an image part of the live conversation. If its model does not take every image, it
    has a method `check_image(data)`, which raises `ImageRefused` (`types/parts/intake.py`): every image is checked
    where it is handed in.

    The live conversation may be rewritten at any time: messages are removed and replaced. A message that remains is
    the same object. An engine that must recognise its own messages may have `replied(session, message)`, called with
    the message that its last reply became.

    An engine with stateful sessions may have `skip(token_ids, session)`: the reply to this prompt was taken from
    another episode's record.

    Attributes:
        name: for records and messages.
        trainable: whether tokens and log-probabilities are exact, so that episodes may be trained on.
        max_context: maximum number of tokens of prompt and completion together.
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
        """Checks that the engine is available and fits the recipe. May be called twice.

        Raises:
            EngineError: it is unavailable, or does not fit.
        """
        ...

    def begin_session(self, session: str, task: Task, messages: list[Message], seed: int) -> None:
        """Announces the start of an episode.

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
        """Loads new weights; completions that start afterwards carry `version`."""
        ...

    def end_session(self, session: str) -> None:
        """Drops the state of `session`. Never raises."""
        ...

    async def close(self) -> None:
        """Frees all resources. May be called twice."""
        ...


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
            place=str(getattr(engine, "name", type(engine).__name__)),
            remedy="mend the engine: `Completion` in agentrl/types/engine.py says what it gives",
        )
    return _rounded(given, _finite(given.logprobs, engine))


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
            place=str(getattr(engine, "name", type(engine).__name__)),
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
        name = getattr(engine, "name", type(engine).__name__)
        raise DeadPolicy(f"the log-probabilities of tokens are not finite: {values[:8]}", place=str(name))
    return values


def _rounded(given: Completion, logprobs: list[float]) -> Completion:
    if max(logprobs, default=0.0) <= 0.0:
        return given
    return msgspec.structs.replace(given, logprobs=[min(0.0, value) for value in logprobs])
