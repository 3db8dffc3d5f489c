"""Agreement of estimators with the measured worth of turns, on some episodes of a stored run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.api.credit import CreditedRun, credit
from agentrl.api.forks.agreement import Agreement, MeasuredTurn, agreements, ceiling
from agentrl.api.forks.fork import fork
from agentrl.api.forks.probe import rewards_by_turn, values_of
from agentrl.api.recipes import Overrides
from agentrl.api.run import Run
from agentrl.api.run_dirs import require_whole
from agentrl.config.credit import InformationGain
from agentrl.config.recipe import Recipe
from agentrl.estimators.registry import ESTIMATORS, CreditAssigner
from agentrl.reporters.relay import Several
from agentrl.rollouts.information_gain import AnswerScorer
from agentrl.types.episode import Episode
from agentrl.types.errors import AgentRLError, CreditError, StoreError
from agentrl.types.reporter import Reporter

A_GROUP = 2
"""Episodes of a group that are measured at most."""

UNCOUNTED = frozenset({"process", "wrong", "win_rate", "hindsight_logprob"})
"""Columns from judges or hindsight: the number of tokens that a model read for them is not recorded."""


@dataclass(frozen=True)
class Cost:
    """The cost of an estimator's credit, without that of the episodes.

    Attributes:
        tokens: that a model reads for its columns, for each turn; None: their number is not recorded.
        cpu_ms: of the estimator, for a thousand turns.
    """

    tokens: float | None
    cpu_ms: float


@dataclass(frozen=True)
class CreditTruth:
    """Estimators of a run by their agreement with the measured worth of turns.

    Attributes:
        runs: the folders of the resumed episodes, one for each measured episode.
        n: episodes resumed before each turn.
        tokens: sampled to measure.
        ceiling: rank correlation that a perfect estimator could reach with so few resumptions.
        own: the estimator of the run, which has the run's settings; the others have their defaults.
        estimators: the best first.
        left_out: estimators that the run's columns do not allow, with the reason.
    """

    runs: list[Path]
    episodes: int
    turns: int
    n: int
    tokens: int
    ceiling: float
    own: str
    estimators: dict[str, Agreement]
    costs: dict[str, Cost]
    left_out: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Converts to JSON types."""
        return {**asdict(self), "runs": [str(path) for path in self.runs]}


def credit_truth(
    run: str | Path | Run,
    n: int = 16,
    *,
    estimators: Sequence[str] = (),
    episodes: int = 8,
    script: str | None = None,
    checkpoint: str | Path | None = None,
    changed_code: bool = False,
    overrides: Overrides = (),
    out: str | Path | None = None,
    reporters: Sequence[Reporter] | None = None,
) -> CreditTruth:
    """Resumes some episodes of a run `n` times before each of their turns, and compares estimators by the rank
    correlation of their credit with what the turns were worth. The same call again adds only what is missing.

    The first two episodes of each group are measured, groups with different rewards first; of a training those of its
    last iteration, which the newest policy played. Values come from resumed episodes alone, without the credited one.

    Args:
        estimators: names or `./task.py:mine`; none: all built-in ones that the run's columns allow.
        episodes: number of episodes that are measured.
        script, checkpoint, changed_code, overrides, reporters: as for `fork`.
        out: folder of the resumed episodes, a run for each measured one; default: `runs/NAME-truth`.

    Raises:
        StoreError: as `fork`, or the run has no episode that can be measured.
        CreditError: a named estimator cannot credit the run.
        EpisodesMissing: a resumed episode failed.
    """
    stored = run if isinstance(run, Run) else Run(run)
    chosen = measurable(stored.whole_episodes(), episodes)
    if not chosen:
        raise StoreError(
            "holds no scored episode with tokens whose turns share its reward",
            place=str(stored.path),
            remedy="measure a rollout or a training: agentrl show RUN lists what it holds",
        )
    results, left_out = _credited(stored, estimators)
    folder = Path(out) if out is not None else Path("runs") / f"{stored.recipe.name}-truth"
    turns, made = list[MeasuredTurn](), list[Run]()
    for number, episode in enumerate(chosen, 1):
        if reporters:
            Several(reporters).note(f"episode {number} of {len(chosen)}: {episode.id}")
        measured = fork(
            stored, episode.id, [turn.index for turn in episode.own_turns], n, script=script, checkpoint=checkpoint,
            changed_code=changed_code, overrides=overrides, out=folder / _named(episode.id), reporters=reporters,
        )  # fmt: skip
        require_whole(measured.path)
        made.append(measured)
        turns += measured_turns(episode, measured.whole_episodes())
    given = {name: _at(result, turns) for name, result in results.items()}
    own = stored.recipe.credit.use
    return CreditTruth(
        runs=[each.path for each in made],
        episodes=len(chosen),
        turns=len(turns),
        n=n,
        tokens=sum(episode.sampled_tokens for each in made for episode in each.whole_episodes()),
        ceiling=ceiling(turns),
        own=own if isinstance(own, str) else getattr(own, "__name__", str(own)),
        estimators=agreements(turns, given),
        costs={
            name: cost_of(result.credit, [*result.episodes.values()], stored.recipe) for name, result in results.items()
        },
        left_out=left_out,
    )


