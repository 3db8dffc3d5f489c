"""How many failures a run bears, by their cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from agentrl.config.limits import Limits
from agentrl.types.episode import Episode, ErrorRecord
from agentrl.types.errors import REMEDY, AgentRLError, DeadPolicy


class TooManyUserErrors(AgentRLError):
    """The budget for bugs in user code is spent. What ran is stored."""


class EngineDown(AgentRLError):
    """The engine failed, or refused, episode after episode. What ran is stored; the same command adds the rest."""


class SandboxDown(AgentRLError):
    """No sandbox lived, episode after episode. What ran is stored; the same command adds the rest."""


class ServiceDown(AgentRLError):
    """What user code asks failed, episode after episode. What ran is stored; the same command adds the rest."""


@dataclass(frozen=True)
class Budget:
    """What a run bears of one cause.

    Attributes:
        error: what stops the run.
        told: what happened, of `{number}` episodes.
        limit: the field of `Limits` that says how many are too many.
        more: how many more than that it takes.
        in_a_row: a successful episode resets the count.
    """

    error: Callable[..., AgentRLError]
    told: str
    remedy: str
    limit: str
    more: int = 0
    in_a_row: bool = True


_AGAIN = "and run the same command again: it adds the missing episodes"

BUDGETS: dict[str, Budget] = {
    "user": Budget(
        TooManyUserErrors,
        "{number} episodes failed by a bug in user code",
        "fix it and run the same command again",
        "user_errors",
        more=1,
        in_a_row=False,
    ),
    "engine": Budget(
        EngineDown,
        "the engine failed {number} episodes in a row",
        f"fix the engine {_AGAIN}",
        "engine_failures",
    ),
    "refusal": Budget(
        EngineDown,
        "the engine's server refused {number} episodes in a row",
        f"fix what it refuses {_AGAIN}",
        "engine_failures",
    ),
    "sandbox": Budget(
        SandboxDown,
        "the sandboxes of {number} episodes in a row failed",
        f"fix the sandbox backend {_AGAIN}",
        "sandbox_failures",
    ),
    "service": Budget(
        ServiceDown,
        "a service that tools, agents or rewards call failed {number} episodes in a row",
        f"fix the service {_AGAIN}",
        "service_failures",
    ),
}
"""By cause: `InfraError.cause`, or `user`. A dead policy has none: the first episode that shows it stops the run."""


class Budgets:
    """The failures of a run so far."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._counts: Counter[str] = Counter()

    def spend(self, episode: Episode) -> None:
        """Counts an episode that ended. One that failed by a cause says nothing about the others.

        Raises:
            TooManyUserErrors, EngineDown, SandboxDown, ServiceDown: it was one too many.
            DeadPolicy: the policy is dead.
        """
        if episode.error is None:
            self.succeed()
        else:
            self.fail(episode.error, f"episode {episode.id}", user=episode.status == "user_error")

    def succeed(self) -> None:
        """Resets the counts of consecutive failures after a success."""
        for cause in [cause for cause in self._counts if BUDGETS[cause].in_a_row]:
            del self._counts[cause]

    def fail(self, error: ErrorRecord, place: str, *, user: bool = False) -> None:
        """Counts a failure; raises as `spend` does.

        Args:
            user: it was a bug in user code.
        """
        place = f"{place}, stage {error.stage}"
        cause = "user" if user else error.cause
        message, _, remedy = error.message.partition(REMEDY)
        if cause == "policy":
            raise DeadPolicy(message, place=place)
        if (budget := BUDGETS.get(cause)) is None:
            return
        self._counts[cause] += 1
        if self._counts[cause] < getattr(self._limits, budget.limit) + budget.more:
            return
        told = budget.told.format(number=self._counts[cause])
        last = f"{error.kind}: {message}\n{error.traceback}" if user else message
        mend = f"{remedy}\n     " if remedy else ""
        raise budget.error(
            f"{told}; the last: {last}", place=place, remedy=f"{mend}{budget.remedy}; or raise limits.{budget.limit}"
        )
