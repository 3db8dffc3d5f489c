"""A conversation to learn from, as text: from a script, a file or a recorded API.

This is the only module that tokenises recorded text: the policy did not sample it, so exact tokens do not exist.
(A script's episode is recorded in bytes; it may run before the model's tokenizer exists.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from agentrl.chat.last_images import LastImages
from agentrl.chat.renderer import Renderer
from agentrl.chat.thread import Thread
from agentrl.types.engine import Completion
from agentrl.types.episode import MAIN, POLICY, Episode
from agentrl.types.parts.content import image_parts, text_of
from agentrl.types.sample import TrainingSample, samples_of
from agentrl.types.task import Message
from agentrl.types.trajectory import Trajectory


@dataclass(frozen=True)
class Said:
    """A reply and the messages after it.

    Attributes:
        trains: the reply is trained.
        tools: definitions of the available tools, if they changed.
        opening: the prompt of the reply, if it does not continue the previous one: the first of another context, or one
            with a rewritten context.
        context: name of its conversation.
    """

    text: str
    observations: Sequence[Message]
    trains: bool = True
    tools: Sequence[dict[str, Any]] | None = None
    opening: Sequence[Message] | None = None
    context: str = MAIN


@dataclass(frozen=True)
class SupervisedConversation:
    """The opening messages, then replies.

    Attributes:
        id, group_id: ids of the sample's episode and group.
        instruction: of the task; its images are always shown.
        place: the origin, for error messages.
        tools: definitions of the first reply's tools; None: the renderer's.
    """

    id: str
    group_id: str
    opening: Sequence[Message]
    turns: Sequence[Said]
    place: str = ""
    tools: Sequence[dict[str, Any]] | None = None
    instruction: Sequence[Message] = ()

    @classmethod
    def of(cls, episode: Episode) -> SupervisedConversation:
        """Joins the conversations of an episode: turns of other contexts have separate openings."""
        return cls(
            id=episode.id,
            group_id=episode.group_id,
            opening=episode.prompt,
            turns=_said(episode),
            place=f"episode {episode.id}",
            tools=episode.tools,
            instruction=episode.task.instruction,
        )

    def ending(self, turn: int, text: str) -> SupervisedConversation:
        """Returns the conversation up to a turn, which has another text and is the only one that trains."""
        last = replace(self.turns[turn], text=text, observations=(), trains=True)
        before = [replace(each, trains=False) for each in self.turns[:turn] if each.context == last.context]
        return replace(self, turns=[*before, last])

    def texts(self) -> Iterator[str]:
        """The text of each message, to train a tokenizer."""
        yield from (text_of(message["content"]) for message in self.opening)
        for turn in self.turns:
            yield from (text_of(message["content"]) for message in turn.opening or ())
            yield turn.text
            yield from (text_of(message["content"]) for message in turn.observations)

    def _messages(self) -> Iterator[Message]:
        """Iterates over the messages of the model's prompts, including the opening of each conversation."""
        yield from (*self.instruction, *self.opening)
        for turn in self.turns:
            yield from (*(turn.opening or ()), *turn.observations)

    def samples(self, renderer: Renderer, reward: float = 0.0) -> list[TrainingSample]:
        """Returns samples for training the replies with advantage 1: one per branch.

        Args:
            reward: the reward of the episode; for a preference loss, its label.
        """
        trajectory, turns = Trajectory(), dict[int, int]()
        threads: dict[str, _Told] = {}
        count = renderer.last_images
        images = None if count is None else LastImages.of(count, self.instruction)
        for index, turn in enumerate(self.turns):
            if turn.context not in threads:
                first = replace(turn, opening=turn.opening or self.opening, tools=turn.tools or self.tools)
                threads[turn.context] = _Told(Thread(trajectory, images), renderer)
                turns[threads[turn.context].tell(first)] = index
            else:
                turns[threads[turn.context].tell(turn)] = index
        shown = tuple(sorted({part["blob"] for part in image_parts(self._messages())}))
        plain = partial(TrainingSample, episode_id=self.id, group_id=self.group_id, reward=reward, images=shown)
        found = samples_of(trajectory.nodes, turns, plain)
        return [replace(sample, advantage=sample.loss_mask.astype(np.float32)) for sample in found]


@dataclass
class _Told:
    """One of the conversations, while it is retold."""

    thread: Thread
    renderer: Renderer

    def tell(self, turn: Said) -> int:
        """Adds a reply and the messages after it. Returns the node of the reply."""
        if turn.opening is not None or turn.tools is not None:
            self.thread.restart(turn.opening)
        if turn.tools is not None:
            self.renderer = self.renderer.for_tools(list(turn.tools))
        prompt = self.thread.prompt(self.renderer)
        ids = self.renderer.demonstrate(turn.text, prompt.tokens)
        said = Completion(token_ids=ids, logprobs=[0.0] * len(ids), finish="stop", versions=[])
        opened = self.renderer.opening_of(prompt.tokens)
        node = self.thread.reply(prompt, said, turn.text, opened=opened, trained=turn.trains)
        self.thread.add(turn.observations)
        return node


def _said(episode: Episode) -> list[Said]:
    openings = {branch.turn: branch.messages for branch in episode.branches}
    begun = {MAIN}
    told = []
    for turn in episode.turns:
        opening, tools = openings.get(turn.index), turn.tools
        if turn.context not in begun:
            begun.add(turn.context)
            context = episode.contexts[turn.context]
            opening, tools = context.prompt, context.tools
        trains = episode.policy_of(turn) == POLICY
        told.append(Said(turn.text, turn.observations, trains, tools=tools, opening=opening, context=turn.context))
    return told
