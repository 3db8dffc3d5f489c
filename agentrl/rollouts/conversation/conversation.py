"""Conversation of a policy, driven by an agent, turn by turn."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from agentrl.chat.formats.native_calls import reply_of
from agentrl.chat.formats.parser import Reply
from agentrl.chat.last_images import LastImages
from agentrl.chat.renderer import Renderer
from agentrl.chat.thread import Prompt, Thread
from agentrl.config.limits import Limits
from agentrl.rollouts.conversation.calls import Heard
from agentrl.rollouts.conversation.policies import EpisodePolicy, fork_at
from agentrl.rollouts.conversation.state import EpisodeEnd, EpisodeState, ExclusiveCall, SessionMisused
from agentrl.rollouts.conversation.tool_prompt import ToolPrompt
from agentrl.rollouts.states.registry import Moment, StateRule
from agentrl.tools.asides import asides
from agentrl.tools.base import Observation, Tool, ToolResult
from agentrl.tools.methods import ToolMethod
from agentrl.tools.responders import speakers
from agentrl.types import values
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.engine import Completion, ContextOverflow, Engine, Sampling, sample
from agentrl.types.episode import MAIN, Branch, CallRecord, Context, Drift, TurnDraft
from agentrl.types.errors import EngineError
from agentrl.types.parts import content
from agentrl.types.parts.intake import Images
from agentrl.types.seeds import derive_seed
from agentrl.types.task import Message, Task
from agentrl.types.trajectory import ROOT

if TYPE_CHECKING:
    from agentrl.types.sandbox import Sandbox

RecordedPrompt = tuple[Prompt, Branch | Drift | None]
"""Prompt of a record, and the fork at it, if any."""


class TurnSource(Protocol):
    """Source of an episode's turns: its policies, or a record and then its policies.

    Attributes:
        repeats: whether turns of a record are repeated now.
    """

    @property
    def repeats(self) -> bool: ...

    def begin(self, state: EpisodeState) -> None:
        """Prepares the state of the episode, before the agent runs."""
        ...

    def turn(self, conversation: Conversation, number: int, agent: str, begin: str) -> Coroutine[Any, Any, Reply]:
        """Adds the next turn to a conversation.

        Args:
            number: of the turn in the episode.
            agent: the speaking role.
            begin: the beginning of the reply.
        """
        ...

    async def play_back(self, session: Conversation) -> None:
        """Plays the turns of the record in a fork of a running episode, in which no agent runs from the beginning."""
        ...

    def check_end(self, turns: Sequence[TurnDraft]) -> None:
        """Checks at the end of the agent that the turns are all that it had to play."""
        ...


class SampledTurns:
    """Source of the turns of an episode that resumes no other: policies sample all of them."""

    repeats = False

    def begin(self, state: EpisodeState) -> None:
        """Does nothing."""

    def turn(self, conversation: Conversation, number: int, agent: str, begin: str) -> Coroutine[Any, Any, Reply]:
        """Samples the next turn."""
        return conversation.sample(number, agent, begin)

    async def play_back(self, session: Conversation) -> None:
        """Does nothing: there is no record."""

    def check_end(self, turns: Sequence[TurnDraft]) -> None:
        """Does nothing: every turn was sampled."""


class Conversation:
    """Conversation of a policy with tools and environments, driven by an agent.

    Args:
        tool_prompt: the tools that it offers.
        speaker: the speaking policy.
        name: `main`, or the name of its context.
        role: the speaking role.

    Attributes:
        source: of its turns.
        opening: the messages before the first reply.
        turns: its own turns so far, as drafts: calls, observations and rewards are added while it goes on.
        outcome: set by `finish`; the agent should then return.
        under_way: the running call, "" if none.
        seat_outcome: set by `score`: outcome for the credit of its turns, in place of the episode's reward.
    """

    def __init__(
        self,
        state: EpisodeState,
        tool_prompt: ToolPrompt,
        speaker: EpisodePolicy,
        source: TurnSource,
        name: str = MAIN,
        role: str = "agent",
    ) -> None:
        self.state, self.speaker, self.source = state, speaker, source
        self.name, self.role = name, role
        self.opening: list[Message] = []
        self.turns: list[TurnDraft] = []
        self.outcome: EpisodeEnd | None = None
        self.seat_outcome: float | None = None
        self.under_way = ""
        self._tool_prompt = tool_prompt
        count = tool_prompt.renderer.last_images
        images = None if count is None else LastImages.of(count, state.task.instruction)
        self._thread = Thread(speaker.trajectory(state.recording), images)
        self._branch = Branch(turn=0, reason="tools", at_token=0)  # Reason, if the next prompt starts one.
        state.join(name, self)

    @property
    def id(self) -> str:
        """Id of the episode."""
        return self.state.id

    @property
    def engine_session(self) -> str:
        """Session of the engine: those of one episode have different prefixes."""
        return self.id if self.name == MAIN else f"{self.id}@{self.name}"

    @property
    def messages(self) -> list[Message]:
        """Conversation so far, with the sampled replies. It grows with the conversation: copy what you store."""
        return self._thread.messages

    @property
    def rewritten(self) -> bool:
        """True if the context was replaced since the last reply."""
        return self._thread.restarted

    @property
    def task(self) -> Task:
        return self.state.task

    @property
    def policy(self) -> str:
        """Name of the speaking policy."""
        return self.speaker.name

    @property
    def engine(self) -> Engine:
        return self.speaker.engine

    @property
    def sandbox(self) -> Sandbox | None:
        return self.state.calls.sandbox

    @property
    def images(self) -> Images:
        """Images of the episode so far."""
        return self.state.calls.images

    @property
    def limits(self) -> Limits:
        return self.state.limits

    @property
    def seed(self) -> int:
        """Seed of the episode."""
        return self.state.seed

    @property
    def max_turns(self) -> int:
        return self.state.max_turns

    @property
    def tools(self) -> list[Tool]:
        """Tool instances of the episode, opened."""
        return self._tool_prompt.box.instances

    @property
    def methods(self) -> dict[str, ToolMethod]:
        """Tools that the model may call now."""
        return self._tool_prompt.methods

    @property
    def renderer(self) -> Renderer:
        return self._tool_prompt.renderer

    @property
    def sampling(self) -> Sampling:
        return self._tool_prompt.sampling

    @property
    def definitions(self) -> list[dict[str, Any]] | None:
        """Definitions of the tools of the first turn; None: those of the recipe."""
        return self._tool_prompt.definitions

    def prompt_tokens(self) -> int:
        """Returns the length of the next prompt. The engine takes `engine.max_context` tokens, prompt and reply
        together.
        """
        return self._thread.length(self.renderer)

    def begin_engine(self) -> None:
        """Announces the conversation to the engine."""
        seed = derive_seed(self.state.seed, *self._named) if self._named else self.state.seed
        if self._named:
            self.engine.begin_context(
                self.engine_session, self.task, self.messages, seed, episode=self.id, name=self.name
            )
        else:
            self.engine.begin_session(self.engine_session, self.task, self.messages, seed)
        self.engine.use_images(self.engine_session, self.images.read)
        if self.definitions is not None:
            self._tell_engine()

    def end_engine(self) -> None:
        """Ends the conversation's session of the engine."""
        self.engine.end_session(self.engine_session)

    def record(self) -> Context:
        """Returns the context for the episode's record."""
        return Context(
            role=self.role,
            prompt=self.opening,
            policy=self.policy,
            tools=self.definitions,
            version=self.speaker.version,
            trains=self.speaker.further,
            outcome=self.seat_outcome,
        )

    def begin(self, messages: list[Message], shown: Sequence[Message] = ()) -> None:
        """Opens the conversation. It is rendered for the first reply: until then, `say` adds to the opening.

        Args:
            shown: opening messages of the environments, checked.
        """
        self._open([*content.messages(messages, "the opening", self.images.take), *shown])

    async def generate(self, *, agent: str | None = None, begin: str = "") -> Reply:
        """Runs one model turn.

        Args:
            agent: the speaking role; default: the role of the conversation.
            begin: text that the reply begins with, a prefill. The policy continues it and trains on its own tokens;
                the turn's text has both. A thought that the template opens is closed first, unless `begin` begins with
                its mark. White space at the end belongs to the tokens that follow, and is better left to the policy.

        Raises:
            LimitReached: no turn or no token is left; the episode ends as truncated.
            EngineError: the engine failed or took longer than `limits.generate_s`.
            SessionMisused: another `generate` or `run_tools` of this conversation is under way, or the engine cannot
                continue a reply.
        """
        with ExclusiveCall(self, "generate()"):
            if begin:
                begin = values.text(begin)
                self.speaker.check_begins(begin, self.id)
            speaker, number = self.role if agent is None else values.text(agent), self.state.begin_turn()
            try:
                return await self.source.turn(self, number, speaker, begin)
            finally:
                self.state.end_turn(number)

    async def sample(self, number: int, agent: str, begin: str, recorded: RecordedPrompt | None = None) -> Reply:
        """Runs one model turn: a `TurnSource` calls it.

        Args:
            number: of the turn in the episode.
            begin: the beginning of the reply.
            recorded: the prompt, if it is one of a record; else it is rendered.
        """
        state, speaker = self.state, self.speaker
        self.read_tools()
        renderer = self.renderer
        if recorded is None:
            prompt = self._thread.prompt(renderer)
            fork = speaker.fork(fork_at(prompt, self._branch))
        else:
            prompt, fork = recorded
        asked, begun = prompt.tokens, renderer.begin(begin, prompt.tokens) if begin else []
        size = len(asked) + len(begun)
        if size + speaker.room(asked) >= speaker.engine.max_context:
            raise ContextOverflow(f"{size} tokens, the engine takes {speaker.engine.max_context}")
        if begin:
            prompt = self._thread.begin(prompt, begun)
            self.engine.begin_reply(self.engine_session, begin)
        key = await self._state(state.states) if speaker.trains and state.states is not None else None
        saved = await state.saved() if state.saves else None
        started = time.perf_counter()
        completion = speaker.stamped(await self._sampled(prompt.tokens))
        seconds = time.perf_counter() - started
        state.seconds["generate"] += seconds
        said = [*begun, *completion.token_ids] if begin else completion.token_ids
        text, reply = renderer.read(asked, said, list(self.methods))
        if (native := completion.native) is not None:
            opened = renderer.opened_by(asked)
            reply = reply_of(renderer.parser, opened + native.text, native.calls, list(self.methods))
        own = self._thread.reply(prompt, completion, text, opened=renderer.opening_of(asked), trained=speaker.trains)
        turn = TurnDraft(
            index=number,
            node=speaker.node(state.recording, own, self.turns[-1].node if self.turns else ROOT),
            text=text,
            finish=completion.finish,
            state=key,
            agent=agent,
            generate_s=seconds,
            queue_s=completion.queue_s,
            decode_s=completion.decode_s,
            usage=completion.usage,
            context=self.name,
            saved=saved,
        )
        self._place(turn, fork)
        return reply

    async def _state(self, rule: StateRule) -> str | None:
        """Returns the key of the state that the next turn acts on; None if it is unknown.

        Raises:
            ValueRefused: the value of a signature or of `state_key()` cannot be a key.
        """
        owners = {name: method.owner for name, method in self.methods.items()}
        opened = self.tools, owners, self.sandbox, rule.keyed
        return await rule.key(Moment(self.task, self.opening, self.turns, *opened))

    def adopt(self, turn: TurnDraft, opened: str, fork: Branch | Drift | None) -> None:
        """Adds a recorded turn in place of a sampled one. Its calls are still to run.

        Args:
            opened: the mark of a thought that its prompt left open.
        """
        self._thread.adopt(turn.node, turn.text, opened)
        self._place(turn, fork)

    async def adopt_text(self, turn: TurnDraft, fork: Branch | Drift | None) -> Reply:
        """Adds a recorded turn whose tokens are not recorded. Returns the reply, whose calls are still to run."""
        prompt, renderer = self._thread.prompt(self.renderer), self.renderer
        await self.engine.skip(prompt.tokens, self.engine_session)
        tokens, opened = renderer.demonstrate(turn.text, prompt.tokens), renderer.opening_of(prompt.tokens)
        said = Completion(token_ids=tokens, logprobs=[], finish="stop", versions=[])
        self._thread.reply(prompt, said, turn.text, opened=opened, trained=False)
        self._place(turn, fork)
        return renderer.meaning(prompt.tokens, turn.text, list(self.methods))

    def _place(self, turn: TurnDraft, fork: Branch | Drift | None) -> None:
        """Adds a turn, whose reply is in the messages, to this conversation and to the recording."""
        self.engine.replied(self.engine_session, self.messages[-1])
        turn.tools, self._tool_prompt.changed = self._tool_prompt.changed, None
        self.turns.append(turn)
        self.state.recording.place(turn, fork)

    async def _sampled(self, prompt: list[int]) -> Completion:
        seed = derive_seed(self.state.seed, "turn", *self._named, len(self.turns))
        sampling = msgspec.structs.replace(self.sampling, seed=seed)
        self.state.stage = "generate"
        try:
            async with Deadline(self.limits.generate_s):
                completion = await sample(self.engine, prompt, sampling, self.engine_session)
        except TimeoutError:
            raise EngineError(
                f"{self.speaker.owner}no completion within {self.limits.generate_s:g} s",
                remedy="raise limits.generate_s",
            ) from None
        except EngineError as error:
            if not self.speaker.owner or type(error) is not EngineError:
                raise
            raise EngineError(self.speaker.owner + error.message, place=error.place, remedy=error.remedy) from error
        self.state.stage = "agent"
        return completion

    async def run_tools(self, reply: Reply) -> list[ToolResult]:
        """Runs the calls of the last turn and appends their results.

        Calls of one tool instance run in the order of the reply, those of different tools concurrently.

        Malformed calls, unknown tools, exceptions of tools and timeouts become observations for the model; only
        `InfraError`, rewards that are not numbers and cancellation propagate. The other calls are then cancelled.

        Raises:
            SessionMisused: another `generate` or `run_tools` of this conversation is under way.
        """
        with ExclusiveCall(self, "run_tools()"), asides(self.aside):
            started, self.state.stage = time.perf_counter(), "tools"
            records, results = await self.state.calls.run(reply, self.methods)
            self._observe(records, time.perf_counter() - started, results)
            self.state.stage = "agent"
        for result in results:
            if result.done and self.outcome is None:
                self.finish("answer" if result.answer is not None else "tool", result.answer)
        return results

    async def aside(self, text: str, role: str, trained: bool) -> str:
        """Returns the speaker's reply to one more message, which does not become part of this conversation.

        The reply is a turn of the episode, in a separate context that opens with this conversation as text. Its tokens
        are recorded, and train if `trained`; otherwise the context has the policy `self`.
        """
        tool_prompt = self._tool_prompt.part(())
        speaker = self.speaker if trained else self.speaker.untrained(tool_prompt.renderer, tool_prompt.sampling)
        other = Conversation(self.state, tool_prompt, speaker, self.source, self.state.name_for(role), role)
        before = [{"role": each["role"], "content": content.text_of(each["content"])} for each in self.messages]
        other.begin([*before, {"role": "user", "content": text}])
        other.begin_engine()
        await other.generate()
        return other.turns[-1].text

    async def respond(self, reply: Reply) -> Observation | None:
        """Asks the environments, in order, for an observation after a reply without a tool call, and appends the first
        one.

        Environments respond in the main conversation only.

        Returns:
            None if no environment responds: the reply is the final one.

        Raises:
            TookTooLong: an environment did not answer within its `timeout_s`.
            SessionMisused: another `generate`, `run_tools` or `respond` of this conversation is under way.
        """
        asked = speakers(self._tool_prompt.box.environments) if self.name == MAIN else []
        if not asked:
            return None
        with ExclusiveCall(self, "respond()"):
            started, self.state.stage = time.perf_counter(), "tools"
            try:
                heard = await self.state.calls.respond(asked, reply)
            finally:
                self.state.stage = "agent"
            if heard is None:
                return None
            self._hear(heard, time.perf_counter() - started)
            return heard.said

    def say(self, text: Any, *, role: str = "user") -> None:
        """Appends a message that no tool produced, for example a hint of the agent: text, or a list of parts.

        Before the first reply it becomes part of the opening.
        """
        message = content.message({"role": role, "content": text}, "what was said", self.images.take)
        if self.turns:
            self._note([message])
        else:
            self._open([*self.opening, message])

    def rewrite(self, messages: list[Message], *, reason: Literal["rewrite", "summary"] = "rewrite") -> None:
        """Replaces the context (summary, dropped turns): a new branch starts.

        Before the first reply it replaces the opening, without a branch.
        """
        checked = content.messages(messages, "the new context", self.images.take)
        if self.turns:
            self._thread.restart(checked, of=messages)
            self._branch = Branch(turn=0, reason=reason, at_token=0, messages=checked)
        else:
            self._open(checked)

    def reward(self, **components: float) -> None:
        """Adds immediate reward components to the last turn; components of the same name add up, also those of tools.

        Raises:
            ValueRefused: one is not a finite number (bools, and scalars of NumPy and torch, are).
            SessionMisused: the conversation has no turn yet.
        """
        if not self.turns:
            raise SessionMisused("reward() belongs to a turn, and there is none yet", remedy="call it after generate()")
        self.state.calls.reward(self.turns[-1], values.rewards(components, "session.reward"))

    def score(self, outcome: float) -> None:
        """Sets the outcome of the seat that speaks in this context: credit of its turns uses it in place of the
        episode's reward, and compares them with those of the same role. It counts as given, without weights and gates.

        Raises:
            ValueRefused: it is not a finite number.
            SessionMisused: the agent's class does not declare seats, or it is the main conversation.
        """
        if self.name == MAIN:
            raise SessionMisused(
                "the outcome of the main conversation is the reward of the episode",
                place=f"episode {self.id}",
                remedy="let a function under 'rewards' give it; score() is for session.context(...)",
            )
        if not self.state.seats:
            raise SessionMisused(
                f"context {self.name!r} has an outcome of its own, and the agent's class does not say so",
                place=f"episode {self.id}",
                remedy="seats = True in the class, so that `agentrl recipe check` can refuse credit for one outcome",
            )
        self.seat_outcome = values.number(outcome, "the outcome of a seat", "context.score")

    def finish(self, stop: str = "answer", answer: str | None = None) -> None:
        """Ends the conversation; its agent should return. Answers that are not strings are converted to text (42 ->
        "42").
        """
        self.outcome = EpisodeEnd(stop, answer)

    def _open(self, messages: list[Message]) -> None:
        """Sets the opening, before the first reply."""
        self.opening = messages
        self._thread.restart(messages)

    @property
    def _named(self) -> tuple[str, ...]:
        """Names for seeds: those of the main conversation have none."""
        return () if self.name == MAIN else ("context", self.name)

    def _tell_engine(self) -> None:
        self.engine.use_tools(self.engine_session, self.renderer)

    def read_tools(self) -> None:
        """Reads the tools for the next turn. If prompts describe them and they changed, a new branch starts."""
        described = self.renderer.tools
        if not self._tool_prompt.read(first=not self.turns):
            return
        self._tell_engine()
        if self.turns and self.renderer.tools != described:
            if not self.rewritten:  # otherwise the record needs the new context
                self._branch = Branch(turn=0, reason="tools", at_token=0)
            self._thread.restart()

    def _hear(self, heard: Heard, seconds: float) -> None:
        said, last = heard.said, self.turns[-1]
        last.rewards = values.added(last.rewards, heard.rewards)
        self._note([heard.message], seconds=seconds)
        last.heard, last.points = len(last.observations) - 1, [*said.points]
        last.executed &= said.executed
        if said.done and self.outcome is None:
            self.finish("answer" if said.answer is not None else "tool", said.answer)

    def _observe(self, records: list[CallRecord], seconds: float, results: list[ToolResult]) -> None:
        messages: list[Message] = [
            {
                "role": "tool",
                "name": record.name if record.valid else "error",
                "tool_call_id": record.id,
                "content": content.with_images(record.result, record.images),
            }
            for record in records
        ]
        last = self.turns[-1]
        for result in results:
            last.rewards = values.added(last.rewards, result.rewards or {})
            last.executed &= result.executed
        self._note(messages, records, seconds)

    def _note(self, messages: list[Message], calls: Sequence[CallRecord] = (), seconds: float = 0.0) -> None:
        """Adds messages and calls after the last turn, for the record and for the next prompt."""
        last = self.turns[-1]
        last.calls += calls
        last.observations += messages
        last.tools_s += seconds
        self.state.seconds["tools"] += seconds
        self._thread.add(messages)
        if self.rewritten and self._branch.messages is not None:  # the whole future prompt
            whole = [*self._branch.messages, *messages]
            self._branch = msgspec.structs.replace(self._branch, messages=whole)
