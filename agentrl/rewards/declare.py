"""What a reward function says about itself, and what it may return beside a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Cost = Literal["engine", "sandbox"]
Value = float | None
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class About:
    """What is known of a reward function.

    Attributes:
        source: paper or code that the rule comes from.
        costs: what a call of it occupies beside this process.
        required: an episode that it could not score is not scored at all (a recipe may say otherwise).
        per_turn: it scores turns. Functions that take `turn` or are annotated to return a list need not say so.
    """

    source: str = "user code"
    costs: tuple[Cost, ...] = ()
    required: bool = False
    per_turn: bool = False


@dataclass(frozen=True)
class Scored:
    """A value with the reason for it: what a reward function may return instead of a number.

    Attributes:
        value: the outcome, or one entry per turn; None where nothing could be scored.
        note: for people; stored with the episode.
    """

    value: Value | Sequence[Value]
    note: str = ""


def reward(
    *, source: str = "user code", costs: Sequence[Cost] = (), required: bool = False, per_turn: bool = False
) -> Callable[[F], F]:
    """Notes on a function what `About` holds. Needed only where there is something to say."""

    def note(function: F) -> F:
        function.__agentrl_reward__ = About(source, tuple(costs), required, per_turn)  # type: ignore[attr-defined]
        return function

    return note


def about(function: Callable[..., Any]) -> About:
    """What a function says about itself; the defaults if it says nothing."""
    found: About = getattr(function, "__agentrl_reward__", About())
    return found
