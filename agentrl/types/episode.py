"""Record of an episode: messages, actions, sampled tokens and scores.

Frozen when it leaves the runner. Credit and scores of groups are stored apart (`store`): an episode is never rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from agentrl.types.errors import REMEDY, described, unless_told
from agentrl.types.parts.content import image_parts
from agentrl.types.task import Message, Task

Status = Literal["done", "truncated", "infra_error", "user_error"]
"""`done` and `truncated` are data; the other two are never scored (design: failures are never data)."""

CallOutcome = Literal["ok", "error", "raised", "timeout", "unknown", "malformed", "skipped"]


MAIN = "main"
"""Name of an episode's first conversation."""

POLICY = "policy"
"""Name of the main trainable policy."""

_ANOTHER = ""
"""Name of all other policies in `Episode.seen_by`."""


class VersionSpan(msgspec.Struct, frozen=True, array_like=True):
    """Tokens `start` (inclusive) to `end` (exclusive) of a node were sampled by policy `version`."""

    version: int
    start: int
    end: int


def gap_in(versions: Sequence[VersionSpan], tokens: int) -> str | None:
    """Describes a gap or overlap in the version spans of a node of so many tokens; None if they cover it exactly."""
    end = 0
    for span in versions:
        if span.start != end or (span.end <= span.start and tokens > 0):  # an empty span covers an empty node
            break
        end = span.end
    else:
        if end == tokens:
            return None
    return f"{tokens} tokens have the version spans {[(span.start, span.end) for span in versions]}"


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Node of the token graph: the tokens that one step ADDED to its parent's.

    Attributes:
        parent: index of the parent node, -1 for a root.
        kind: `prompt` and `observation` tokens were rendered, `sampled` tokens came from the engine and are
            the only ones that are trained on. `spoken` is a reply of an untrained policy, or one that was taken from
            the episode that this one resumes. `begun` tokens are the beginning of a reply that the agent wrote.
        logprobs: of the sampled tokens, under the sampling temperature, natural logarithm.
    """

    parent: int
    kind: Literal["prompt", "observation", "sampled", "spoken", "begun"]
    token_ids: list[int]
    logprobs: list[float] | None = None
    versions: list[VersionSpan] = []


class CallRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tool call of a turn and its result.

    Attributes:
        outcome: `malformed` calls could not be parsed and `unknown` ones name a tool that does not exist: neither
            reached a tool. `error` is the tool's answer (a `ToolError`, or arguments that do not fit), `raised` any
            other exception: a bug in the tool. `skipped` ones were not run, because an earlier one ended the reply.
        result: the observation shown to the model.
        raised: the exception and the line of user code that it came from, if the outcome is `raised`.
        dropped: characters cut from the middle of `result`.
        blob: hash of the whole output in the run directory's `blobs/`, when some of it was cut.
        foreign: the format of a `malformed` call that is written in another one than the recipe's.
        images: image parts shown to the model after `result`.
        points: (x, y) of the action, in pixels of the last image shown before it; several are a path.
    """

    id: str
    name: str
    arguments: dict[str, object]
    outcome: CallOutcome
    result: str
    duration_s: float
    raised: str = ""
    dropped: int = 0
    blob: str | None = None
    foreign: str = ""
    images: list[dict[str, Any]] = []
    points: list[tuple[float, float]] = []

    @property
    def valid(self) -> bool:
        """True if the call could be parsed and named a known tool."""
        return self.outcome not in ("malformed", "unknown")


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Token counts of an API for one turn, and their cost at the recipe's prices."""

    prompt_tokens: int
    completion_tokens: int
    cost: float


class SpanReward(msgspec.Struct, frozen=True, array_like=True):
    """Reward of a part of a reply.

    Attributes:
        component: name of the reward component. The sum of its spans is its value in `Turn.rewards`.
        start, end: characters of `Turn.text`, without `end`.
        value: as the component gave it, after its steps.
        weight: of the component; 0 if a gate shut it.
        first, last: indices of its first and last token among the sampled ones of the turn; -1: not known. 0 and -1 if
            it holds none of them, but words that the agent began the reply with.
    """

    component: str
    start: int
    end: int
    value: float
    weight: float = 1.0
    first: int = -1
    last: int = -1


