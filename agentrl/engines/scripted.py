"""The scripted engine: a policy written in Python, for oracles, random agents and demonstrations.

A script is a generator function. It yields the model's turns and receives the messages of the environment:

    def oracle(task, rng):
        page = yield Say(calls=[("search", {"query": task.data["city"]})])
        yield Say("<answer>Paris</answer>")

The text becomes tokens through the renderer, and the episode runs through the same runner, tools, rewards and
store as any other. Log-probabilities are 0: the script says what it says with probability one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.chat.formats.parser import Parser
from agentrl.chat.renderer import Renderer
from agentrl.engines.stops import StopStrings, cut
from agentrl.types.engine import Completion, Sampling
from agentrl.types.episode import VersionSpan
from agentrl.types.task import Message, Task


@dataclass(frozen=True)
class Say:
    """One turn of a script: text, tool calls as (name, arguments), or both."""

    text: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


Script = Callable[[Task, random.Random], Generator[Say, list[Message], None]]


class ScriptedEngine:
    """Runs one script per episode.

    Args:
        script_name: name of the script in the recipe, by which rollout workers find it.
    """

    name = "scripted"
    trainable = False
    checkpoint_names = takes_adapters = False
    max_context = 1_000_000

    def __init__(self, script: Script, renderer: Renderer, parser: Parser, script_name: str = "") -> None:
        self.script, self.renderer, self.parser, self.script_name = script, renderer, parser, script_name
        self._live: dict[str, tuple[Generator[Say, list[Message], None], list[Message], int]] = {}

    async def start(self) -> None:
        """Nothing to wait for."""

    def begin_session(self, session: str, task: Task, messages: list[Message], seed: int) -> None:
        """Starts the script of an episode. `messages` is the live conversation."""
        self._live[session] = (self.script(task, random.Random(seed)), messages, 0)

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        """The script's next turn, up to a stop string. After the script's end the turn is empty: the episode ends.

        Raises:
            ValueError: the turn has text after a stop string, which a model could not sample.
        """
        script, messages, seen = self._live[session]
        try:
            said = next(script) if seen == 0 else script.send(messages[seen:])
        except StopIteration:
            said = Say()
        self._live[session] = (script, messages, len(messages) + 1)
        text = self.parser.format(said.text, said.calls) if said.calls else said.text
        ids = self.renderer.demonstrate(text, token_ids)
        whole = Completion(
            token_ids=ids, logprobs=[0.0] * len(ids), finish="stop", versions=[VersionSpan(0, 0, len(ids))]
        )
        decode = self.renderer.tokenizer.decode
        count = StopStrings(decode, sampling.stop).first(ids) if sampling.stop else None
        if count is None:
            return whole
        unsaid = decode([token for token in ids[count:] if token not in sampling.stop_token_ids]).strip()
        if unsaid:
            raise ValueError(f"the script continues with {unsaid[:60]!r} after a stop string: one call per turn")
        return cut(whole, count)

    async def score(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]], at: Sequence[int] | None = None
    ) -> list[list[float]]:
        """Raises TypeError: a script has no log-probabilities."""
        raise TypeError("the scripted engine cannot score: use a model")

    async def update(self, weights: Any, version: int) -> None:
        """Raises TypeError: a script has no weights."""
        raise TypeError("the scripted engine cannot be trained: use a model")

    def end_session(self, session: str) -> None:
        """Closes the script of an episode."""
        if (live := self._live.pop(session, None)) is not None:
            live[0].close()

    async def close(self) -> None:
        """Closes all scripts."""
        for session in list(self._live):
            self.end_session(session)
