"""Hindsight: the policy's log-probability of its own turns, once its prompt says how the episode ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.chat.renderer import Renderer
from agentrl.config.credit import Hindsight
from agentrl.estimators.registry import CreditAssigner
from agentrl.rollouts.information_gain import has_tokens
from agentrl.types.engine import Engine, score
from agentrl.types.episode import TurnDraft
from agentrl.types.parts.content import text_of
from agentrl.types.trajectory import Trajectory

SEAM = 8
"""Tokens by which the note may grow where its parts are tokenised together."""


def hindsight_of(settings: Hindsight | None, credit: CreditAssigner) -> HindsightScorer | None:
    """Makes the scorer of turns in hindsight; None if neither the recipe nor its credit needs it."""
    if settings is None and "hindsight_logprob" not in credit.needs:
        return None
    return HindsightScorer(settings or Hindsight())


def aside(renderer: Renderer, prompt: Sequence[int], note: str) -> list[int]:
    """Returns the tokens that put a note between a prompt and its reply: an empty reply, and the note as a message."""
    silent = renderer.demonstrate("", prompt)
    return [*silent, *renderer.extend(silent, [{"role": "user", "content": note}])]


@dataclass(frozen=True)
class HindsightScorer:
    """Scores turns in hindsight with the settings of a recipe."""

    settings: Hindsight

    def note(self, renderer: Renderer, answer: str | None, turns: Sequence[TurnDraft]) -> str:
        """Returns the note on how an episode ended: by its answer, else by the last observation."""
        shown = [message for turn in turns for message in turn.observations]
        outcome = answer if answer is not None else text_of(shown[-1]["content"]) if shown else ""
        encoded = renderer.tokenizer.encode(outcome, False)[: self.settings.outcome_tokens]
        return self.settings.note.replace("{outcome}", renderer.tokenizer.decode(encoded))

    def room(self, renderer: Renderer, prompt: Sequence[int]) -> int:
        """Returns the number of tokens that the note takes after `prompt`, at most."""
        bare = aside(renderer, prompt, self.settings.note.replace("{outcome}", ""))
        return len(bare) + self.settings.outcome_tokens + SEAM

    async def score(
        self, engine: Engine, renderer: Renderer, trajectory: Trajectory, turns: Sequence[TurnDraft], answer: str | None
    ) -> list[float | None]:
        """Returns `hindsight_logprob` of each turn: the mean log-probability (nats, temperature 1) of its tokens after
        its prompt and the note. Of a reply that does not fit with the note the beginning is scored.

        Calls the engine once per branch of the episode, so that tokens in a session's prefix cache are not recomputed.
        Turns that a fork took from its parent are scored, too: the fork may have ended otherwise. Those of other
        policies have no tokens.
        """
        note = self.note(renderer, answer, turns)
        said = {turn.node: turn for turn in turns if has_tokens(trajectory.nodes[turn.node])}
        scored: dict[int, float] = {}
        for branch in trajectory.branches(list(said)):
            tokens = trajectory.before(branch[-1])
            begun = [trajectory.begun(node) for node in branch]
            starts = [len(trajectory.before(node)) for node in branch]
            bridges = [[*aside(renderer, tokens[:start], note), *own] for start, own in zip(starts, begun, strict=True)]
            replies = []
            for node, start, bridge in zip(branch, starts, bridges, strict=True):
                room = max(1, engine.max_context - start - len(bridge))
                replies.append([*bridge, *trajectory.nodes[node].token_ids[:room]])
            found = await score(engine, tokens, replies, starts)
            for node, bridge, logprobs in zip(branch, bridges, found, strict=True):
                own = logprobs[len(bridge) :]
                scored[said[node].index] = sum(own) / len(own) if own else 0.0
        return [scored.get(turn.index) for turn in turns]
