"""A request of the batch: one call of `generate`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentrl.engines.stops import StopStrings
from agentrl.types.engine import Completion, Sampling
from agentrl.types.episode import VersionSpan


@dataclass(eq=False)
class DecodeRequest:
    """One call of `generate`, from its prompt to its completion.

    Attributes:
        token_ids: the prompt, followed by the sampled tokens.
        limit: maximum number of sampled tokens.
        seed: seed of the draws, 64 bits.
        done: called once with the completion or the error.
        cancelled: set by the caller if the completion is no longer needed.
        stops: stop strings; None: only stop tokens end the completion.
        keep: store the cache for the session's next turn.
        asked, begun: seconds of `time.perf_counter` at which it was made, and first got a row; None: not yet.
    """

    session: str
    token_ids: list[int]
    sampling: Sampling
    limit: int
    seed: int
    done: Callable[[Completion | None, BaseException | None], None]
    stops: StopStrings | None = None
    cancelled: bool = False
    keep: bool = True
    asked: float = field(default_factory=time.perf_counter)
    begun: float | None = None
    logprobs: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)

    def stopped(self) -> bool:
        """Returns True if the last token completes a stop string."""
        begin = len(self.token_ids) - len(self.logprobs)
        return self.stops is not None and self.stops.completed(self.token_ids, begin)

    def completion(self, finish: Any) -> Completion:
        """The completion with the tokens sampled so far."""
        count, begun = len(self.logprobs), self.asked if self.begun is None else self.begun
        ends = [start for _, start in self.versions[1:]] + [count]
        return Completion(
            token_ids=self.token_ids[len(self.token_ids) - count :],
            logprobs=self.logprobs,
            finish=finish,
            versions=[VersionSpan(v, start, end) for (v, start), end in zip(self.versions, ends, strict=True)],
            queue_s=begun - self.asked,
            decode_s=time.perf_counter() - begun,
        )
