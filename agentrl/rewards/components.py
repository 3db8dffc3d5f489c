"""Reward components, and the reward set of a recipe: components are scored, changed by steps, gated and summed."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from agentrl.config.rewards import Gate, RewardRoute, RewardStep
from agentrl.registry.settings import in_words
from agentrl.rewards.declare import About, Cost, Scored, about, scores_turns
from agentrl.rewards.gate import check_gates, check_route, components_of, judge_gates
from agentrl.rewards.grading import Unverified, graded, left_behind
from agentrl.rewards.registry import OF_EPISODE, REWARDS
from agentrl.rewards.score import Live, Score
from agentrl.rewards.spans import Decode, Span, Spanned, placed
from agentrl.rewards.steps import Values, apply
from agentrl.types.episode import POLICY, Episode, GateVerdict, Turn
from agentrl.types.errors import (
    AgentRLError,
    MissingExtra,
    RecipeError,
    ScoringPrevented,
    TaskError,
    ToolServerEnded,
    asked_to_stop,
    nearest,
    place_of,
)
from agentrl.types.figures.of_episodes import NAMED, SUCCESS
from agentrl.types.figures.sums import total
from agentrl.types.sandbox import SandboxBroken, SandboxExpired
from agentrl.types.task import Task
from agentrl.types.values import ValueRefused, number, text

if TYPE_CHECKING:
    from agentrl.types.sandbox import Sandbox

OpenSandbox = Callable[..., Awaitable["Sandbox"]]
"""Starts a fresh sandbox with the spec of the task; keywords replace fields of the spec."""
"""Starts a fresh sandbox that the agent has not used."""

OF_COMPONENT = ("weight", "required", "accept_forgery", "then", "worst")
_STEPS = TypeAdapter(list[RewardStep])

_FIELDS = {"key": "", "rubric_key": "", "database": ", or to a file that exists: ./shop.db"}
"""Settings of built-ins that name a field of `task.data`, and the allowed alternative."""


class RewardError(AgentRLError):
    """A reward component raised, or returned a value that is not a reward."""


@dataclass(frozen=True)
class Component:
    """A reward function with its settings.

    Attributes:
        wants: its parameters that are inputs (`rewards.registry.GIVEN`).
        settings: values of its other parameters, checked.
        steps: applied in order to the returned value.
        required: without its value the episode is not scored.
        worst: bound of its value if the agent prevented the scoring.
        sandbox_required: it needs the sandbox of the episode.
        live_need: the required input that exists only during the episode: `env`, `tools` or `sandbox`.
        forgery_accepted: it is trained on although the policy could forge it.
    """

    name: str
    function: Callable[..., Any]
    weight: float
    wants: tuple[str, ...]
    settings: dict[str, Any]
    steps: tuple[RewardStep, ...] = ()
    required: bool = False
    sandbox_required: bool = False
    live_need: str | None = None
    forgery_accepted: bool = False
    worst: float = 0.0

    @property
    def about(self) -> About:
        return about(self.function)

    @property
    def per_turn(self) -> bool:
        """True if it is declared to score turns. A function may return a list without declaring that."""
        return scores_turns(self.function, self.settings)

    @property
    def forgeable(self) -> str:
        """Describes how the policy could forge the value with these settings; empty if it cannot."""
        said = self.about.forgeable
        return said(self.settings) if callable(said) else said

    @property
    def of_group(self) -> bool:
        """True if it scores the members of a group together."""
        return "group" in self.wants

    @property
    def costs(self) -> tuple[Cost, ...]:
        """Resources of a call: an engine, a sandbox."""
        boxes: tuple[Cost, ...] = ("sandbox",) if self.sandbox_required or self.fresh_sandboxes else ()
        return (*boxes, *(cost for cost in self.about.costs if cost not in boxes))

    @property
    def fresh_sandboxes(self) -> int:
        """Maximum number of fresh sandboxes at the same time: 2 for a function that opens them itself."""
        return ("fresh_sandbox" in self.wants) + 2 * ("open_sandbox" in self.wants)

    def check_task(self, task: Task) -> None:
        """Checks that the task has the data fields that a built-in component reads (`_FIELDS` names the settings).

        Raises:
            TaskError: the field is missing.
        """
        if not self.function.__module__.startswith("agentrl.rewards."):
            return
        parameters = inspect.signature(self.function).parameters
        for setting, or_else in _FIELDS.items():
            key = self.settings.get(setting, parameters[setting].default) if setting in parameters else None
            a_file = bool(or_else) and key is not None and os.path.isabs(key) and os.path.isfile(key)
            if key is not None and key not in task.data and not a_file:
                raise TaskError(
                    f"reward {self.name!r} reads data {key!r}, and the task has only {sorted(task.data) or 'none'}",
                    place=f"task {task.id}",
                    remedy=f"set the reward's `{setting}` to the field that holds it{or_else}",
                )

    async def __call__(
        self,
        task: Task,
        episode: Episode,
        sandbox: Sandbox | None = None,
        open_sandbox: OpenSandbox | None = None,
        live: Live | None = None,
    ) -> tuple[Values, str]:
        """Scores an episode. Returns the outcome, or a list with one entry per turn, and a note.

        The value is the least favourable one (`worst`) if the agent's programs broke the sandbox or, in two attempts, a
        tool's server; if the function raises ScoringPrevented; or if it does not handle an OSError of the agent's
        sandbox (no file, a folder, too large, ...): that is not a bug of the function.

        Raises:
            RewardError: the function raised, or returned a value that is not a reward.
            AgentRLError: the function raised it (a lost sandbox is not the function's fault).
        """
        own = episode.copied()  # a copy: functions must not change the record or the input of other functions
        own_task = own.task if task is episode.task else task.copied()
        given: dict[str, Any] = {"task": own_task, "episode": own, "sandbox": sandbox, "component": self.name}
        left = live or Live(info=own.info)
        given |= {"env": left.env, "tools": list(left.tools), "info": msgspec.to_builtins(left.info)}
        given["read_blob"] = left.read_blob or no_blobs
        boxes = [] if sandbox is None else [sandbox]
        found: Any
        value: Any

        async def open_fresh(**changes: Any) -> Sandbox:
            if open_sandbox is None:
                raise RewardError("there is no sandbox backend to start a fresh sandbox with")
            boxes.append(await open_sandbox(**changes))
            return boxes[-1]

        try:
            given["open_sandbox"] = open_fresh
            if "fresh_sandbox" in self.wants:
                given["fresh_sandbox"] = await open_fresh()
            if "turn" in self.wants:
                found = [await self.call({**given, "turn": turn}, boxes) for turn in own.turns]
                told = [(k, item.note) for k, item in enumerate(found) if isinstance(item, Scored) and item.note]
                notes = [f"turn {k}: {note}" for k, note in told]
                value, note = [item.value if isinstance(item, Scored) else item for item in found], "; ".join(notes)
            else:
                found = await self.call(given, boxes)
                value, note = (found.value, text(found.note)) if isinstance(found, Scored) else (found, "")
            return apply(self.steps, self.check(value, episode, left.decode)), note
        except BaseException as raised:
            if asked_to_stop(raised):
                raise
            note = self._prevented(raised, episode, sandbox, left)
            return self._least(episode), note
        finally:
            await asyncio.gather(*(box.close() for box in boxes if box is not sandbox))

    def _prevented(self, error: BaseException, episode: Episode, sandbox: Sandbox | None, left: Live) -> str:
        """Returns how the agent prevented the scoring, as a note.

        Raises:
            RewardError: the agent did not; the function raised the error.
            AgentRLError: the agent did not, and it is one.
        """
        if isinstance(error, BaseExceptionGroup):  # of the function's TaskGroup
            return "; ".join(dict.fromkeys(self._prevented(each, episode, sandbox, left) for each in error.exceptions))
        if isinstance(error, SandboxBroken | SandboxExpired | ScoringPrevented | Unverified):
            return str(error)
        if isinstance(error, ToolServerEnded) and left.suspected:
            return str(error)
        if isinstance(error, AgentRLError):
            error.add_note(f"in reward component {self.name!r}")
            raise error
        if sandbox is not None and left_behind(error, sandbox):
            return f"what the agent left: {error}"
        raise RewardError(
            f"reward component {self.name!r} raised {type(error).__name__}: {error}",
            place=", ".join(filter(None, [f"episode {episode.id}", place_of(error)])),
            remedy="fix the function and run the same command again",
        ) from error

    def _least(self, episode: Episode) -> Values:
        """Returns the less favourable one of `worst` and of what a 0 is worth behind the steps."""
        zeros: Values = [0.0] * len(episode.turns) if self.per_turn else 0.0
        try:
            found = apply(self.steps, zeros)
        except ValueError:  # a step that takes no 0
            found = zeros
        least = max if self.weight < 0 else min
        if isinstance(found, list):
            return [least(value or 0.0, self.worst) for value in found]
        return least(found or 0.0, self.worst)

    async def call(self, given: Mapping[str, Any], sandboxes: Sequence[Sandbox] = ()) -> Any:
        """Calls the function. A turn, or a group, without a built-in's verdict by the agent's fault is 0 with a note.

        Args:
            sandboxes: the sandboxes in which the function runs programs.

        Raises:
            SandboxLost: a sandbox does not answer.
            Unverified: the agent prevented a built-in's verdict on the episode.
        """
        if not (self.about.verifier or self.function.__module__.startswith("agentrl.")):
            return await self._called(given)
        try:
            return await graded(partial(self._called, given), self.about.costs, sandboxes)
        except Unverified as reason:
            if self.of_group:
                return [Scored(0.0, str(reason))] * len(given["group"])
            if "turn" in self.wants:
                return Scored(0.0, str(reason))
            raise

    async def _called(self, given: Mapping[str, Any]) -> Any:
        value = self.function(**{name: given[name] for name in self.wants}, **self.settings)
        return await value if inspect.isawaitable(value) else value

    def check(self, value: Any, episode: Episode, decode: Decode | None = None) -> Values:
        """Checks and converts a value that the function returned for an episode.

        Args:
            decode: gives the text of tokens, by which the tokens of spans are found.

        Raises:
            RewardError: the value is not a reward.
        """
        if getattr(value, "ndim", None) == 1:  # a NumPy array, a tensor
            value = value.tolist()
        if isinstance(value, list | tuple) and "turn" not in self.wants and len(value) != len(episode.turns):
            raise self._refuse(f"{len(value)} entries for {len(episode.turns)} turns", episode)
        if isinstance(value, list | tuple):
            return [self._of_turn(item, episode, turn, decode) for item, turn in zip(value, episode.turns, strict=True)]
        return self._number(value, episode)

    def _of_turn(self, item: Any, episode: Episode, turn: Turn, decode: Decode | None) -> float | None:
        if not isinstance(item, list | tuple):
            return self._number(item, episode)
        if not all(isinstance(span, Span) for span in item):
            raise self._refuse("a list for a turn that holds something else than Span(start, end, value)", episode)
        spans = [span._replace(value=self._finite(span.value, episode)) for span in item]
        try:
            return placed(self.name, spans, episode, turn, decode)
        except ValueError as error:
            raise self._refuse(f"{error}, turn {turn.index}", episode) from None

    def _number(self, value: Any, episode: Episode) -> float | None:
        return None if value is None else self._finite(value, episode)

    def _finite(self, value: Any, episode: Episode) -> float:
        try:
            return number(value, "it")
        except ValueRefused as error:
            raise self._refuse(error.message.removeprefix("it is "), episode) from None

    def _refuse(self, what: str, episode: Episode) -> RewardError:
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
        return RewardError(
            f"reward component {self.name!r}{where} returned {what}",
            place=f"episode {episode.id}",
            remedy="return a finite number, or None where nothing could be scored; or a list of these, one per turn. "
            "For a turn also a list of Span(start, end, value), the values finite numbers",
        )


@dataclass(frozen=True)
class RewardSet:
    """The reward components of a recipe, in order, its gates, and the component that defines success."""

    components: tuple[Component, ...]
    gates: tuple[Gate, ...] = ()
    route: RewardRoute | None = None
    success: str | None = None

    @classmethod
    def from_recipe(
        cls,
        rewards: Mapping[str, Any],
        base: Path = Path(),
        gates: Sequence[Gate] = (),
        route: RewardRoute | None = None,
        success: str | None = None,
    ) -> RewardSet:
        """Loads the functions and checks their settings.

        Args:
            rewards: by component name: a reference or function, or `{use, weight, required, then, ...settings}`.
                Without `use`, the built-in of the component's name is used. Weight 0 records the value only.
            base: the folder that `./task.py` is relative to.
            gates: the gates in order of priority.
            route: selects the components of a task; None: all score every task.
            success: the component that defines success; None: the one named `success`, else the reward.

        Raises:
            RecipeError: a function or setting does not exist, no component has a weight, or a gate or `success` names
                no component.
            MissingExtra: a package that a function needs is not installed.
        """
        components = tuple(_component(name, given, base) for name, given in rewards.items())
        if components and not any(component.weight for component in components):
            raise RecipeError(
                "all reward components have weight 0: no episode would ever be scored",
                place="rewards",
                remedy="give at least one of them a weight",
            )
        names = [component.name for component in components]
        check_gates(gates, names)
        if route is not None:
            check_route(route, names)
        if success is not None and success not in {*names} - (NAMED.keys() - {SUCCESS}):
            raise RecipeError(
                f"{success!r} is no component, or the name of their sum: rewards has {sorted(names) or 'none'}",
                place="success",
                remedy=nearest(success, names, "components"),
            )
        return cls(components, tuple(gates), route, success)

    def of(self, task: Task) -> RewardSet:
        """Returns the components of a task, with the gates on them.

        Raises:
            TaskError: the task does not name them, or none of them has a weight.
        """
        if self.route is None:
            return self
        chosen = components_of(task, self.route, [component.name for component in self.components])
        components = tuple(component for component in self.components if component.name in chosen)
        if not any(component.weight for component in components):
            raise TaskError(
                f"no component with a weight scores it: {', '.join(sorted(chosen))}",
                place=f"task {task.id}",
                remedy=f"name another in data {self.route.field!r}, or add it to reward_of.always",
            )
        told = self.success if self.success in chosen else None
        return RewardSet(components, tuple(gate for gate in self.gates if gate.on in chosen), success=told)

    @property
    def of_group(self) -> tuple[Component, ...]:
        """Components with the input `group`: they score the members of a group together."""
        return tuple(component for component in self.components if component.of_group)

    @property
    def needs_sandbox(self) -> bool:
        """True if a component needs the sandbox of the episode."""
        return any(component.sandbox_required for component in self.components)

    @property
    def needs_fresh_sandbox(self) -> bool:
        """True if a component needs a fresh sandbox."""
        return self.fresh_sandboxes > 0

    @property
    def fresh_sandboxes(self) -> int:
        """Maximum number of fresh sandboxes at the same time while an episode is scored."""
        return max((component.fresh_sandboxes for component in self.components), default=0)

    async def score(
        self,
        task: Task,
        episode: Episode,
        sandbox: Sandbox | None = None,
        open_sandbox: OpenSandbox | None = None,
        live: Live | None = None,
    ) -> Score:
        """Scores an episode with all components, one after the other, because verifiers may share the sandbox.

        Args:
            sandbox: the sandbox after the episode; None if no tool needed one.
            open_sandbox: starts a fresh sandbox.
            live: other objects of the episode that are still open.

        Raises:
            RewardError, AgentRLError: as `Component`.
            TaskError: as `of`.
        """
        if self.route is not None:
            return await self.of(task).score(task, episode, sandbox, open_sandbox, live)
        alone = [component for component in self.components if not component.of_group]
        found: dict[str, Values] = {}
        notes: dict[str, str] = {}
        for component in alone:
            found[component.name], note = await component(task, episode, sandbox, open_sandbox, live)
            if note:
                notes[component.name] = note
        return self.withheld(self.combine(episode, found, notes))

    def withheld(self, score: Score) -> Score:
        """Returns the score without its total while components of the group are pending."""
        if not self.of_group:
            return score
        nothing: list[float | None] = [None] * len(score.turns)
        names = [component.name for component in self.of_group]
        return replace(score, total=None, gates=[], turn_totals=nothing, pending=names)

    def combine(self, episode: Episode, found: Mapping[str, Values], notes: Mapping[str, str] | None = None) -> Score:
        """Applies gates and weights to the values of the components.

        The total is None if a required component or the component of a gate was not scored, or if no outcome component
        with a weight was scored. (If only turn components have weights, the total is 0.0.)

        Args:
            found: for each component an outcome, or one entry per turn of `episode`.
        """
        outcomes = {name: value for name, value in found.items() if not isinstance(value, list)}
        by_turn = {name: value for name, value in found.items() if isinstance(value, list)}
        turns = [
            {**turn.rewards, **{name: values[k] for name, values in by_turn.items()}}
            for k, turn in enumerate(episode.turns)
        ]
        own = [each for turn, each in zip(episode.turns, turns, strict=True) if episode.policy_of(turn) == POLICY]
        names = {name: None for turn in turns for name in turn}
        sums = {name: _sum([turn[name] for turn in own if name in turn]) for name in names}
        sums |= {name: 0.0 for name, values in by_turn.items() if not values}  # an episode without turns
        verdicts = judge_gates(self.gates, outcomes | sums | outcomes)
        shut = {name for verdict in verdicts if not verdict.open for name in verdict.shuts}
        weights = {component.name: 0.0 if component.name in shut else component.weight for component in self.components}
        reward = self._total(outcomes, by_turn, weights, sums, verdicts)
        turn_totals = [
            total(_weight(name, weights, shut) * value for name, value in turn.items() if value is not None)
            for turn in turns
        ]
        spans = [
            [
                msgspec.structs.replace(span, weight=_weight(name, weights, shut))
                for name, value in turn.items()
                if isinstance(value, Spanned)
                for span in value.spans
            ]
            for turn in turns
        ]
        return Score(
            components=outcomes,
            total=reward,
            success=self._told_by({**sums, **outcomes}, outcomes),
            turns=[{name: None if value is None else float(value) for name, value in turn.items()} for turn in turns],
            turn_totals=[*turn_totals],
            spans=spans,
            gates=verdicts,
            notes=dict(notes or {}),
        )

    def _total(
        self,
        outcomes: Mapping[str, float | None],
        by_turn: Mapping[str, list[float | None]],
        weights: Mapping[str, float],
        sums: Mapping[str, float | None],
        verdicts: Sequence[GateVerdict],
    ) -> float | None:
        values = {**sums, **outcomes}
        needed = [component.name for component in self.components if component.required]
        if any(values.get(name) is None for name in needed) or any(verdict.open is None for verdict in verdicts):
            return None
        counted = {component.name for component in self.components if component.weight}
        terms = [weights[name] * v for name, v in outcomes.items() if v is not None and name in counted]
        if terms:
            return total(terms)
        only_turns = counted and counted <= set(by_turn)
        return 0.0 if only_turns and any(values.get(name) is not None for name in counted) else None

    def _told_by(self, values: Mapping[str, float | None], outcomes: Mapping[str, float | None]) -> str:
        """Name of the figure that defines success. It is `total` if only turns are rewarded."""
        if self.success is not None or SUCCESS in values:
            return self.success or SUCCESS
        paid = any(component.weight and component.name in outcomes for component in self.components)
        return "reward" if paid or not self.components else "total"


def _weight(name: str, weights: Mapping[str, float], shut: set[str]) -> float:
    """The weight of a turn component. A reward that a tool gave under a name that the recipe lacks has weight 1."""
    return 0.0 if name in shut else weights.get(name, 1.0)


def _sum(values: Sequence[float | None]) -> float | None:
    scored = [value for value in values if value is not None]
    return total(scored) if scored else None


def _component(name: str, given: Any, base: Path) -> Component:
    place = f"rewards.{name}"
    spec = dict(given or {}) if given is None or isinstance(given, Mapping) else {"use": given}
    use, weight = spec.pop("use", None), spec.pop("weight", 1.0)
    required, then = spec.pop("required", None), spec.pop("then", None)
    accepted, worst = spec.pop("accept_forgery", False), spec.pop("worst", 0.0)
    for key, value in (("weight", weight), ("worst", worst)):
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise RecipeError(f"{key} {value!r} is not a finite number", place=f"{place}.{key}")
    if not isinstance(accepted, bool):
        raise RecipeError(f"accept_forgery is true or false, not {accepted!r}", place=f"{place}.accept_forgery")
    loaded = REWARDS.load(name if use is None else use, spec, base, place, beside=OF_COMPONENT)
    function = loaded.plug_in
    _check_inputs(name, loaded.wants)
    if taken := [each for each in OF_COMPONENT if each in inspect.signature(function).parameters]:
        raise RecipeError(
            f"the function of {name} has a parameter {taken[0]!r}, which is a key of every component",
            place=place,
            remedy="give the parameter another name",
        )
    if (require := about(function).require) is not None:
        try:
            require(loaded.arguments)
        except MissingExtra as missing:
            raise missing.at(place) from None
    return Component(
        name,
        function,
        float(weight),
        wants=loaded.wants,
        settings=dict(loaded.arguments),
        steps=_steps(then, f"{place}.then"),
        required=about(function).required if required is None else bool(required),
        sandbox_required=_must_have("sandbox", function),
        live_need=next((name for name in ("env", "tools", "sandbox") if _must_have(name, function)), None),
        forgery_accepted=accepted,
        worst=float(worst),
    )


def _check_inputs(name: str, wants: Sequence[str]) -> None:
    """Raises RecipeError for inputs that do not go together: those of one episode and of the group."""
    of_one = [want for want in wants if want in OF_EPISODE]
    if "group" in wants and of_one:
        raise RecipeError(
            f"{name} takes the group and {', '.join(map(repr, of_one))}, which belongs to one episode",
            place=f"rewards.{name}",
            remedy="a function of the group takes 'group', 'task' and 'component'; each of its episodes has turns, "
            "answer, info and components",
        )
    if "beliefs" in wants and "group" not in wants:
        raise RecipeError(
            f"{name} takes 'beliefs', which only functions of the group get",
            place=f"rewards.{name}",
            remedy="take 'group' in place of the inputs of one episode",
        )


def no_blobs(sha: str) -> bytes:
    """Reads blobs without a run to read them from.

    Raises:
        RewardError: always.
    """
    raise RewardError(f"there is no run here that could have the blob {sha}")


def _must_have(name: str, function: Callable[..., Any]) -> bool:
    """Returns True if a function has a parameter of this name without a default."""
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.default is parameter.empty


def _steps(then: Any, place: str) -> tuple[RewardStep, ...]:
    try:
        return tuple(_STEPS.validate_python(then or []))
    except ValidationError as error:
        first = error.errors()[0]
        raise RecipeError(
            in_words(first),
            place=".".join([place, *map(str, first["loc"])]),
            remedy=f"a list of steps: {', '.join(RewardStep.model_fields)}",
        ) from None
