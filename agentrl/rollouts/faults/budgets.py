"""Failure budgets: the number of failures of each cause that a run tolerates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from agentrl.config.limits import Limits
from agentrl.types.episode import Episode, ErrorRecord
from agentrl.types.errors import REMEDY, AgentRLError, DeadPolicy, unless_told


class TooManyUserErrors(AgentRLError):
    """The budget for bugs in user code is spent. Finished episodes are stored."""


class EngineDown(AgentRLError):
    """The engine failed or rejected too many episodes in a row. Finished episodes are stored; the run can resume."""


class SandboxDown(AgentRLError):
    """The sandboxes of too many episodes in a row failed. Finished episodes are stored; the run can resume."""


class ServiceDown(AgentRLError):
    """A service of user code failed too many episodes in a row. Finished episodes are stored; the run can resume."""


@dataclass(frozen=True)
class FailureBudget:
    """Failure budget of one cause.

    Attributes:
        error: error that stops the run.
        told: its message, with the number of episodes as `{number}`.
        limit: field of `Limits` with the number of failures that stops the run.
        more: added to that limit.
        in_a_row: whether a successful episode resets the count.
    """

    error: Callable[..., AgentRLError]
    told: str
    remedy: str
    limit: str
    more: int = 0
    in_a_row: bool = True


_AGAIN = "and run the same command again: it adds the missing episodes"

BUDGETS: dict[str, FailureBudget] = {
    "user": FailureBudget(
        TooManyUserErrors,
        "{number} episodes failed by a bug in user code",
        "fix it and run the same command again",
        "user_errors",
        more=1,
        in_a_row=False,
    ),
    "engine": FailureBudget(
        EngineDown,
        "the engine failed {number} episodes in a row",
        f"fix the engine {_AGAIN}",
        "engine_failures",
    ),
    "refusal": FailureBudget(
        EngineDown,
        "the engine's server refused {number} episodes in a row",
        f"fix what it refuses {_AGAIN}",
        "engine_failures",
    ),
    "sandbox": FailureBudget(
        SandboxDown,
        "the sandboxes of {number} episodes in a row failed",
        f"fix the sandbox backend {_AGAIN}",
        "sandbox_failures",
    ),
    "service": FailureBudget(
        ServiceDown,
        "a service that tools, agents or rewards call failed {number} episodes in a row",
        f"fix the service {_AGAIN}",
        "service_failures",
    ),
}
"""Budgets by cause: `InfraError.cause`, or `user`. A dead policy has no budget: it stops the run at once."""


class Budgets:
    """Counts the failures of a run."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._counts: Counter[str] = Counter()

    def spend(self, episode: Episode) -> None:
        """Counts an ended episode. A failure leaves the counts of other causes unchanged.

        Raises:
            TooManyUserErrors, EngineDown, SandboxDown, ServiceDown: the budget of a cause is spent.
            DeadPolicy: the policy's log-probabilities are not finite.
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
        """Counts a failure. Raises the errors of `spend`.

        Args:
            user: whether it was a bug in user code.
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
        where = unless_told(error.place, message)
        raised = f"{message} at {where}" if where else message
        last = f"{error.kind}: {message}\n{error.traceback}" if user else raised
        mend = f"{remedy}\n     " if remedy else ""
        raise budget.error(
            f"{told}; the last: {last}", place=place, remedy=f"{mend}{budget.remedy}; or raise limits.{budget.limit}"
        )
