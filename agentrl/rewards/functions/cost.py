"""Rewards that include the cost of an answer."""

from __future__ import annotations

import math
from typing import Literal

from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.functions.maths import Metric, with_correctness
from agentrl.rewards.functions.retrieval import new_pieces
from agentrl.types.episode import CallRecord, Episode
from agentrl.types.task import Task


@reward(source="Router-R1, ulab-uiuc/Router-R1@801a240")
def router_cost(
    task: Task,
    episode: Episode,
    *,
    prices: dict[str, float],
    low: float = 0.0,
    high: float,
    per: Literal["call", "word"] = "call",
    per_token: float = 0.0,
    alpha: float = 0.9,
    key: str = "answer",
    metric: Metric = "exact_match",
) -> Scored:
    """(1 - alpha) metric + alpha C for a right answer, 0 for a wrong one, -1 if the format is wrong.

    C = 1 - (cost - low) / (high - low), within 0 and 1; 0.5 if the range is empty. The format is wrong if a call could
    not be parsed or there is no answer. The authors take the range from a running buffer of costs; here it is a
    setting, so that a reward does not depend on other episodes. Their cost is that of the tokens of the routed model's
    output: `per: word` counts the words of a call's result. `per_token` counts the policy's tokens.

    Args:
        prices: price of a call, by tool, or by tool and argument `model` (`route:big`); others are free.
        low, high: the range of costs, in the unit of the prices.
        per: the unit of a price: a call, or a word of its result if it succeeded.
        per_token: price of a sampled token.
        alpha: weight of the cost (`cost_coe`; the authors suggest 0.9 for saving).
    """
    if episode.answer is None or not all(turn.valid for turn in episode.own_turns):
        return Scored(-1.0, "no answer or a malformed call")
    cost = spent(episode, prices, per_token, per)
    note = f"cost {cost:g}"
    saved = 0.5 if high - low < 1e-9 else 1.0 - min(max((cost - low) / (high - low), 0.0), 1.0)

    def scored(right: float) -> Scored:
        return Scored((1.0 - alpha) * right + alpha * saved if right else 0.0, note)

    return with_correctness(metric, task, episode, key, scored)


def spent(
    episode: Episode, prices: dict[str, float], per_token: float = 0.0, per: Literal["call", "word"] = "call"
) -> float:
    """The cost of the calls and sampled tokens of an episode."""
    calls = [call for turn in episode.own_turns for call in turn.calls]
    units = [(call.outcome == "ok") * len(call.result.split()) if per == "word" else 1 for call in calls]
    called = sum(_price(call, prices) * unit for call, unit in zip(calls, units, strict=True))
    return called + per_token * episode.reply_tokens


def _price(call: CallRecord, prices: dict[str, float]) -> float:
    """The price of a call: that of its tool and model (`route:big`), or of its tool."""
    model = call.arguments.get("model") if isinstance(call.arguments, dict) else None
    return prices.get(f"{call.name}:{model}", prices.get(call.name, 0.0))


@reward(source="FrugalRAG, arXiv:2507.07634; microsoft/FrugalRAG@550e996 src/train/train_grpo.py")
def frugal_search(
    task: Task,
    episode: Episode,
    *,
    max_searches: int,
    search_tools: list[str] | None = None,
    key: str = "evidence",
    threshold: float = 0.6,
    max_reward: float = 2.0,
    zeta: float = 0.0,
) -> Scored:
    """Rewards stopping at the search after which nothing more was found.

    With n searches, m = `max_searches` + 1, h* the search that found the last new evidence, and
    L(x) = log((1 - x) / x), x clamped to [1e-6, 1 - 1e-6]:

    - recall below `threshold` (or nothing found): min(L((m - n) / m), 0), not below -`max_reward`: search more;
    - n = h*: `max_reward` + `zeta` h* / m;
    - n > h*: L((n - h*) / m) within -`max_reward` and `max_reward` - 0.1: search less.

    Args:
        max_searches: how many the agent may make; the authors add one for the search they open with.
        search_tools: names of the search tools; default: all tools.
        key: field of `task.data` with the evidence, as in `retrieval_recall`.
        threshold: the recall that must be reached (the authors: that of a full-exploration run, 0.6 where unknown).
        max_reward, zeta: R_max and the bonus of hard questions. The authors' values are in a configuration that was
            not read; these are ours.
    """
    limit = max_searches + 1
    by_turn, wanted = new_pieces(task, episode, key, search_tools)
    found = [count for counts in by_turn for count in counts]  # of each search, also of several in one turn
    searches, recall = len(found), sum(found) / wanted
    best = max((number for number, count in enumerate(found, 1) if count), default=0)
    note = f"{searches} searches, the last useful one {best or 'none'}, recall {recall:g}"
    if recall < threshold or not best:
        return Scored(max(-max_reward, min(_logit(abs(searches - limit) / limit), 0.0)), note)
    if searches == best:
        return Scored(max_reward + zeta * best / limit, note)
    return Scored(max(-max_reward, min(_logit((searches - best) / limit), max_reward - 0.1)), note)


def _logit(x: float) -> float:
    kept = min(max(x, 1e-6), 1 - 1e-6)
    return math.log((1 - kept) / kept)


@reward(source="AI-SearchPlanner (abstract only; weights and normalisation are ours)")
def search_planning(
    task: Task,
    episode: Episode,
    *,
    baseline_key: str = "no_search_score",
    key: str = "answer",
    metric: Metric = "f1",
    search_tools: list[str] | None = None,
    max_turns: int = 10,
    max_queries: int = 10,
    cost_weight: float = 0.1,
) -> Scored:
    """Gain of the answer over answering without search, minus the weighted cost of the plan.

    metric(answer) - `task.data[baseline_key]` - `cost_weight` (turns / max_turns + queries / max_queries) / 2.
    Sweep `cost_weight` for the Pareto front. The published form has a term for the quality of the plan as well: add
    a `rubric_judge` with a weight. Its frozen answerer is not here: the score without search is a number in the task.

    Args:
        baseline_key: the metric that the answerer reaches without search; 0 where the task has none.
    """
    baseline, turns = float(task.data.get(baseline_key, 0.0)), episode.own_turns
    queries = sum(search_tools is None or call.name in search_tools for turn in turns for call in turn.calls)
    cost = (min(len(turns) / max_turns, 1.0) + min(queries / max_queries, 1.0)) / 2

    def scored(right: float) -> Scored:
        return Scored(right - baseline - cost_weight * cost, f"gain {right - baseline:g}, cost {cost:g}")

    return with_correctness(metric, task, episode, key, scored)