def measurable(episodes: Iterable[Episode], most: int) -> list[Episode]:
    """Chooses episodes to measure: scored ones with tokens in which no seat has an outcome of its own, of the last
    iteration that trained or of a rollout; `A_GROUP` of a group, groups with different rewards first.
    """
    fit = [
        each
        for each in sorted(episodes, key=lambda each: each.id)
        if each.scored and each.own_turns and each.nodes and each.split in ("train", "rollout")
        and each.parent is None and all(context.outcome is None for context in each.contexts.values())
    ]  # fmt: skip
    last = max((each.iteration for each in fit), default=0)
    groups: dict[str, list[Episode]] = {}
    for each in fit:
        if each.split == "rollout" or each.iteration == last:
            groups.setdefault(each.group_id, []).append(each)
    mixed = sorted(groups.values(), key=lambda group: len({each.reward for each in group}) < 2)
    return [each for group in mixed for each in group[:A_GROUP]][:most]


def measured_turns(episode: Episode, resumed: Iterable[Episode]) -> list[MeasuredTurn]:
    """Returns the worth of the turns of an episode's policy, by the episodes that were resumed before each of them."""
    rewards = rewards_by_turn(episode, resumed)
    parts = [rewards, *({turn: found[half::2] for turn, found in rewards.items()} for half in (0, 1))]
    whole, first, second = (values_of(episode, part) for part in parts)
    return [
        MeasuredTurn(
            episode=episode.id,
            turn=value.turn,
            worth=value.worth,
            error=value.worth_error,
            halves=(one.worth, other.worth),
            last=value is whole[-1],
        )
        for value, one, other in zip(whole, first, second, strict=True)
    ]


def cost_of(credit: CreditAssigner, episodes: Sequence[Episode], recipe: Recipe | None) -> Cost:
    """The cost of an estimator on these episodes. The answers that information gain reads are counted by the characters
    that a token of the policy has.
    """
    turns = sum(len(each.own_turns) for each in episodes)
    began = time.process_time()
    credit.assign(episodes, memory=credit.memory())
    cpu_ms = (time.process_time() - began) * 1e6 / max(turns, 1)
    if UNCOUNTED & set(credit.needs):
        return Cost(None, cpu_ms)
    return Cost(_answer_tokens(episodes, recipe) if "gold_logprob" in credit.needs else 0.0, cpu_ms)


def _answer_tokens(episodes: Sequence[Episode], recipe: Recipe | None) -> float:
    settings = (recipe.information_gain if recipe is not None else None) or InformationGain()
    scorer = AnswerScorer(settings)
    read = [
        sum(len(settings.lead + gold) for gold in scorer.golds(each.task)) for each in episodes for _ in each.own_turns
    ]
    said = sum(len(turn.text) for each in episodes for turn in each.own_turns)
    tokens = sum(each.sampled_tokens for each in episodes)
    return float(np.mean(read)) * tokens / max(said, 1)


def _credited(run: Run, estimators: Sequence[str]) -> tuple[dict[str, CreditedRun], dict[str, str]]:
    """Returns the credit of the run by estimator, and the estimators that cannot credit it."""
    results, left_out = dict[str, CreditedRun](), dict[str, str]()
    own = run.recipe.credit.use
    for name in dict.fromkeys(estimators or ESTIMATORS.built_in):
        try:
            results[name] = credit(run, None if name == own else name)
        except AgentRLError as error:
            if estimators:
                raise
            left_out[name] = error.message
    if not results:
        raise CreditError("no estimator can credit the run", place=str(run.path), remedy="name one: --estimator NAME")
    return results, left_out


def _at(result: CreditedRun, turns: Sequence[MeasuredTurn]) -> list[float]:
    """Returns the advantages of turns.

    Raises:
        CreditError: the run gives an episode no credit.
    """
    given = {each.episode_id: each.turn_advantages for each in result.credits}
    if lacking := next((turn.episode for turn in turns if turn.episode not in given), None):
        raise CreditError(
            f"{result.credit.estimator.name} gives episode {lacking} no credit",
            remedy="agentrl credit RUN lists the episodes that count; --episodes measures others",
        )
    return [given[turn.episode][turn.turn] for turn in turns]


def _named(id: str) -> str:
    return id.replace("/", "-")
