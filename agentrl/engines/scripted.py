"""The scripted engine: a policy written in Python, for oracles, random agents and demonstrations.

A script is a generator function. It yields the model's turns and receives the messages of the environment:

    def oracle(task, rng):
        page = yield Say(calls=[("search", {"query": task.data["city"]})])
        yield Say("<answer>Paris</answer>")

More parameters are optional. `tools` receives the definitions of the available tools, and this list changes with the
episode. `messages` receives the conversation, including the messages before the first turn, and this list grows with
it. Each context of an episode runs the script from the start; `context` receives the context's name (`main`, ...).

The renderer turns the text into tokens, and the episode uses the same runner, tools, rewards and store as any other.
Log-probabilities are 0: a script's turn has probability 1.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.chat.formats.parser import Parser, definitions_of
from agentrl.chat.renderer import Renderer
from agentrl.engines.stops import StopStrings, cut
from agentrl.types.engine import Completion, Engine, Sampling
from agentrl.types.episode import MAIN, VersionSpan
from agentrl.types.task import Message, Task


@dataclass(frozen=True)
class Say:
    """One turn of a script: text, tool calls as (name, arguments), or both."""

    text: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


Script = Callable[..., Generator[Say, list[Message], None]]


def start_script(script: Script, task: Task, seed: int, **more: Any) -> Generator[Say, list[Message], None]:
    """Calls a script with those of `tools`, `messages` and `context` that it takes."""
    takes = inspect.signature(script).parameters.keys() & more.keys()
    return script(task, random.Random(seed), **{key: more[key] for key in takes})


@dataclass
class LiveScript:
    """State of a session.

    Attributes:
        messages: the live conversation.
        seen: its messages that the script has received or yielded, by identity.
        begun: the script has yielded its first turn.
    """

    script: Generator[Say, list[Message], None]
    messages: list[Message]
    renderer: Renderer
    tools: list[dict[str, Any]]
    seen: dict[int, Message] = field(default_factory=dict)
    begun: bool = False
    beginning: str = ""

    def new(self) -> list[Message]:
        """Returns the messages that the script has not received yet, and marks them as received."""
        found = [message for message in self.messages if id(message) not in self.seen]
        self.seen.update((id(message), message) for message in found)
        return found


class ScriptedEngine(Engine):
    """Runs one script per episode.

    Args:
        script_name: name of the script in the recipe, by which rollout workers find it.

    Attributes:
        strict: whether a turn that no model could sample is an error. Otherwise it ends at its first stop string.
    """

    strict = True

    name = "scripted"
    weights = "own"
    sees = True
    max_context = 1_000_000

    def __init__(self, script: Script, renderer: Renderer, parser: Parser, script_name: str = "") -> None:
        self.script, self.renderer, self.parser, self.script_name = script, renderer, parser, script_name
        self._live: dict[str, LiveScript] = {}

    def begin_session(self, session: str, task: Task, messages: list[Message], seed: int) -> None:
        """Starts the script of an episode. `messages` is the live conversation."""
        self.begin_context(session, task, messages, seed, episode=session, name=MAIN)

    def begin_context(
        self, session: str, task: Task, messages: list[Message], seed: int, *, episode: str, name: str
    ) -> None:
        """Starts the script for a context of an episode."""
        tools = definitions_of(self.parser)
        script = start_script(self.script, task, seed, tools=tools, messages=messages, context=name)
        self._live[session] = LiveScript(script, messages, self.renderer, tools)

    def use_tools(self, session: str, renderer: Renderer) -> None:
        """Sets the session's tools if they differ from the recipe's."""
        live = self._live[session]
        live.renderer, live.tools[:] = renderer, definitions_of(renderer.parser)

    def begin_reply(self, session: str, text: str) -> None:
        """Keeps the beginning of the next reply: the script gives what follows it."""
        self._live[session].beginning = text

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        """The next turn, up to a stop string. After the script's end the turn is empty: the episode ends.

        Raises:
            ValueError: the turn has text after a stop string, which a model could not sample.
        """
        live = self._live[session]
        said = await self._said(live)
        text = self._written(live, said)
        ids, live.beginning = live.renderer.demonstrate(text, token_ids, live.beginning), ""
        whole = Completion(
            token_ids=ids, logprobs=[0.0] * len(ids), finish="stop", versions=[VersionSpan(0, 0, len(ids))]
        )
        decode = self.renderer.tokenizer.decode
        count = StopStrings(decode, sampling.stop).first(ids) if sampling.stop else None
        if count is None:
            return whole
        unsaid = decode([token for token in ids[count:] if token not in sampling.stop_token_ids]).strip()
        if unsaid and self.strict:
            raise ValueError(f"the script continues with {unsaid[:60]!r} after a stop string: one call per turn")
        return cut(whole, count)

    def _written(self, live: LiveScript, said: Say) -> str:
        """Returns the text of a turn.

        Raises:
            ValueError: the format cannot express a call.
        """
        return live.renderer.parser.format(said.text, said.calls) if said.calls else said.text

    def replied(self, session: str, message: Message) -> None:
        """Marks a message of the script as seen, so that the script does not receive it."""
        self._live[session].seen[id(message)] = message

    async def _said(self, live: LiveScript) -> Say:
        """The next turn of a session."""
        return self._played(live)

    def _played(self, live: LiveScript) -> Say:
        """Advances the script. Returns its next turn."""
        new, begun, live.begun = live.new(), live.begun, True
        try:
            return live.script.send(new) if begun else next(live.script)
        except StopIteration:
            return Say()

    async def skip(self, token_ids: Sequence[int], session: str) -> None:
        """Advances the script and drops its turn, for a turn replayed from another episode."""
        self._played(self._live[session])

    def end_session(self, session: str) -> None:
        """Closes the script of an episode."""
        if (live := self._live.pop(session, None)) is not None:
            live.script.close()

    async def close(self) -> None:
        """Closes all scripts."""
        for session in list(self._live):
            self.end_session(session)
