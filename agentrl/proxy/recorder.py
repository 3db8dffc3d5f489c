"""The recorder: the calls of one agent program, as one episode.

A request that continues a reply sampled here extends its tokens; two requests that continue the same reply are two
branches. A conversation with a reply that was not sampled here (the program edited its history) starts a new branch,
which is recorded; in a session's first request these replies are examples, and part of the prompt.

A reply that the program never received is left out of the episode: one that could not be delivered, or whose request
was retried (clients do so automatically when a connection breaks). It stays if a later request continues it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from agentrl.chat.formats.native_calls import in_call_order, read_arguments
from agentrl.chat.formats.parser import Parser
from agentrl.chat.renderer import Renderer
from agentrl.proxy.door import texts_of, texts_of_messages
from agentrl.proxy.messages import BadRequest, before_stop, calls_of, from_openai, keys_of, refuse_image, to_openai
from agentrl.store.index import with_images
from agentrl.types.engine import Completion, ContextOverflow, Engine, Sampling, sample
from agentrl.types.episode import Branch, CallRecord, Episode, TurnDraft
from agentrl.types.errors import AgentRLError, TaskError
from agentrl.types.parts.content import Part, TakeImage, image_parts, text_of
from agentrl.types.recording import Recording
from agentrl.types.seeds import derive_seed
from agentrl.types.task import Message, Task
from agentrl.types.trajectory import ROOT

PIECE = 1 << 14
"""Characters that are tokenised at a time, where a conversation may be too long."""

PER_TOKEN = 8
"""A conversation of more characters a token of the context is counted first: most cannot fit."""


@contextmanager
def reading() -> Iterator[None]:
    """Converts errors in the block to bad requests: the program's request cannot be read.

    Raises:
        BadRequest: any exception other than AgentRLError.
    """
    try:
        yield
    except AgentRLError:
        raise
    except Exception as error:
        raise BadRequest(f"the request cannot be read: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class ProxyContext:
    """Shared by all sessions: the engine, and the renderer of conversations.

    Attributes:
        renderer: of the recipe's model, for any tools of a program.
        sampling: of the recipe: an episode has one temperature, whatever a request asks for.
        take_image: converts images to parts; by default they are refused.
    """

    engine: Engine
    renderer: Renderer
    sampling: Sampling
    seed: int
    take_image: TakeImage = refuse_image

    def renderer_for(self, tools: list[dict[str, Any]]) -> tuple[Parser, Renderer]:
        """Parser and renderer for a set of tools.

        Raises:
            BadRequest: the model's format cannot write a call of one of them.
        """
        try:
            renderer = self.renderer.for_tools(tools)
        except (KeyError, TypeError, ValueError) as error:
            raise BadRequest(f"the tools do not fit the model's format of calls: {error}") from None
        return renderer.parser, renderer


@dataclass(frozen=True)
class ChatReply:
    """A reply: the message for the program, its turn number, its token counts, and the request's stop string in it."""

    turn: int
    message: dict[str, Any]
    finish: str
    prompt_tokens: int
    completion_tokens: int
    stop: str | None = None


@dataclass
class Request:
    """A request.

    Attributes:
        turns: its replies so far.
        over: whether it was answered, or failed.
        before: the same request, where this one is its retry.
    """

    before: list[Request]
    turns: list[int] = field(default_factory=list)
    over: bool = False


