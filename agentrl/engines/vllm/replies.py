"""Reply types of vLLM servers, and their conversion to completions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from agentrl.types.engine import Completion
from agentrl.types.episode import VersionSpan
from agentrl.types.errors import DeadPolicy, EngineError


class _TokenLogprob(msgspec.Struct, gc=False):  # one per token: too many for the garbage collector
    token_id: int
    logprob: float | None


class _Content(msgspec.Struct):
    content: list[_TokenLogprob] | None = None


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


class RequestTimes(msgspec.Struct):
    """Times of a request in milliseconds, of a server that reports them (vLLM: `--enable-per-request-metrics`).

    Attributes:
        generation_time_ms: from the first token to the last.
    """

    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None

    def onto(self, completion: Completion) -> Completion:
        """Returns the completion with these times."""
        queue, first, rest = self.queue_time_ms, self.time_to_first_token_ms, self.generation_time_ms
        return msgspec.structs.replace(
            completion,
            queue_s=None if queue is None else queue / 1000,
            decode_s=None if first is None or rest is None else (first + rest) / 1000,
        )


class NativeChoice(msgspec.Struct):
    """A completion of the native endpoint."""

    token_ids: list[int] | None = None
    logprobs: _Content | None = None
    finish_reason: str | None = None
    weight_versions: list[_Span] | None = None


class NativeResponse(msgspec.Struct):
    """A reply of the native endpoint."""

    choices: list[NativeChoice]
    metrics: RequestTimes | None = None


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []


class CompletionsChoice(msgspec.Struct):
    """A completion of `/v1/completions`."""

    index: int = 0
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class CompletionsResponse(msgspec.Struct):
    """A reply of `/v1/completions`."""

    choices: list[CompletionsChoice]
    metrics: RequestTimes | None = None


def from_native(choice: NativeChoice, version: int) -> Completion:
    """The completion in a reply of the native endpoint.

    Args:
        version: version of the weights if the server reports none or was never updated.

    Raises:
        DeadPolicy: log-probabilities are not finite.
        EngineError: tokens and log-probabilities do not match.
    """
    content = (choice.logprobs.content if choice.logprobs else None) or []
    ids = choice.token_ids or []
    if [entry.token_id for entry in content] != ids:
        raise EngineError("the server's log-probabilities do not belong to the tokens that it sampled")
    completion = _completion(ids, [entry.logprob for entry in content], choice.finish_reason, version)
    spans = [VersionSpan(_number(s.version, version), s.start, s.end) for s in choice.weight_versions or []]
    return msgspec.structs.replace(completion, versions=spans) if spans else completion


def from_completions(choice: CompletionsChoice, version: int) -> Completion:
    """The completion in a reply of `/v1/completions`, with one version for all tokens. Raises as `from_native`."""
    logprobs = choice.logprobs.token_logprobs if choice.logprobs else []
    return _completion(choice.token_ids or [], logprobs, choice.finish_reason, version)


def _completion(ids: list[int], logprobs: Sequence[float | None], finish: str | None, version: int) -> Completion:
    sure = [value for value in logprobs if value is not None]
    if len(ids) != len(logprobs):
        raise EngineError(f"{len(ids)} tokens came with the log-probabilities {list(logprobs)[:8]}")
    if len(sure) < len(ids) or not math.isfinite(sum(sure)):  # JSON has no NaN: servers send null
        raise DeadPolicy(f"the log-probabilities of sampled tokens are not finite: {list(logprobs)[:8]}")
    reasons: dict[str | None, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}
    return Completion(
        token_ids=ids,
        logprobs=sure,
        finish=reasons.get(finish, "abort"),
        versions=[VersionSpan(version, 0, len(ids))] if ids else [],
    )


def joined(first: Completion, second: Completion) -> Completion:
    """Joins two consecutive pieces of one completion."""
    if not first.token_ids:
        return second
    at = len(first.token_ids)
    versions = list(first.versions)
    for span in second.versions:
        moved = VersionSpan(span.version, span.start + at, span.end + at)
        if versions and versions[-1].version == moved.version:
            moved = VersionSpan(moved.version, versions.pop().start, moved.end)
        versions.append(moved)
    return Completion(
        token_ids=first.token_ids + second.token_ids,
        logprobs=first.logprobs + second.logprobs,
        finish=second.finish,
        versions=versions,
        queue_s=_sum(first.queue_s, second.queue_s),
        decode_s=_sum(first.decode_s, second.decode_s),
    )


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _number(version: str, otherwise: int) -> int:
    """The version as a number. A server that was never updated reports a word (`UNTRAINED`): `otherwise`."""
    return int(version) if version.isdecimal() else otherwise
