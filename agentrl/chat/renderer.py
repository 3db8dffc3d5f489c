"""Renderer: computes the tokens to append, turn by turn, so that sampled tokens are never tokenised again.

The text after a sampled reply is taken from the model's own chat template: a short stand-in conversation is rendered
with the new messages at its end, and everything after the stand-in reply is the text that the template would write.
That costs one render of the new messages, independent of the length of the episode. `agentrl.chat.proof.check`
proves on representative conversations that the template writes the same after a real history.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, Literal

from agentrl.chat.encoder import TextEncoder
from agentrl.chat.endings import Close, call_close_of, closes_of, how_results_go, passes, stops_of
from agentrl.chat.formats.native_calls import in_call_order, told, with_long_ids
from agentrl.chat.formats.parser import Parser, Reply
from agentrl.chat.guard import Guard, frames
from agentrl.chat.presence import Presence
from agentrl.chat.processor import Processor, as_template_content, expanded, sampled_image
from agentrl.chat.recognise import around_thoughts, called_message, writes_calls_of
from agentrl.chat.roles import Roles
from agentrl.chat.samples import MARK, PROBE, REPLY, STAND_IN, USER, result
from agentrl.chat.template import KEEP_TURNS
from agentrl.chat.tokenizer import Tokenizer, break_up, control_pattern
from agentrl.types.errors import RecipeError, RenderError
from agentrl.types.parts.content import image_parts, joined
from agentrl.types.task import Message

KEPT = 64
"""Maximum of cached renderers, one per set of tools: the episodes of a group have the same."""

History = Literal["as_sampled", "as_template"]
"""Form of earlier turns in the next prompt."""


class Renderer:
    """Renders the conversations of one recipe under one tokenizer.

    Args:
        parser: format in which the tools are described, unless the template teaches it.
        tools: definitions (`{"type": "function", "function": {...}}`). Empty: no tool is described.
        describe: whether prompts describe tools, those of `for_tools` too.
        history: form of earlier turns in later prompts: `as_sampled`, or `as_template` renders them.
        last_images: maximum of images in prompts, besides those of the task; None: all.

    Attributes:
        stop_token_ids: tokens that end an assistant turn; the one that the template writes comes first.
        notes: remarks of `check` that are not errors, a line each.

    Raises:
        RenderError: the template cannot be analysed.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        parser: Parser,
        tools: Sequence[dict[str, Any]],
        *,
        describe: bool = True,
        history: History = "as_sampled",
        last_images: int | None = None,
    ) -> None:
        self.tokenizer, self.parser, self.history, self.last_images = tokenizer, parser, history, last_images
        self.processor: Processor | None = getattr(tokenizer, "processor", None)
        self.describe, self.tools = describe, list(tools) if describe else []
        self._by_tools: dict[str, Renderer] = {}
        self.notes: list[str] = []
        self._texts: dict[int, str] = {}
        self._opens_none: set[tuple[int, ...]] = set()  # ends of prompts that never open a thought
        # A vocabulary without these tokens (a script's bytes) ends replies like its template.
        self._own_ends = parser.ends if tokenizer.controls.keys() >= set(parser.ends or ()) else None
        self._system_role = passes(tokenizer, [{"role": "system", "content": PROBE}, USER])
        self._results = how_results_go(tokenizer)
        self._in_template = self._template_teaches()  # it describes these tools
        self._template_describes = self._in_template if self.tools else None  # None: unknown yet
        answered = [called_message("probe", self._results[1]), result("", self._results[1])]
        self._user_after_results = passes(tokenizer, [USER, *answered, {"role": "user", "content": PROBE}])
        own_form = self._results[0] == "calls" and writes_calls_of(tokenizer, type(parser))
        self._calls_as_keys = self._own_ends is not None or own_form
        scaffold = tokenizer.render([USER, REPLY, USER], None, True)
        self._closes = closes_of(tokenizer, scaffold, self._results)
        self._call_close = call_close_of(tokenizer, self._results, self._own_ends, self._closes)
        if self._results[0] == "calls" and self._call_close is None:
            self._results = "", False
        self._end_text = self._closes[0].end
        self._encode = TextEncoder(tokenizer, self._end_text)
        self._head: tuple[str, list[int]] | None = None
        self.stop_token_ids = stops_of(tokenizer, parser, self._own_ends, self._closes, self._call_close)
        written = {text for text in tokenizer.controls if text in scaffold}
        ends = {close.end for close in (*self._closes, *([self._call_close] if self._call_close else []))}
        seen = {self.processor.placeholder} if self.processor else set()
        said = tokenizer.special | written | ends | seen
        foreign = control_pattern(said | frames(tokenizer, parser, self._results[1]))
        names = {token: text for text, token in tokenizer.controls.items()}
        self._stop_texts = {token: names[token] for token in self.stop_token_ids if token in names}
        stops = set(self._stop_texts.values())
        self._turn_ends = control_pattern(stops if self._own_ends else stops | ends)
        self._guard = Guard(self._turn_ends, control_pattern(said), foreign)
        self._safe_tools = self._guard.tools(self.tools)
        self._roles = Roles(tokenizer, [close.text for close in self._closes])
        self._presence = Presence(tokenizer.name)
        prompt = tokenizer.render([USER], None, True)
        bare = tokenizer.render([USER], None, False)
        self._generation = prompt.removeprefix(bare) if prompt.startswith(bare) else ""
        if prompt == bare:  # none, or always (Cohere's): then it differs from the text before an earlier reply
            same = next((k for k, (a, b) in enumerate(zip(prompt, scaffold, strict=False)) if a != b), len(prompt))
            self._generation = prompt[same:]
        # Text that the template writes before a reply but not in the generation prompt: the model samples it itself.
        # Known for prompts with the same opening.
        before = scaffold[: scaffold.index(STAND_IN)]
        lead = before.removeprefix(prompt) if before.startswith(prompt) else ""
        self._leads = {_opened_in(prompt, parser.thought[0]): lead}
        self.parser = parser.with_around(around_thoughts(tokenizer, parser))

    def for_tools(self, definitions: Sequence[dict[str, Any]]) -> Renderer:
        """Returns this renderer for other tools; findings about the template are reused: they do not depend on tools.

        Raises:
            ValueError: the format cannot write a call of one of them.
        """
        key = json.dumps(definitions)
        if key not in self._by_tools:
            while len(self._by_tools) >= KEPT:
                del self._by_tools[next(iter(self._by_tools))]
            self._by_tools[key] = self._with(definitions)
        return self._by_tools[key]

    def _with(self, definitions: Sequence[dict[str, Any]]) -> Renderer:
        other = copy.copy(self)
        other.parser, other.tools = self.parser.for_tools(definitions), list(definitions) if self.describe else []
        for name in other.parser.functions:
            other.parser.example(name)
        other._head, other._by_tools = None, {}
        other._safe_tools = self._guard.tools(other.tools)
        known = self._template_describes
        other._in_template = other._template_teaches() if known is None else known and bool(other.tools)
        return other

    def start(self, messages: Sequence[Message]) -> list[int]:
        """Returns the tokens of the opening messages and of the generation prompt."""
        messages = told(in_call_order(messages), self.parser, self._calls_as_keys)
        text = self._opening_text(messages)
        self._presence.prove(messages, text, self._opening_text, ("start", *self._ways))
        head, end, rest = text.partition(self._end_text)
        if not end:
            return self._with_images(self._encode(text, after=""), messages)
        # Episodes begin with the same system message and tools: tokenised once. `check` compares with the whole.
        if self._head is None or self._head[0] != head:
            self._head = head, self._encode(head + end, after="")
        return self._with_images(self._head[1] + self._encode(rest, after=self._end_text), messages)

    def extend(self, sampled_ids: Sequence[int], new_messages: Sequence[Message]) -> list[int]:
        """Returns the tokens to append after a sampled reply: its end if missing, the new messages, the generation
        prompt.

        Args:
            sampled_ids: sampled tokens, with the stop token if any.
        """
        called = self._ends_as_a_call(sampled_ids)
        close, text = self._after(new_messages, called=called)
        kind = "extend", called, *self._ways
        self._presence.prove(new_messages, text, lambda messages: self._after(messages, called=called)[1], kind)
        last = self._stop_texts.get(sampled_ids[-1], "") if sampled_ids else ""
        # A reply with calls may end with the turn at once, where others end with a separate token first (Cohere's).
        ended = close.text if last == close.end else close.text + last
        ids = self._encode(text.removeprefix(ended) if last else text, after=close.end)
        return self._with_images(ids, new_messages)

    def opened_by(self, prompt: Sequence[int]) -> str:
        """Returns the mark of a thought that a prompt leaves open, which belongs to the reply; "" if none."""
        return self.opening_of(prompt).rstrip()

    def opening_of(self, prompt: Sequence[int]) -> str:
        """Returns the mark as in the prompt, with trailing white space.

        Prompts may differ in that (Gemma 4's, after a result and not at the beginning).
        """
        if (end := tuple(prompt[-2:])) in self._opens_none:
            return ""
        prompt = [token for token in prompt[-16:] if token >= 0]  # images open no thought
        last = next(filter(None, map(self._stripped, reversed(prompt))), "")
        mark = self.parser.thought[0]
        # Nearly always the last word of the generation prompt decides. A part of a character ("\ufffd") does not.
        if not (mark.endswith(last) or last.endswith((mark, "\ufffd"))):
            if any(self._stripped(token) for token in end if token >= 0):
                self._opens_none.add(end)
            return ""
        return _opened_in(self.tokenizer.decode(prompt), mark)

    def _stripped(self, token: int) -> str:
        """Returns the text of a single token, without trailing blanks."""
        if token not in self._texts:
            self._texts[token] = self.tokenizer.decode([token]).rstrip()
        return self._texts[token]

    def read(self, prompt: Sequence[int], sampled_ids: Sequence[int], tools: Collection[str]) -> tuple[str, Reply]:
        """Returns the text of a sampled reply, without its stop token, and its parsed form.

        Args:
            prompt: the tokens before it. A thought that they leave open belongs to the reply.
            tools: names of the tools that may be called now.
        """
        ended = bool(sampled_ids) and sampled_ids[-1] in self.stop_token_ids
        text = self.tokenizer.decode(sampled_ids[:-1] if ended else sampled_ids)
        if self.processor is not None and (fault := sampled_image(self.processor, sampled_ids, self.tokenizer.decode)):
            return text, Reply("", errors=[fault])
        return text, self.meaning(prompt, text, tools)

    def meaning(self, prompt: Sequence[int], text: str, tools: Collection[str]) -> Reply:
        """Parses the text of a reply, without a stop token. `prompt` and `tools`: as `read`."""
        return self.parser.parse(self.opened_by(prompt) + text, tools)

    def begin(self, text: str, prompt: Sequence[int]) -> list[int]:
        """Returns the tokens of an unfinished reply that begins with `text`.

        Args:
            prompt: the tokens before it. A thought that they leave open is closed first, unless `text` begins with its
                mark.
        """
        return self._encode(self._begun(text, prompt), after=self._end_text)

    def demonstrate(self, text: str, prompt: Sequence[int], beginning: str = "") -> list[int]:
        """Returns the tokens of a reply given as text, as the model would sample it, its end token included.

        Args:
            prompt: the tokens before it. A thought that they leave open is closed first.
            beginning: text of the reply that the prompt ends with, if an agent began it.
        """
        said = self._guarded(text) if beginning else self._begun(text, prompt)
        return self._encode(said + self._close_of(beginning + text).text, after=self._end_text)

    def described(self, messages: Sequence[Message]) -> list[Message]:
        """Returns `messages` with the tools in the system message, unless the template describes them itself."""
        return self._described(messages, self.tools)

    def _described(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Message]:
        if not tools or self._in_template:
            return list(messages)
        about = self.parser.for_tools(tools).instructions(tools)
        if messages and messages[0]["role"] == "system":
            first = {**messages[0], "content": joined(messages[0]["content"], f"\n\n{about}")}
            return [first, *messages[1:]]
        return [{"role": "system", "content": about}, *messages]

    def describe_tools_in_system(self) -> bool:
        """Describes tools in the system message from now on; False if they already are."""
        if not self._in_template:
            return False
        self._head = None
        self._in_template = self._template_describes = False
        return True

    def system_in_user(self) -> bool:
        """Makes system messages parts of a user's from now on; False if they already are."""
        if not self._system_role:
            return False
        self._system_role, self._head = False, None
        return True

    def check_stops(self, strings: Sequence[str]) -> None:
        """Checks that the tokenizer can produce stop strings.

        Raises:
            RecipeError: it cannot: sampling would never end by one.
        """
        for string in strings:
            shown = self.tokenizer.decode(self.tokenizer.encode(string, True))
            if not string or string not in shown:
                raise RecipeError(
                    f"the tokenizer of {self.tokenizer.name} cannot produce {string!r}: it makes {shown!r} of it",
                    place="sampling.stop",
                    remedy="a string of letters that it has",
                )

    # The following is also used by `agentrl.chat.proof`.

    @property
    def _ways(self) -> tuple[bool, bool]:
        """State that changes the prompts of one template."""
        return self._in_template, self._system_role

    def _opening_text(self, messages: Sequence[Message], *, generation: bool = True) -> str:
        safe = self._safe(self._described(messages, self._safe_tools))
        return self._rendered(safe, self._safe_tools if self._in_template else None, generation)

    def _after(self, new_messages: Sequence[Message], *, called: bool, generation: bool = True) -> tuple[Close, str]:
        """Returns the end of a reply, and the text behind it, its end included.

        Args:
            called: whether the reply ended like one with calls: only then its results can answer the call.
            generation: whether to include the opening of the next reply.
        """
        called = called and self._call_close is not None and new_messages[0]["role"] == "tool"
        stand_in = REPLY
        if called:
            name = str(new_messages[0].get("name") or "tool")
            stand_in = self._guard.message(called_message(name, self._results[1]))
        safe = [USER, stand_in, *self._safe(new_messages, first=2)]
        text = self._rendered(safe, None, generation)
        _, found, tail = text.partition(STAND_IN)
        if called and self._call_close is not None:
            tail = self._call_close.end + tail.partition(self._call_close.end)[2]
            return self._call_close, tail
        close = next((close for close in self._closes if tail.startswith(close.text)), None)
        if not found or close is None:
            raise RenderError("the template drops or changes a reply", place=self.tokenizer.name, remedy=KEEP_TURNS)
        return close, tail

    def _ends_as_a_call(self, sampled_ids: Sequence[int]) -> bool:
        if self._call_close is None:
            return False
        return bool(sampled_ids) and sampled_ids[-1] == self.tokenizer.controls[self._call_close.end]

    def _begun(self, text: str, prompt: Sequence[int]) -> str:
        """Returns a reply as the model samples it: with the template's text before it, unless the reply has that."""
        opened, begins, closed = self.opening_of(prompt), text.lstrip(), self.parser.thought[1]
        lead = self._leads.get(opened, "")
        if opened and (closed in text or begins.startswith(opened.rstrip())):
            return self._guarded(begins.removeprefix(opened.rstrip()).removeprefix("\n"))
        if opened:
            return (lead or f"\n{closed}\n\n") + self._guarded(text)
        tag, own = _TAG.search(lead), self.parser.framed
        framed = own.match(begins) if own is not None else tag and begins.startswith(tag[0])
        return self._guarded(text) if framed else lead + self._guarded(text)

    def _guarded(self, text: str) -> str:
        return break_up(text, self._turn_ends, MARK)

    def _close_of(self, text: str) -> Close:
        """Returns the end that the model would sample after a reply."""
        ends = [*self._closes, *([self._call_close] if self._call_close is not None else [])]
        if len(ends) == 1 and self._own_ends is None:
            return ends[0]
        calls = bool(self.parser.parse(text, list(self.parser.functions)).calls)
        if self._own_ends is not None:
            end = self._own_ends[calls]
            return Close(end, end)
        return ends[-1] if calls else ends[0]

    def _rendered(self, safe: list[Message], tools: list[dict[str, Any]] | None, generation: bool) -> str:
        return self.tokenizer.render(self._adapt(safe), tools, generation)

    def _safe(self, messages: Sequence[Message], first: int = 0) -> list[Message]:
        """Returns messages that are safe to render. `first`: the number of the first one, for errors."""
        safe = []
        for index, message in enumerate(messages, first):
            content = message["content"]
            if not isinstance(content, str):
                place = f"message {index} ({message['role']})"
                content = as_template_content(content, self.processor, self.tokenizer.name, place)
                message = {**message, "content": content}
            safe.append(self._guard.message(message))
        return safe

    def _adapt(self, messages: list[Message]) -> list[Message]:
        """Converts messages of roles that the template does not know to parts of a user message, like Qwen; also
        results of a reply without a call if the template shows results of calls only.
        """
        how, long_ids = self._results
        messages = self._roles.fitting(messages)
        seen = self.processor is not None
        shown = seen and any(m["role"] == "tool" and not isinstance(m["content"], str) for m in messages)
        if how == "plain" and self._system_role and not long_ids and not (shown and not self._results_take_images):
            return messages
        adapted: list[Message] = []
        for message in messages:
            role, content = message["role"], message["content"]
            before = adapted[-1] if adapted else {"role": ""}
            answers = how == "plain" or (how == "calls" and ("tool_calls" in before or before["role"] == "tool"))
            answers = answers and (isinstance(content, str) or self._results_take_images)
            if role == "tool" and not answers:
                role, content = "user", joined("<tool_response>\n", content, "\n</tool_response>")
            elif long_ids and (role == "tool" or "tool_calls" in message):
                message = with_long_ids(message)
            elif role == "user" and before["role"] == "tool" and not self._user_after_results:
                role, content = "tool", joined(before["content"], "\n\n", content)
                message = adapted.pop()
            if role == "system" and not self._system_role:
                role = "user"
            if adapted and role == "user" == adapted[-1]["role"]:
                content = joined(adapted.pop()["content"], "\n\n", content)
            adapted.append({**message, "role": role, "content": content})
        return adapted

    def _with_images(self, ids: list[int], messages: Sequence[Message]) -> list[int]:
        """Returns the tokens for the record: placeholders of images have the ids of their images."""
        if self.processor is None:
            return ids
        placeholder = self.tokenizer.controls[self.processor.placeholder]
        return expanded(ids, placeholder, list(image_parts(messages)), self.processor)

    # Properties of the template, determined once.

    @cached_property
    def _results_take_images(self) -> bool:
        """True if results of tools may contain images. Otherwise these results become messages of the user."""
        how, long_ids = self._results
        reply = REPLY if how == "plain" else called_message("probe", long_ids)
        seen = {**result("", long_ids), "content": [{"type": "text", "text": PROBE}, {"type": "image"}]}
        try:
            shown = self.tokenizer.render([USER, reply, seen], None, True)
        except RenderError:
            return False
        return self.processor is not None and PROBE in shown and self.processor.placeholder in shown

    def _template_teaches(self) -> bool:
        """Returns True if there are tools, and the template describes them for the parser's own format."""
        if not self.tools:
            return False
        try:
            taught = self.tokenizer.render([USER], self.tools, True)
        except RenderError:
            return False
        if taught == self.tokenizer.render([USER], None, True):
            return False
        native = self.parser.native is not None and self.parser.native.search(taught) is not None
        return native or writes_calls_of(self.tokenizer, type(self.parser))


def _opened_in(prompt: str, mark: str) -> str:
    return prompt[prompt.rindex(mark) :] if prompt.rstrip().endswith(mark) else ""


_TAG = re.compile(r"<[^<>]+>")