class TurnDraft(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One model turn and everything until the next, while its episode runs: the draft of a `Turn`.

    Attributes:
        index: number of the turn in the episode; in a draft, in the order in which turns began.
        node: index of the node that holds the sampled tokens.
        state: anchor key of the state that the turn acted on (joined `state_key()` of the tools), None if none.
        agent: the speaking role, for agents with several.
        context: the conversation that it belongs to: `main`, or a name in `Episode.contexts`.
        saved: states before the turn of the environments that define `save`; None: none of them does.
        text: the sampled text, without the token that ends the turn; after what the agent began the reply with, if
            anything (`Session.generate`).
        observations: the messages that were appended after the turn.
        rewards: immediate reward components of this turn (None = never scored), before weights and gates.
        reward: their weighted and gated sum; None if no recipe's rewards were applied.
        spans: rewards of parts of the text, in order of their components. They are part of `rewards` and `reward`.
        finish: reason why sampling stopped: `stop`, `length` or `abort`.
        gold_logprob: mean log-probability of the gold answer's tokens given everything before this turn, None if it
            was not scored (`agentrl/rollouts/information_gain.py`).
        hindsight_logprob: mean log-probability of the turn's tokens given everything before it and the outcome of the
            episode, None if it was not scored (`agentrl/rollouts/hindsight.py`).
        generate_s, tools_s: seconds of the completion as the episode saw them, and of the calls.
        queue_s, decode_s: of `generate_s`, what the engine says (`Completion`); None: not recorded.
        usage: of an engine that is paid by the token.
        tools: definitions of the tools available from this turn on, if they changed.
        heard: index of the observation that an environment answered, if one did.
        points: (x, y) of the action of a reply without calls, as `CallRecord.points`.
        executed: False if a tool or an environment did nothing with the turn (`ToolResult.executed`).
    """

    index: int
    node: int
    text: str
    finish: str
    state: str | None = None
    agent: str = "agent"
    calls: list[CallRecord] = []
    observations: list[Message] = []
    rewards: dict[str, float | None] = {}
    reward: float | None = None
    generate_s: float = 0.0
    tools_s: float = 0.0
    gold_logprob: float | None = None
    usage: Usage | None = None
    tools: list[dict[str, Any]] | None = None
    context: str = MAIN
    saved: list[Any] | None = None
    heard: int | None = None
    points: list[tuple[float, float]] = []
    queue_s: float | None = None
    decode_s: float | None = None
    executed: bool = True
    hindsight_logprob: float | None = None
    spans: list[SpanReward] = []

    @property
    def valid(self) -> bool:
        """True if every call of the turn could be parsed and named a known tool."""
        return all(call.valid for call in self.calls)

    @property
    def action(self) -> str:
        """Comparable form of the action: the calls with sorted arguments, or the text if it has none."""
        if not self.calls:
            return self.text.strip()
        calls = [(call.name, call.arguments) for call in self.calls]
        return msgspec.json.encode(calls, order="sorted").decode()

    def frozen(self, index: int) -> Turn:
        """Returns the turn as it is now, at its place in the record. Later changes of the draft do not affect it."""
        now = msgspec.structs.asdict(self)
        now |= {"calls": [*self.calls], "observations": [*self.observations], "rewards": {**self.rewards}}
        return Turn(**now | {"index": index, "points": [*self.points]})


# The fields of a draft, which can no longer be set.
class Turn(TurnDraft, frozen=True, kw_only=True, omit_defaults=True):  # type: ignore[misc]
    """Turn of a record."""


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Place where the next prompt did not extend the tokens so far, without a deliberate change.

    Attributes:
        kind: `template`: the chat template renders an earlier part of the conversation differently from before;
            `retokenisation`: the text is the same, its tokens differ.
        at_token: number of equal tokens; the new branch begins after them.
    """

    turn: int
    kind: Literal["template", "retokenisation"]
    at_token: int


class Branch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Place where the prompt was changed on purpose, so that a new branch starts.

    Attributes:
        reason: `rewrite`: the agent replaced the context, `summary`: by a summary of it; `tools`: the tools changed,
            which the prompt describes; `images`: an image is no longer shown (`agent.history`). Of agent programs:
            `edit`: the history differs from the recorded one; `fork`: it continues from an earlier reply than the
            newest, or from none.
        at_token: number of unchanged tokens.
        messages: the whole prompt, if the agent replaced the context, or a program sent it.
    """

    turn: int
    reason: Literal["rewrite", "summary", "tools", "images", "edit", "fork"]
    at_token: int
    messages: list[Message] | None = None


class Context(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Conversation of an episode other than the main one.

    Attributes:
        role: the speaking role.
        prompt: messages that opened it.
        policy: name of the speaking policy; `policy` is the main trainable one.
        tools: definitions of the tools available in its first turn; None: the tools of the recipe.
        version: for a past version of the policy, the update after which it was taken.
        trains: whether it is a further trainable policy: its turns are recorded token by token.
        outcome: of the speaking seat, in place of the episode's reward; None: the episode's.
    """

    role: str
    prompt: list[Message]
    policy: str = POLICY
    tools: list[dict[str, Any]] | None = None
    version: int | None = None
    trains: bool = False
    outcome: float | None = None


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a resumed episode: its turns before `turn` are those of the parent.

    Attributes:
        run: id of the run that holds the parent; "": the same run, whose agent forked the running parent.
        seeds: sources of its random numbers: (first turn, seed) of each episode, in order.
    """

    run: str
    episode: str
    turn: int
    seeds: list[tuple[int, int]] = []


class GateVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict of a gate of the recipe on whether the components below it count.

    Attributes:
        on: the component under test; `value` is its value over all turns.
        strict: whether the value had to be above the threshold, rather than at least that.
        open: None if `value` is None: unknown.
        shuts: the components that are zeroed, if it is not open.
    """

    on: str
    value: float | None
    threshold: float
    strict: bool
    open: bool | None
    shuts: list[str]

    def __str__(self) -> str:
        state = {True: "open", False: "shut", None: "unknown"}[self.open]
        value = "never scored" if self.value is None else f"{self.value:g}"
        shuts = f": {', '.join(self.shuts)} not counted" if not self.open and self.shuts else ""
        return f"{self.on} {'>' if self.strict else '>='} {self.threshold:g} {state} ({value}){shuts}"


class ErrorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reason why an episode is not data, or was cut short.

    Attributes:
        place: innermost `file:line in function` of user code, "" if none was involved.
        cause: failed part of the infrastructure (`InfraError.cause`); "" if none did.
    """

    kind: str
    message: str
    stage: str
    place: str = ""
    traceback: str = ""
    cause: str = ""

    @property
    def line(self) -> str:
        """Exception and its place in user code, without the remedy."""
        return described(self.kind, self.message.partition(REMEDY)[0], unless_told(self.place, self.message))


class Episode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One complete episode.

    Attributes:
        id: unique in a run; planned before the episode starts, so that resume is a set difference.
        group_id: episodes of one group tried the same task under the same policy.
        iteration: training iteration that asked for it (0 outside training).
        split: `train`, `eval` or `demo`.
        attempt: number of earlier infrastructure failures.
        prompt: messages that opened the episode, the system message included.
        nodes: the token graph. A node's parent has a smaller index.
        stop: reason of the end: `answer` (a reply without calls, also an empty one, or a tool that ended the
            episode with an answer), `tool` (by a tool without one), `turns`, `tokens`, `wall`, `sandbox_broken` (by
            programs of the agent), `tool_broken` (it ended a tool's process, twice), or "" after an error.
        components: outcome reward components by name, before weights and gates; None = never scored, not 0.0.
        reward: their combination, without the rewards of turns; None unless the status is `done` or `truncated`.
        success: name of the metric that measures success (`types.figures.figure`), at 1 and above. "": not named.
        pending: group-scored components that are not scored yet: until then the reward is None.
        gates: verdicts of the gates of the recipe, in order.
        notes: explanation of the value, by component (a judge's votes, the reason for a None).
        timings: seconds by stage: `sandbox`, `open`, `agent` (of it `generate` and `tools`), `score`,
            `information_gain`, `hindsight`, `close`; and in `total`.
        created_at: Unix time when the episode started.
        trainable: whether tokens and log-probabilities are those of a policy; training refuses the episode if not.
        tools: definitions of the tools available in the first turn; None: the tools of the recipe.
        info: of its environments and its agent, at the end.
        branches: deliberate changes of a prompt; `drift`: unintended ones.
        contexts: its other conversations, by name.
        images: parts of its prompts that no message of the record holds (a program edited its history).
        parent: the episode that it resumes; None: it was played from its beginning.
    """

    id: str
    group_id: str
    task: Task
    status: Status
    iteration: int = 0
    split: str = "train"
    attempt: int = 0
    prompt: list[Message] = []
    nodes: list[Node] = []
    turns: list[Turn] = []
    answer: str | None = None
    stop: str = ""
    components: dict[str, float | None] = {}
    reward: float | None = None
    success: str = ""
    pending: list[str] = []
    gates: list[GateVerdict] = []
    notes: dict[str, str] = {}
    drift: list[Drift] = []
    error: ErrorRecord | None = None
    temperature: float = 1.0
    timings: dict[str, float] = {}
    created_at: float = 0.0
    trainable: bool = True
    tools: list[dict[str, Any]] | None = None
    info: dict[str, Any] = {}
    branches: list[Branch] = []
    contexts: dict[str, Context] = {}
    images: list[dict[str, Any]] = []
    parent: Parent | None = None

    @property
    def scored(self) -> bool:
        """True if the episode is data: it ended regularly or was truncated, and has a reward."""
        return self.status in ("done", "truncated") and self.reward is not None

    def policy_of(self, turn: Turn) -> str:
        """Returns the name of the policy that sampled a turn."""
        context = self.contexts.get(turn.context)
        return POLICY if context is None else context.policy

    def outcome_of(self, turn: Turn) -> float:
        """Returns the outcome for the credit of a turn: that of its seat, else the reward of the episode."""
        context = self.contexts.get(turn.context)
        own = None if context is None else context.outcome
        return (self.reward or 0.0) if own is None else own

    def shown_images(self) -> Iterator[dict[str, Any]]:
        """Yields its images, as parts of messages and calls; one may come several times."""
        yield from self.images
        yield from image_parts([*self.task.instruction, *self.prompt])
        for context in self.contexts.values():
            yield from image_parts(context.prompt)
        for branch in self.branches:
            yield from image_parts(branch.messages or [])
        for turn in self.turns:
            yield from image_parts(turn.observations)
            for call in turn.calls:
                yield from call.images

    @property
    def own_turns(self) -> list[Turn]:
        """Turns of the main policy, without those of other policies (`turns` has all)."""
        if not self.contexts:
            return list(self.turns)
        return [turn for turn in self.turns if self.policy_of(turn) == POLICY]

    @property
    def sampled_turns(self) -> list[Turn]:
        """Own turns that this episode sampled, which train: the first turns of a fork were sampled by its parent."""
        return [turn for turn in self.own_turns if self.nodes and self.nodes[turn.node].kind == "sampled"]

    @property
    def trained_policies(self) -> list[str]:
        """Names of the policies that train on the episode: their turns are recorded token by token."""
        return [POLICY, *sorted({each.policy for each in self.contexts.values() if each.trains})]

    def seen_by(self, policy: str) -> Episode:
        """Returns the episode from the view of another trainable policy: its own turns are those of `policy`."""
        if policy == POLICY:
            return self
        main = Context(role="agent", prompt=self.prompt, policy=_ANOTHER)
        others = {
            name: msgspec.structs.replace(each, policy=POLICY if each.policy == policy else _ANOTHER)
            for name, each in self.contexts.items()
        }
        return msgspec.structs.replace(self, contexts={MAIN: main, **others})

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that the main policy sampled, without those of other trainable policies."""
        return sum(map(self.trained, self.own_turns)) if self.nodes else 0

    @property
    def reply_tokens(self) -> int:
        """Number of tokens of the policy's replies. In a fork it is larger than `sampled_tokens`: its parent sampled
        some."""
        return sum(len(self.nodes[turn.node].token_ids) for turn in self.own_turns) if self.nodes else 0

    @property
    def shut(self) -> set[str]:
        """Names of the components that a gate zeroed."""
        return {name for gate in self.gates if not gate.open for name in gate.shuts}

    def copied(self) -> Episode:
        """Returns a copy with separate lists and dicts, so that user code cannot change this one."""
        nodes = [
            msgspec.structs.replace(
                node,
                token_ids=[*node.token_ids],
                logprobs=None if node.logprobs is None else [*node.logprobs],
                versions=[*node.versions],
            )
            for node in self.nodes
        ]
        rest = msgspec.structs.replace(self, task=Task(id="", instruction=[]), nodes=[])
        own = msgspec.convert(msgspec.to_builtins(rest), Episode)
        return msgspec.structs.replace(own, task=self.task.copied(), nodes=nodes)

    @property
    def forked(self) -> bool:
        """True if an agent forked it from another episode of the run; it was not planned."""
        return self.parent is not None and not self.parent.run

    @property
    def taken(self) -> int:
        """Number of first turns that were taken from its parent."""
        return 0 if self.parent is None else self.parent.turn

    def trained(self, turn: Turn) -> int:
        """Returns the number of trainable tokens of the turn."""
        node = self.nodes[turn.node]
        return len(node.token_ids) if node.kind == "sampled" else 0

    def leaves(self) -> list[int]:
        """Returns the leaf nodes of the token graph: one per branch, in order of creation."""
        return leaves_of(self.nodes)

    def path(self, leaf: int) -> list[int]:
        """Returns the node indices from the root to `leaf`."""
        return path_to(self.nodes, leaf)


def leaves_of(nodes: Sequence[Node]) -> list[int]:
    """Returns the indices of the leaf nodes, in order."""
    parents = {node.parent for node in nodes}
    return [index for index in range(len(nodes)) if index not in parents]


def path_to(nodes: Sequence[Node], leaf: int) -> list[int]:
    """Returns the node indices from the root to `leaf`; none to -1, the parent of a root."""
    path = []
    while leaf >= 0:
        path.append(leaf)
        leaf = nodes[leaf].parent
    return path[::-1]


def begun(nodes: Sequence[Node], reply: int) -> list[int]:
    """Returns the tokens that the agent began a reply with, which stand before its own; usually none."""
    at = nodes[reply].parent
    return nodes[at].token_ids if at >= 0 and nodes[at].kind == "begun" else []


def prompt_of(nodes: Sequence[Node], reply: int) -> int:
    """Returns the last node of a reply's prompt, -1 if it has none. What the agent began it with is no part of it."""
    at = nodes[reply].parent
    return nodes[at].parent if at >= 0 and nodes[at].kind == "begun" else at


def in_order(episodes: Iterable[Episode]) -> list[Episode]:
    """Sorts the members of a group in the order of the plan, whatever the order in which they ended."""

    def place(episode: Episode) -> tuple[list[int], str, str]:
        number = planned_id(episode.id).rpartition("#")[2]
        return [int(part) if part.isdecimal() else 0 for part in number.split(".")], number, episode.id

    return sorted(episodes, key=place)


def is_fork(id: str) -> bool:
    """Returns True if an agent forked the episode from a planned one."""
    return "." in id.rpartition("#")[2]


def planned_id(id: str) -> str:
    """Returns the planned id of an episode, without the number of a repetition (`rollout.specs.missing`)."""
    return re.sub(r"~\d+(?=$|\.\d+$)", "", id)
