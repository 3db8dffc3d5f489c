"""Gated reward accumulation: a reward counts only if every reward of higher priority reaches its threshold.

G-RA, arXiv:2508.10548. With levels in order of priority, the reward of trajectory i is

    R_i = R_i^high + sum over components c below of  1[every c' above c has R_i^{c'} >= delta_{c'}] * sum_t r_{i,t}^c

A component behind a closed gate is zero for the whole trajectory: not clipped, not delayed. The paper's thresholds are
not published, and secondary sources differ in the comparison, so both `>=` and `>` are available.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from agentrl.config.rewards import Gate, RewardRoute
from agentrl.types.episode import GateVerdict
from agentrl.types.errors import RecipeError, TaskError, nearest
from agentrl.types.figures.sums import exceeds, reaches
from agentrl.types.task import Task


def check_route(route: RewardRoute, names: Collection[str]) -> None:
    """Raises RecipeError if the route names a component that does not exist."""
    for name in route.always:
        if name not in names:
            raise RecipeError(
                f"there is no reward component {name!r}",
                place="reward_of.always",
                remedy=nearest(name, names, "components"),
            )


def components_of(task: Task, route: RewardRoute, names: Collection[str]) -> set[str]:
    """The names of the components that score a task.

    Args:
        names: of all components.

    Raises:
        TaskError: the field of the task is missing, or names something else than components.
    """
    found = task.data.get(route.field)
    named = found if isinstance(found, list) else [found]
    for name in named:
        if not isinstance(name, str) or name not in names:
            what = "is missing" if found is None else f"names {name!r}, which is no reward component"
            raise TaskError(
                f"data {route.field!r}, which says how the task is scored (reward_of), {what}",
                place=f"task {task.id}",
                remedy=nearest(str(name), names, "components") if name is not None else f"one of {', '.join(names)}",
            )
    return {*named, *route.always}


def check_gates(gates: Sequence[Gate], names: Iterable[str]) -> None:
    """Checks the gates against the components of the recipe.

    Raises:
        RecipeError: a gate names a component that does not exist, a component is named twice, or a gate closes itself.
    """
    known, seen = list(names), set()
    for index, gate in enumerate(gates):
        for key, name in [("on", gate.on), *(("shuts", name) for name in gate.shuts or ())]:
            if name not in known:
                raise RecipeError(
                    f"there is no reward component {name!r}",
                    place=f"gate.{index}.{key}",
                    remedy=nearest(name, known, "components"),
                )
        if gate.on in seen or gate.on in (gate.shuts or ()):
            what = "shuts itself" if gate.on in (gate.shuts or ()) else f"is the second on {gate.on!r}"
            raise RecipeError(f"the gate {what}", place=f"gate.{index}", remedy="one gate a component, in order")
        seen.add(gate.on)


def is_open(gate: Gate, value: float | None) -> bool | None:
    """Returns True if a gate is open at `value`; None if the value is None."""
    if value is None:
        return None
    return reaches(value, gate.at_least) if gate.at_least is not None else exceeds(value, gate.above or 0.0)


def judge_gates(gates: Sequence[Gate], values: Mapping[str, float | None]) -> list[GateVerdict]:
    """The verdict of every gate, in order.

    Args:
        values: the unweighted value of each component; for turn components the sum over the turns.
    """
    verdicts, above = [], set()
    for gate in gates:
        above.add(gate.on)
        shuts = gate.shuts if gate.shuts is not None else [name for name in values if name not in above]
        verdicts.append(
            GateVerdict(
                on=gate.on,
                value=values.get(gate.on),
                threshold=gate.at_least if gate.at_least is not None else (gate.above or 0.0),
                strict=gate.at_least is None,
                open=is_open(gate, values.get(gate.on)),
                shuts=list(shuts),
            )
        )
    return verdicts
