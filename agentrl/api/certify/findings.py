"""Findings about an environment from the episodes of probes. Pure functions of episodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentrl.types.episode import Episode, Turn
from agentrl.types.figures.of_episodes import SUCCESS, earned, figure, succeeded
from agentrl.types.figures.sums import vary
from agentrl.types.parts.content import text_of

State = Literal["pass", "fail", "not applicable", "unknown"]
_NOTHING = "nothing to compare: all episodes failed"


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        says: the figures, as a sentence.
        tasks: the reason by id of each task on which the check failed.
    """

    check: str
    state: State
    says: str
    tasks: dict[str, str] = field(default_factory=dict)


def passed(episode: Episode, threshold: float) -> bool:
    """Returns True if an episode reaches the threshold of success."""
    return episode.status in ("done", "truncated") and succeeded(episode, threshold=threshold)


def gold_passes(episodes: Sequence[Episode], threshold: float) -> Finding:
    """The oracle reaches the threshold on every task."""
    failing = {e.task.id: _outcome(e) for e in episodes if not passed(e, threshold)}
    tasks = {episode.task.id for episode in episodes}
    return _judged("gold passes", failing, f"{len(tasks) - len(failing)} of {len(tasks)} tasks")


def fails(check: str, episodes: Sequence[Episode], threshold: float) -> Finding:
    """Checks that a trivial policy never succeeds and breaks nothing. Broken tasks come first: few are shown."""
    broken = {episode.task.id: why for episode in episodes if (why := _broke(episode))}
    passing = [episode for episode in episodes if passed(episode, threshold) and episode.task.id not in broken]
    wrong = broken | {episode.task.id: f"passes: {_outcome(episode)}" for episode in passing}
    return _judged(check, wrong, _counted(episodes, threshold))


def withstands(check: str, episodes: Sequence[Episode], threshold: float) -> Finding:
    """A forger gets no success. `unknown` if no call of its attack did anything."""
    found = fails(check, episodes, threshold)
    if found.state == "pass" and not any(call.outcome == "ok" for e in episodes for t in e.turns for call in t.calls):
        return Finding(check, "unknown", "no call of the attack succeeded")
    return found


def random_runs(episodes: Sequence[Episode], threshold: float) -> Finding:
    """Checks that random calls break nothing, whatever their reward."""
    broken = {episode.task.id: why for episode in episodes if (why := _broke(episode))}
    return _judged("random runs", broken, _counted(episodes, threshold))


def repeats(pairs: Iterable[tuple[Episode, Episode]]) -> Finding:
    """The same actions on the same task meet the same observations."""
    return _compared("reset and tools repeat", pairs)


def keys_repeat(pairs: Iterable[tuple[Episode, Episode]]) -> Finding:
    """State keys are equal where the actions so far are, and differ somewhere."""
    pairs, check = list(pairs), "state keys repeat"
    episodes = [episode for pair in pairs for episode in pair]
    broken = {e.task.id: _outcome(e) for e in episodes if e.error is not None and "state_key" in e.error.line}
    if broken:
        return Finding(check, "fail", f"state_key failed on {len(broken)} of {len(pairs)} tasks", broken)
    if all(map(_failed, episodes)):
        return Finding(check, "unknown", _NOTHING)
    keys = [turn.state for episode in episodes for turn in episode.turns]
    if all(key is None for key in keys):
        return Finding(check, "not applicable", "no tool or environment defines state_key")
    different = {}
    for first, second in pairs:
        for one, other in _same_so_far(first, second):
            if one.state != other.state:
                different[first.task.id] = f"turn {one.index}: {one.state!r}, then {other.state!r}"
                break
    says = f"{len(set(keys))} keys in {len(keys)} turns"
    if len(set(keys)) == 1 and len(keys) > len(pairs) * 2:
        return Finding(check, "fail", f"{says}: every state has the same key")
    return _judged(check, different, says)


def undisturbed(pairs: Iterable[tuple[Episode, Episode]]) -> Finding:
    """Checks that an episode runs among others as it runs alone.

    Args:
        pairs: episodes of tasks that are reproducible alone: others differ between episodes anyway.
    """
    pairs, check = list(pairs), "episodes do not see each other"
    if not pairs:
        return Finding(check, "unknown", "no task repeats when it is played alone")
    return _compared(check, pairs)


