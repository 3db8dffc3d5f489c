"""The declaration of a reward function, and the types that it may return besides a number."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_origin

from agentrl.rewards.spans import Span
from agentrl.types.episode import Episode

Cost = Literal["engine", "sandbox"]
Beliefs = Callable[[Episode, Sequence[str], str], Awaitable[list[list[float | None]]]]
"""The mean log-probability of the tokens of each answer before each of the policy's turns and after the last one, in a
reply that begins with the text: (episode, answers, text) -> [turns + 1][answers]; None where the context is full."""
Value = float | None
PerTurn = bool | Callable[[Mapping[str, Any]], bool]
Forgeable = str | Callable[[Mapping[str, Any]], str]
Require = Callable[[Mapping[str, Any]], None]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class About:
    """The declaration of a reward function.

    Attributes:
        source: the paper or code of the rule.
        costs: resources that a call occupies outside of this process.
        required: an episode without its value is not scored (a recipe may override this).
        per_turn: it scores turns, or a function of its settings that returns this. Implied by a parameter `turn`, or by
            a return annotation of a list.
        require: called with the settings when a recipe is read. Raises MissingExtra if a package that they need is
            not installed.
        verifier: it runs like the built-in verifiers (`rewards.grading`): with a separate budget. A budget that the
            agent exhausts gives 0.
        forgeable: how the policy could forge its value, or a function of its settings that returns this; empty if it
            cannot. Training refuses the component unless its weight is 0, or the recipe accepts it.
        bounds: the lowest and the highest value; None: unknown.
    """

    source: str = "user code"
    costs: tuple[Cost, ...] = ()
    required: bool = False
    per_turn: PerTurn = False
    require: Require | None = None
    verifier: bool = False
    forgeable: Forgeable = ""
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class Scored:
    """A value with its reason, which a reward function may return instead of a number.

    Attributes:
        value: the outcome, or one entry per turn (a number, None, or a list of `Span`); the spans of one turn if the
            function scores one turn. None: not scored.
        note: a text that is stored with the episode.
    """

    value: Value | Sequence[Value | Span | Sequence[Span]]
    note: str = ""


def reward(
    *,
    source: str = "user code",
    costs: Sequence[Cost] = (),
    required: bool = False,
    per_turn: PerTurn = False,
    require: Require | None = None,
    verifier: bool = False,
    forgeable: Forgeable = "",
    bounds: tuple[float, float] | None = None,
) -> Callable[[F], F]:
    """Decorates a reward function with its declaration (`About`). Optional: without it the defaults apply."""

    def note(function: F) -> F:
        said = About(source, tuple(costs), required, per_turn, require, verifier, forgeable, bounds)
        function.__agentrl_reward__ = said  # type: ignore[attr-defined]
        return function

    return note


def scores_turns(function: Callable[..., Any], settings: Mapping[str, Any] = MappingProxyType({})) -> bool:
    """Returns True if a function is declared to score turns. It may return a list over turns without declaring that."""
    said = about(function).per_turn
    signature = inspect.signature(function)
    hint = signature.return_annotation
    listed = get_origin(hint) is list or hint is list or str(hint).startswith(("list", "Sequence["))
    of_group = "group" in signature.parameters  # its list is over members
    return "turn" in signature.parameters or (listed and not of_group) or (said(settings) if callable(said) else said)


def about(function: Callable[..., Any]) -> About:
    """The declaration of a function, or the defaults."""
    found: About = getattr(function, "__agentrl_reward__", About())
    return found
