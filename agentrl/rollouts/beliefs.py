"""Beliefs of the policy: the probability of answers in the course of an episode, for rewards of groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.chat.renderer import Renderer
from agentrl.config.credit import InformationGain
from agentrl.rollouts.information_gain import AnswerScorer
from agentrl.types.engine import Engine, score
from agentrl.types.episode import Episode
from agentrl.types.task import Message
from agentrl.types.trajectory import Trajectory

ASK: list[Message] = [{"role": "user", "content": "What is the answer?"}]
"""Stands behind a last turn that nothing was shown after."""


@dataclass(frozen=True)
class PolicyBeliefs:
    """Scores answers by the policy that samples."""

    engine: Engine
    renderer: Renderer

    async def __call__(self, episode: Episode, answers: Sequence[str], lead: str) -> list[list[float | None]]:
        """Returns the mean log-probability (nats, temperature 1) of the tokens of each answer, in a reply that begins
        with `lead`, before each of the policy's turns and after the last one [turns + 1][answers].

        None where the context is full. Calls the engine once per branch of the episode.
        """
        trajectory, nodes = Trajectory(episode.nodes), [turn.node for turn in episode.own_turns]
        found: list[list[float | None]] = [[] for _ in range(len(nodes) + 1 if nodes else 0)]
        for branch in trajectory.branches(nodes):
            prefix = trajectory.tokens(branch[-1])
            moments = [(nodes.index(node), len(trajectory.before(node)), list[int]()) for node in branch]
            if branch[-1] == nodes[-1]:
                shown = [*episode.own_turns[-1].observations] or ASK
                after = self.renderer.extend(trajectory.nodes[nodes[-1]].token_ids, shown)
                moments.append((len(nodes), len(prefix), after))
            for moment, start, bridge in moments:
                found[moment] = await self._scored(prefix, start, bridge, answers, lead)
        return found

    async def _scored(
        self, prefix: list[int], start: int, bridge: list[int], answers: Sequence[str], lead: str
    ) -> list[float | None]:
        """Scores answers after the first `start` tokens of a prefix and a bridge."""
        scorer, prompt = AnswerScorer(InformationGain(lead=lead)), [*prefix[:start], *bridge]
        replies = [scorer.continuation(self.renderer, answer, prompt) for answer in answers]
        fits = [len(prompt) + len(reply) <= self.engine.max_context for reply, _ in replies]
        asked = [[*bridge, *reply] for (reply, _), ok in zip(replies, fits, strict=True) if ok]
        given = iter(await score(self.engine, prefix, asked, [start] * len(asked)))
        own = [next(given)[len(bridge) + begin :] if ok else None for (_, begin), ok in zip(replies, fits, strict=True)]
        return [None if each is None else sum(each) / len(each) for each in own]
