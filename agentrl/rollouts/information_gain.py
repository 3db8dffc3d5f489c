"""Information gain: the policy's log-probability of the gold answer before every turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.chat.renderer import Renderer
from agentrl.config.credit import InformationGain
from agentrl.estimators.registry import CreditAssigner
from agentrl.types.engine import Engine, score
from agentrl.types.episode import Node, TurnDraft
from agentrl.types.errors import CreditError
from agentrl.types.task import Task
from agentrl.types.trajectory import Trajectory


def scorer_of(settings: InformationGain | None, credit: CreditAssigner) -> AnswerScorer | None:
    """Makes the scorer of gold answers; None if neither the recipe nor its credit needs it."""
    if settings is None and "gold_logprob" not in credit.needs:
        return None
    return AnswerScorer(settings or InformationGain())


@dataclass(frozen=True)
class AnswerScorer:
    """Scores gold answers with the settings of a recipe."""

    settings: InformationGain

    def golds(self, task: Task) -> list[str]:
        """Returns the gold answers of a task to score, at least one.

        Raises:
            CreditError: the task has no gold answer.
        """
        found = task.data.get(self.settings.answer)
        answers = list(found) if isinstance(found, list | tuple) else [found]
        if not answers or not all(_is_text(answer) for answer in answers):
            raise CreditError(
                f"data[{self.settings.answer!r}] is {found!r}, and information gain needs the gold answer there",
                place=f"task {task.id}",
                remedy="give every task its answer, or name the field: information_gain: {answer: FIELD}",
            )
        return [str(answer) for answer in answers[: self.settings.at_most]]

    def room(self, renderer: Renderer, task: Task, prompt: Sequence[int]) -> int:
        """Returns the number of tokens of the longest reply to `prompt` that consists of the lead and a gold answer."""
        return max(len(self.continuation(renderer, gold, prompt)[0]) for gold in self.golds(task))

    def continuation(self, renderer: Renderer, gold: str, prompt: Sequence[int]) -> tuple[list[int], int]:
        """Returns the tokens of a reply that consists of the lead and a gold answer, and the number before the answer.

        Lead and answer are tokenised together, as the model would write them. A token across their border belongs to
        the answer.
        """
        lead = renderer.begin(self.settings.lead, prompt)
        whole = renderer.begin(self.settings.lead + gold, prompt)
        same = next((k for k, pair in enumerate(zip(lead, whole, strict=False)) if pair[0] != pair[1]), len(lead))
        return whole, min(same, len(whole) - 1)

    async def score(
        self, engine: Engine, renderer: Renderer, task: Task, trajectory: Trajectory, turns: Sequence[TurnDraft]
    ) -> list[float | None]:
        """Returns `gold_logprob` of each turn: the mean log-probability (nats, temperature 1) of the gold answer's
        tokens before the turn, of the likeliest one if there are several gold answers.

        Calls the engine once per branch of the episode, with the answers of all its turns as continuations, so that
        tokens in a session's prefix cache are not recomputed. Turns that a fork took from its parent are scored, too:
        credit compares each turn with the next. Those of other policies have no tokens.
        """
        golds = self.golds(task)
        said = {turn.node: turn for turn in turns if has_tokens(trajectory.nodes[turn.node])}
        scored: dict[int, float] = {}
        for branch in trajectory.branches(list(said)):
            tokens = trajectory.before(branch[-1])
            pairs = [
                (said[node], start, *self.continuation(renderer, gold, tokens[:start]))
                for node in branch
                for start in [len(trajectory.before(node))]
                for gold in golds
            ]
            found = await score(
                engine, tokens, [reply for _, _, reply, _ in pairs], [start for _, start, _, _ in pairs]
            )
            for (turn, _, _, lead), logprobs in zip(pairs, found, strict=True):
                mean = sum(logprobs[lead:]) / len(logprobs[lead:])
                scored[turn.index] = max(mean, scored.get(turn.index, mean))
        return [scored.get(turn.index) for turn in turns]


def has_tokens(node: Node) -> bool:
    """Returns True if the policy's tokens of a turn are recorded."""
    return node.kind == "sampled" or bool(node.token_ids)


def _is_text(answer: object) -> bool:
    return isinstance(answer, str | int | float) and not isinstance(answer, bool) and answer != ""