class Recorder:
    """One session.

    Args:
        name: the episode's id.

    Attributes:
        recording: of the episode.
        turns: its drafts, in the order in which they were sampled. Their `tools` are those offered, changed or not.
        conversations: by the id of their last answer, if the API lets programs refer to it (Responses).
        tools: of the first request that can be recorded; at the end, of the first turn.
        apis: names of the APIs over which replies were requested.
        requests: requests in progress.
        seconds: time that the engine took.
        touched: end of the last request, on the server's clock.
    """

    def __init__(self, name: str, context: ProxyContext, *, group: str | None = None) -> None:
        self.name, self.context, self.group = name, context, group or name
        self.recording = Recording()
        self.turns: list[TurnDraft] = []
        self.prompt: list[Message] = []
        self.conversations: dict[str, list[dict[str, Any]]] = {}
        self.tools: list[dict[str, Any]] | None = None
        self.apis: set[str] = set()
        self.requests, self.touched = 0, 0.0
        self._created, self.seconds = time.time(), 0.0
        self._tips: dict[str, TurnDraft] = {}  # The turn that ended a conversation, by its keys (`_keys`).
        self._asked = self._sampled = 0
        self._asks: dict[str, list[Request]] = {}  # By the hash of the request's body.
        self._examples: set[str] = set()  # Conversations up to a reply that was not sampled here, of first requests.
        self._undelivered: set[int] = set()
        self._shown: dict[str, Part] = {}  # Images by their hash.

    async def reply(self, body: dict[str, Any], *, n: int = 1, retried: bool = False) -> list[ChatReply]:
        """Answers a request in the internal form, and records it: `n` replies, one branch each.

        Args:
            body: as a dialect reads it (`agentrl/proxy/dialects/`).
            retried: the client marked a retry. A request equal to an answered one counts as a retry anyway; for several
                replies to one prompt give `n`, or send concurrent requests.

        Raises:
            BadRequest: it cannot be recorded token by token.
            RenderError: the template refuses the conversation.
            ContextOverflow: the conversation fills the context.
            EngineError: the engine failed. The request is not recorded.
        """
        with reading():
            key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        same = self._asks.setdefault(key, [])
        ask = Request([earlier for earlier in same if retried or earlier.over])
        same.append(ask)
        replies = [asyncio.ensure_future(self._reply(body, ask)) for _ in range(n)]
        try:
            return await asyncio.gather(*replies)
        finally:
            ask.over = True
            if not ask.turns and all(reply.done() for reply in replies):  # it was refused: nothing is kept of it
                same[:] = [other for other in same if other is not ask]
                if not same:
                    self._asks.pop(key, None)

    def asked(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> None:
        """Called for every request that can be recorded, before it is answered."""
        self.tools = tools if self.tools is None else self.tools

    @property
    def spoke(self) -> bool:
        """True if a reply was sampled, delivered or not."""
        return bool(self._sampled)

    def undelivered(self, said: list[ChatReply]) -> None:
        """The program was gone when it was to be given these replies."""
        self._undelivered |= {one.turn for one in said}

    async def _reply(self, body: dict[str, Any], ask: Request) -> ChatReply:
        with reading():
            messages, tools = _checked(body)
        await self._must_fit(messages, tools)
        parser, renderer = self.context.renderer_for(tools)
        given = json.dumps(tools, sort_keys=True)
        with reading():
            self.asked(messages, tools)
            parent, rendered, edited = self._place(messages, given, parser, renderer)
        tokens = [*self.recording.trajectory.tokens(parent), *rendered]
        if len(tokens) >= self.context.engine.max_context:
            raise ContextOverflow(f"{len(tokens)} tokens, the engine takes {self.context.engine.max_context}")
        self._asked += 1
        seed, stops = derive_seed(self.context.seed, self.name, self._asked), body.get("stop") or []
        sampling = self._sampling(body.get("max_tokens"), stops, renderer, seed)
        started = time.perf_counter()
        completion = await sample(self.context.engine, tokens, sampling, self.name)
        seconds = time.perf_counter() - started
        self.seconds += seconds
        self._sampled += 1
        # From here on nothing waits: requests of one session may run side by side.
        if not self.prompt:
            self.prompt = self._ours(messages, parser)
        names = [tool["function"]["name"] for tool in tools]
        text, reply = renderer.read(tokens, completion.token_ids, names)
        told, stop = before_stop(text, stops)
        message = to_openai(reply if stop is None else renderer.meaning(tokens, told, names), told, seed)
        branch = None
        if self.turns and self.turns[-1].node != parent:  # It does not continue the newest reply.
            shared = self.recording.trajectory.shared_prefix(self.turns[-1].node, tokens)
            why: Literal["edit", "fork"] = "edit" if edited else "fork"
            branch = Branch(turn=0, reason=why, at_token=shared, messages=self._ours(messages, parser))
        turn = self._add(parent, rendered, completion, text, seconds)
        turn.tools = tools
        self.recording.place(turn, branch)
        ask.turns.append(turn.index)
        for echo in _echoes(message, text, stop):
            self._tips |= dict.fromkeys(_keys(given, [*messages, echo]), turn)
        finish = "tool_calls" if "tool_calls" in message else completion.finish if stop is None else "stop"
        return ChatReply(turn.index, message, finish, len(tokens), len(completion.token_ids), stop)

    async def count(self, body: dict[str, Any]) -> int:
        """Returns the tokens of a conversation, rendered as in a first request. Nothing is recorded.

        Raises:
            BadRequest: it could not be recorded.
            RenderError: the template refuses the conversation.
            ContextOverflow: it is far longer than the context.
        """
        with reading():
            messages, tools = _checked(body)
        await self._must_fit(messages, tools)
        parser, renderer = self.context.renderer_for(tools)
        with reading():
            return len(renderer.start([from_openai(one, parser, self.context.take_image) for one in messages]))

    async def _must_fit(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> None:
        """Counts the tokens of long texts piece by piece, with others served in between, until they are too many.

        Many short texts are counted as one long text: a template may write them next to each other.

        Raises:
            ContextOverflow: they cannot fit.
        """
        most, count = self.context.engine.max_context, 0
        if sum(map(len, _written(messages, tools))) <= PER_TOKEN * most:
            return
        for piece in _pieces(_written(messages, tools)):
            tokens = self.context.renderer.tokenizer.encode(piece, special=False)
            count += max(0, len(tokens) - 1)  # without the border a token may be of both pieces
            if count >= most:
                raise ContextOverflow(f"more than {count} tokens, the engine takes {most}")
            await asyncio.sleep(0)

    def _sampling(self, limit: int | None, stops: list[str], renderer: Renderer, seed: int) -> Sampling:
        """Returns the recipe's sampling parameters, with the allowed ones of the request."""
        own = self.context.sampling
        return msgspec.structs.replace(
            own,
            max_tokens=min(limit or own.max_tokens, own.max_tokens),
            stop_token_ids=tuple(renderer.stop_token_ids),
            stop=tuple(dict.fromkeys([*stops, *own.stop, *renderer.parser.stops()])),
            seed=seed,
        )

    def episode(
        self,
        *,
        rewards: dict[str, float] | None = None,
        answer: str | None = None,
        data: dict[str, Any] | None = None,
    ) -> Episode:
        """Ends the session and returns its episode.

        Args:
            rewards: outcome components; their sum is the reward.
            data: of the task.

        Raises:
            BadRequest: `data` is not JSON.
        """
        question = next((text_of(m["content"]) for m in self.prompt if m["role"] == "user"), "")
        task = _task(self.name, question, data or {})
        self.finish()
        episode = Episode(
            id=self.name,
            group_id=self.group,
            task=task,
            status="done",
            split="proxy",
            prompt=self.prompt,
            answer=answer,
            stop="answer",
            components=dict(rewards or {}),
            reward=sum(rewards.values()) if rewards else None,
            temperature=self.context.sampling.temperature,
            timings={"generate": round(self.seconds, 6), "total": round(time.time() - self._created, 6)},
            created_at=self._created,
            trainable=self.context.engine.trainable,
            tools=self.tools,
            info={"apis": sorted(self.apis)},
            **self.recording.fields(),
        )
        return with_images(episode, self._shown)

    def _take(self, given: Any) -> Part:
        part = self.context.take_image(given)
        self._shown[part["blob"]] = part
        return part

    def finish(self) -> None:
        """Ends the recording, without the replies that the program never saw. Of the tools, changes are recorded."""
        asks = [ask for same in self._asks.values() for ask in same if ask.turns]
        again = {turn for ask in asks for earlier in ask.before for turn in earlier.turns}
        lost = {turn for turn in again | self._undelivered if not self.turns[turn].observations}
        self.recording.drop(lost)
        self.turns[:] = [turn for turn in self.turns if turn.index not in lost]
        offered = [turn.tools for turn in self.turns]
        for turn, old, new in zip(self.turns, offered[:1] + offered, offered, strict=False):
            turn.tools = new if new != old else None
        self.tools = offered[0] if offered else self.tools

    def _place(
        self, messages: list[dict[str, Any]], given: str, parser: Parser, renderer: Renderer
    ) -> tuple[int, list[int], bool]:
        """Returns the node that a conversation continues, the tokens to append, and True if history was edited."""
        last = max((k for k, message in enumerate(messages) if message.get("role") == "assistant"), default=-1)
        if last == len(messages) - 1:
            raise BadRequest("the conversation ends with a reply: there is nothing to reply to")
        keys = _keys(given, messages[: last + 1])
        turn = next((self._tips[key] for key in keys if key in self._tips), None)
        if turn is None:
            if not self.turns:
                self._examples.update(keys)
            edited = last >= 0 and self._examples.isdisjoint(keys)
            return ROOT, renderer.start(self._ours(messages, parser)), edited
        new = self._ours(messages[last + 1 :], parser)
        self._observe(turn, messages[last], new)
        return turn.node, renderer.extend(self.recording.trajectory.nodes[turn.node].token_ids, new), False

    def _observe(self, turn: TurnDraft, reply: dict[str, Any], new: list[Message]) -> None:
        """Records the first observations after a turn."""
        if turn.observations:
            return
        results = {message.get("tool_call_id"): message["content"] for message in new if message["role"] == "tool"}
        turn.calls = [
            CallRecord(
                id=call["id"],
                name=call["function"]["name"],
                arguments=read_arguments(call["function"]["arguments"]),
                outcome="ok",
                result=text_of(results[call["id"]], lambda part: ""),
                images=list(image_parts([{"content": results[call["id"]]}])),
                duration_s=0.0,
            )
            for call in reply.get("tool_calls") or ()
            if call["id"] in results
        ]
        turn.observations = new

    def _ours(self, messages: list[dict[str, Any]], parser: Parser) -> list[Message]:
        return [from_openai(message, parser, self._take) for message in messages]

    def _add(self, parent: int, rendered: list[int], completion: Completion, text: str, seconds: float) -> TurnDraft:
        """Adds a turn, with nodes of its rendered tokens (unless present) and of the sampled ones."""
        trajectory = self.recording.trajectory
        node = trajectory.append_sampled(trajectory.append_rendered(parent, rendered), completion)
        turn = TurnDraft(
            index=len(self.turns),
            node=node,
            text=text,
            finish=completion.finish,
            generate_s=seconds,
            queue_s=completion.queue_s,
            decode_s=completion.decode_s,
        )
        self.turns.append(turn)
        return turn


def _written(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Iterator[str]:
    """Yields what a template may write of a request."""
    yield from texts_of_messages(messages)
    yield from texts_of(tools)


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """Yields texts, one behind the other, in pieces of `PIECE` characters; the last one is shorter."""
    kept, size = list[str](), 0
    for text in texts:
        at = 0
        while len(text) - at >= PIECE - size:
            end = at + PIECE - size
            yield "".join([*kept, text[at:end]])
            kept, size, at = [], 0, end
        if at < len(text):
            kept.append(text[at:])
            size += len(text) - at
    if kept:
        yield "".join(kept)


def _task(id: str, question: str, data: dict[str, Any]) -> Task:
    task = Task.of(id, question)
    try:
        return msgspec.structs.replace(task, data=data).checked()
    except TaskError as error:
        raise BadRequest(f"the data of the closing call: {error.message}") from None


def _keys(given: str, messages: list[dict[str, Any]]) -> list[str]:
    """Returns the keys of a conversation with the tools `given`: with the ids of its calls, and without."""
    return [given + key for key in keys_of(messages)]


def _echoes(message: dict[str, Any], text: str, stop: str | None) -> list[dict[str, Any]]:
    """Returns the forms in which a program may send a reply back: as received, with the stop string, or as sampled.

    Programs restore a stop string that closes something ("</code>").
    """
    if stop is None or "tool_calls" in message:
        return [message]
    return [message | {"content": said} for said in (message["content"], message["content"] + stop, text)]


def _checked(body: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    messages, tools = body.get("messages"), body.get("tools") or []
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise BadRequest("'messages' must be a list of messages")
    for message in messages:
        calls_of(message)
    if not all(isinstance(tool, dict) and isinstance(tool.get("function"), dict) for tool in tools):
        raise BadRequest("'tools' must be a list of functions")
    return in_call_order(messages), tools
