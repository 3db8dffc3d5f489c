"""Metrics of the episodes of an iteration or an evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from agentrl.types.episode import POLICY, Episode
from agentrl.types.figures.notes import kinds_of, most_frequent
from agentrl.types.figures.of_episodes import component, earned, succeeded, success_of, turns_of
from agentrl.types.figures.openings import groups_that_differ, opening_of


def summary(episodes: Iterable[Episode]) -> dict[str, Any]:
    """Returns means over the scored episodes (None if there are none), and counts of all episodes."""
    everything = list(episodes)
    scored = [e for e in everything if e.scored]
    return {
        "episodes": len(everything),
        **_forks(everything),
        **_mixed(everything),
        "failed": len(everything) - len(scored),
        "reward": _mean(earned(e) or 0.0 for e in scored),
        "success": _mean(succeeded(e) for e in scored if success_of(e) is not None),
        "turns": _mean(map(turns_of, scored)),
        **_components(scored),
        **_by_policy(scored),
        "truncated": _mean(e.status == "truncated" for e in scored),
        "sampled_tokens": sum(e.sampled_tokens for e in scored),
        **_branches(scored),
        **_scoring_cost(scored),
        **_usage(everything),
        **_unscored(everything),
        **_notes(scored),
        **_other_formats(everything),
        **_gates(scored),
    }


def _forks(episodes: list[Episode]) -> dict[str, int]:
    """Number of episodes that agents forked, if there are some."""
    forks = sum(episode.forked for episode in episodes)
    return {"forks": forks} if forks else {}


def _mixed(episodes: list[Episode]) -> dict[str, int]:
    """Number of groups whose episodes have different openings, if some do."""
    marks = ((episode.group_id, opening.mark) for episode in episodes if (opening := opening_of(episode)) is not None)
    mixed = len(groups_that_differ(marks))
    return {"mixed_groups": mixed} if mixed else {}


def _branches(episodes: list[Episode]) -> dict[str, int]:
    """Number of branches by reason, of drift by kind, and of contexts besides the main one. Zeros are left out."""
    found = Counter(f"branches/{branch.reason}" for episode in episodes for branch in episode.branches)
    found.update(f"drift/{drift.kind}" for episode in episodes for drift in episode.drift)
    found["contexts"] = sum(len(episode.contexts) for episode in episodes)
    return {name: count for name, count in sorted(found.items()) if count}


def _by_policy(episodes: list[Episode]) -> dict[str, float]:
    """Mean number of turns of the auxiliary policies, by name."""
    found = Counter(episode.policy_of(turn) for episode in episodes for turn in episode.turns)
    return {f"turns/{name}": count / len(episodes) for name, count in sorted(found.items()) if name != POLICY}


def _components(episodes: list[Episode]) -> dict[str, float]:
    """Mean of each reward component over the episodes that it scored, if there are several components.

    It is the value before weights and gates; a component of turns counts with its sum over the policy's turns. If the
    task names its components (`reward_of`), these are the means by source of the tasks.
    """
    found: dict[str, list[float]] = {}
    for episode in episodes:
        names = [*episode.components, *(name for turn in episode.own_turns for name in turn.rewards)]
        for name in dict.fromkeys(names):
            if (value := component(episode, name)) is not None:
                found.setdefault(name, []).append(value)
    return {f"rewards/{name}": sum(values) / len(values) for name, values in sorted(found.items()) if len(found) > 1}


def _mean(values: Iterable[float]) -> float | None:
    """Returns the mean, or None without values: an outage must not look like a reward of 0."""
    known = list(values)
    return sum(known) / len(known) if known else None


def _usage(episodes: list[Episode]) -> dict[str, float]:
    """Token counts and cost over all episodes, for engines that report them."""
    counted = [turn.usage for episode in episodes for turn in episode.turns if turn.usage is not None]
    if not counted:
        return {}
    return {
        "prompt_tokens": sum(usage.prompt_tokens for usage in counted),
        "completion_tokens": sum(usage.completion_tokens for usage in counted),
        "cost": sum(usage.cost for usage in counted),
    }


def _unscored(episodes: list[Episode]) -> dict[str, int]:
    """Number of episodes by component that could not score them (for example, a judge's malformed reply)."""
    data = [e for e in episodes if e.status in ("done", "truncated")]
    missing = Counter(name for e in data for name, value in e.components.items() if value is None)
    return {f"unscored/{name}": count for name, count in sorted(missing.items())}


def _notes(episodes: list[Episode]) -> dict[str, int]:
    """Number of episodes by the most frequent reasons for rewards of 0."""
    told = most_frequent(kind for episode in episodes for kind in kinds_of(episode))
    return {f"notes/{kind.replace(': ', '/', 1)}": count for kind, count in told.items()}


def _other_formats(episodes: list[Episode]) -> dict[str, int]:
    """Number of replies by call format, for tool calls in another format than the recipe's."""
    turns = [turn for episode in episodes for turn in episode.turns]
    found = Counter(call.foreign for turn in turns for call in turn.calls if call.foreign)
    return {f"other_format/{name}": count for name, count in sorted(found.items())}


def _gates(episodes: list[Episode]) -> dict[str, float]:
    """Share of episodes by gate in which the gate was open."""
    verdicts: dict[str, list[bool]] = {}
    for episode in episodes:
        for gate in episode.gates:
            verdicts.setdefault(f"gate_open/{gate.on}", []).append(bool(gate.open))
    return {name: sum(opened) / len(opened) for name, opened in verdicts.items()}


def _scoring_cost(episodes: list[Episode]) -> dict[str, float]:
    """Mean seconds per episode for scoring its turns by the policy, and their share of the episodes' total time."""
    found: dict[str, float] = {}
    for stage, of_episode, of_time in (
        ("information_gain", "information_gain_s", "information_gain_share"),
        ("hindsight", "hindsight_s", "hindsight_share"),
    ):
        timed = [episode.timings for episode in episodes if stage in episode.timings]
        if timed:
            seconds = sum(each[stage] for each in timed)
            found[of_episode] = seconds / len(timed)
            found[of_time] = seconds / sum(each["total"] for each in timed)
    return found