def grader_repeats(episodes: Iterable[Episode], again: Mapping[str, float | None]) -> Finding:
    """The same episode gets the same reward again."""
    rewards = {episode.id: (episode.task.id, episode.reward) for episode in episodes if episode.id in again}
    if not rewards:
        return Finding("grader repeats", "unknown", _NOTHING)
    different = {task: f"{was}, then {again[id]}" for id, (task, was) in rewards.items() if was != again[id]}
    return _judged("grader repeats", different, f"{len(rewards) - len(different)} of {len(rewards)} episodes")


def has_signal(episodes: Iterable[Episode], who: str) -> Finding:
    """Checks that the rewards of at least one group differ, as group-relative methods need."""
    groups = defaultdict(list)
    for episode in episodes:
        if episode.scored:
            groups[episode.group_id].append(earned(episode) or 0.0)
    spread = sum(map(vary, groups.values()))
    says = f"{spread} of {len(groups)} groups of {who} hold different rewards"
    return Finding("a signal to learn from", "pass" if spread else "unknown", says)


def difference(first: Episode, second: Episode) -> str:
    """The first place where two episodes of one task differ although the actions before it are equal; "": none."""
    if _failed(first) != _failed(second):
        return f"{_outcome(first)}, then {_outcome(second)}"
    if (one := _texts(first.prompt)) != (other := _texts(second.prompt)):
        return f"the opening: {_apart(one, other)}"
    for mine, its in _same_so_far(first, second):
        if mine.action == its.action and (one := _seen(mine)) != (other := _seen(its)):
            return f"turn {mine.index}, after {mine.action[:80]}: {_apart(one, other)}"
    same = [turn.action for turn in first.turns] == [turn.action for turn in second.turns]
    if same and earned(first) != earned(second):
        return f"the reward of the same actions: {earned(first)}, then {earned(second)}"
    return ""


def _same_so_far(first: Episode, second: Episode) -> Iterable[tuple[Turn, Turn]]:
    """The turns of both, up to and with the first in which they act otherwise."""
    for mine, its in zip(first.turns, second.turns, strict=False):
        yield mine, its
        if mine.action != its.action:
            return


def _seen(turn: Turn) -> str:
    return "\n".join([*(f"{call.outcome} {call.result}" for call in turn.calls), _texts(turn.observations)])


def _texts(messages: Iterable[Mapping[str, Any]]) -> str:
    return "\n".join(text_of(message["content"]) for message in messages)


def _apart(one: str, other: str) -> str:
    """Both texts from a little before they part."""
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(0, at - 20)
    return f"{one[start : at + 40]!r}, then {other[start : at + 40]!r}"


def _outcome(episode: Episode) -> str:
    if episode.error is not None:
        return f"{episode.status}: {episode.error.line}"
    counts, total = figure(episode, SUCCESS), earned(episode)
    part = "" if counts == total else f", of which {counts:g} counts as success" if counts is not None else ""
    return f"reward {total}{part} ({episode.status}, {episode.stop})"


def _broke(episode: Episode) -> str:
    """Returns the failure of user code or of a layer below it; "" without one."""
    if episode.error is not None:
        return _outcome(episode)
    raised = (call for turn in episode.turns for call in turn.calls if call.outcome == "raised")
    return next((f"the tool {call.name} raised {call.raised}" for call in raised), "")


def _failed(episode: Episode) -> bool:
    """Returns True if the episode ended in an error, so that it cannot be compared."""
    return episode.status not in ("done", "truncated")


def _counted(episodes: Sequence[Episode], threshold: float) -> str:
    solved = sum(passed(episode, threshold) for episode in episodes)
    raised = sum(bool(_broke(episode)) for episode in episodes)
    told = f", {raised} raised an exception" if raised else ""
    return f"{solved} of {len(episodes)} episodes solved{told}; mean reward {_mean(episodes)}"


def _mean(episodes: Sequence[Episode]) -> str:
    rewards = [reward for episode in episodes if (reward := earned(episode)) is not None]
    return f"{sum(rewards) / len(rewards):.3g}" if rewards else "none"


def _compared(check: str, pairs: Iterable[tuple[Episode, Episode]]) -> Finding:
    """Checks that the episodes of each pair are equal. Pairs with two failures are left out."""
    known = [(first, second) for first, second in pairs if not (_failed(first) and _failed(second))]
    if not known:
        return Finding(check, "unknown", _NOTHING)
    different = {first.task.id: found for first, second in known if (found := difference(first, second))}
    return _judged(check, different, f"{len(known) - len(different)} of {len(known)} tasks")


def _judged(check: str, failing: dict[str, str], says: str) -> Finding:
    return Finding(check, "fail" if failing else "pass", says, failing)
