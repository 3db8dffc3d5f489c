"""The renderer: which tokens to append, turn by turn, so that sampled tokens are never tokenised again.

What comes after a sampled reply is taken from the model's own chat template: a short stand-in conversation is rendered
with the new messages at its end, and everything after the stand-in reply is what the template would have put there.
That costs one render of the new messages, whatever the length of the episode. `check` proves on representative
conversations that the parts add up to what the template makes of the whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from agentrl.chat.parser import Parser
from agentrl.chat.samples import sample_conversations
from agentrl.chat.tokenizer import Tokenizer, break_up, control_pattern
from agentrl.errors import RenderError
from agentrl.task import Message

STAND_IN = "reply-4f1d9c"
PROBE = "probe-7be2a0"

# Put where the text is cut before it is tokenised. Letters and digits, so that every template lets it pass (trimmed,
# JSON-quoted or not); random, so that no observation can contain it.
MARK = "cut" + secrets.token_hex(12)

KEEP_TURNS = (
    "the template must leave earlier turns as they are: save one that does (for example without the lines that drop "
    "<think> from earlier replies) as chat_template.jinja in the model's folder"
)


class Renderer:
    """Renders the conversations of one recipe under one tokenizer.

    Args:
        parser: in whose format the tools are described where the template does not teach it.
        tools: definitions (`{"type": "function", "function": {...}}`). Empty: no tool is described.

    Attributes:
        stop_token_ids: tokens that end an assistant turn; the one that the template writes comes first.

    Raises:
        RenderError: the template cannot be taken apart.
    """

    def __init__(self, tokenizer: Tokenizer, parser: Parser, tools: Sequence[dict[str, Any]]) -> None:
        self.tokenizer, self.parser, self.tools = tokenizer, parser, list(tools)
        self._system_role = self._passes([{"role": "system", "content": PROBE}, _USER])
        self._tool_role = self._passes([_USER, _REPLY, {**_TOOL_RESULT, "content": PROBE}])
        self._template_tools = self._tools_for_template()
        scaffold = tokenizer.render([_USER, _REPLY, _USER], None, True)
        written = {text for text in tokenizer.controls if text in scaffold}
        self._untrusted = control_pattern(tokenizer.special | written)
        self._end_text, self._close = self._find_end(scaffold)
        self._head: tuple[str, list[int]] | None = None
        self._end_id = tokenizer.controls[self._end_text]
        self.stop_token_ids = tuple(dict.fromkeys([self._end_id, *tokenizer.stop_ids]))
        names = {token: text for text, token in tokenizer.controls.items()}
        self._turn_ends = control_pattern(names[token] for token in self.stop_token_ids if token in names)
        # What the template writes before a reply and the generation prompt lacks: the model samples it itself.
        before = scaffold[: scaffold.index(STAND_IN)]
        prompt = tokenizer.render([_USER], None, True)
        self._lead = before.removeprefix(prompt) if before.startswith(prompt) else ""

    def start(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of the opening messages and of the generation prompt."""
        text = self._text(self.described(messages), self._template_tools)
        head, end, rest = text.partition(self._end_text)
        if not end:
            return self._encode(text, after="")
        # Episodes begin with the same system message and tools: tokenised once. `check` compares with the whole.
        if self._head is None or self._head[0] != head:
            self._head = head, self._encode(head + end, after="")
        return self._head[1] + self._encode(rest, after=self._end_text)

    def extend(self, sampled_ids: Sequence[int], new_messages: Sequence[Message]) -> list[int]:
        """The tokens to append after a sampled reply: its end if it has none, the new messages, the generation prompt.

        Args:
            sampled_ids: what the engine sampled, its stop token included if it sampled one.
        """
        text = self._text([_USER, _REPLY, *new_messages], None)
        _, found, tail = text.partition(STAND_IN)
        if not found or not tail.startswith(self._close):
            raise RenderError("the template drops or changes a reply", place=self.tokenizer.name, remedy=KEEP_TURNS)
        ended = bool(sampled_ids) and sampled_ids[-1] == self._end_id
        return self._encode(tail[len(self._close) :] if ended else tail, after=self._end_text)

    def begin(self, text: str) -> list[int]:
        """The tokens of a reply that begins with `text` and is not at its end."""
        return self._encode(self._lead + break_up(text, self._turn_ends, MARK), after=self._end_text)

    def demonstrate(self, text: str) -> list[int]:
        """The tokens of a reply given as text, as the model would sample it, its end token included."""
        return self._encode(self._lead + break_up(text, self._turn_ends, MARK) + self._close, after=self._end_text)

    def described(self, messages: Sequence[Message]) -> list[Message]:
        """`messages` with the tools in the system message, unless the template describes them itself."""
        if not self.tools or self._template_tools is not None:
            return list(messages)
        about = self.parser.instructions(self.tools)
        if messages and messages[0]["role"] == "system":
            first = {**messages[0], "content": f"{messages[0]['content']}\n\n{about}"}
            return [first, *messages[1:]]
        return [{"role": "system", "content": about}, *messages]

    def check(self) -> None:
        """Proves that the parts add up to the whole on representative conversations.

        Raises:
            RenderError: they do not; names the message and the first token that differs, and a remedy.
        """
        for conversation in sample_conversations(self.parser, sorted(self.tokenizer.special)):
            parts: list[int] = []
            pieces: list[tuple[int, int]] = []  # (index of a message, where the tokens end that it came with)
            at = 0
            for index, message in enumerate(conversation):
                if message["role"] != "assistant":
                    continue
                new = conversation[at:index]
                parts += self.extend(parts, new) if at else self.start(new)
                pieces.append((at, len(parts)))
                self._compare(parts, conversation[:index], pieces)
                parts += self.demonstrate(message["content"])
                pieces.append((index, len(parts)))
                at = index + 1

    def _compare(self, parts: list[int], messages: list[Message], pieces: list[tuple[int, int]]) -> None:
        # A reply is sampled token by token after the generation prompt, so no token may reach across its beginning.
        marked = [{**m, "content": MARK + m["content"]} if m["role"] == "assistant" else m for m in messages]
        text = self._text(self.described(marked), self._template_tools)
        if self._lead:
            text = text.replace(self._lead + MARK, MARK + self._lead)
        whole = self._encode(text, after="")
        if whole == parts:
            return
        shorter = min(len(whole), len(parts))
        at = next((k for k in range(shorter) if whole[k] != parts[k]), shorter)
        index = next((first for first, end in pieces if at < end), pieces[-1][0])
        raise RenderError(
            f"the chat template is not append-only: message {index} ({messages[index]['role']}) of a test conversation "
            f"of {len(messages)} differs at token {at}: the whole renders {self._show(whole, at)}, "
            f"turn by turn it is {self._show(parts, at)}",
            place=self.tokenizer.name,
            remedy=KEEP_TURNS,
        )

    def _show(self, ids: list[int], at: int) -> str:
        if at >= len(ids):
            return "nothing more"
        return f"{ids[at]} {self.tokenizer.decode(ids[at : at + 1])!r} in {self.tokenizer.decode(ids[at : at + 12])!r}"

    def _text(self, messages: Sequence[Message], tools: list[dict[str, Any]] | None) -> str:
        safe = [self._safe(index, message) for index, message in enumerate(messages)]
        return self.tokenizer.render(self._adapt(safe), tools, True)

    def _safe(self, index: int, message: Message) -> Message:
        content = message["content"]
        if not isinstance(content, str):
            raise RenderError(
                f"the content of a message is a {type(content).__name__}, not text",
                place=f"message {index} ({message['role']})",
                remedy="write it as a string",
            )
        pattern = self._turn_ends if message["role"] == "assistant" else self._untrusted
        if pattern is None or not pattern.search(content):
            return message
        return {**message, "content": break_up(content, pattern, MARK)}

    def _adapt(self, messages: list[Message]) -> list[Message]:
        """Messages of roles that the template does not know become part of a user message, as Qwen does it."""
        if self._tool_role and self._system_role:
            return messages
        adapted: list[Message] = []
        for message in messages:
            role, content = message["role"], message["content"]
            if role == "tool" and not self._tool_role:
                role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
            if role == "system" and not self._system_role:
                role = "user"
            if adapted and role == "user" == adapted[-1]["role"]:
                content = f"{adapted.pop()['content']}\n\n{content}"
            adapted.append({**message, "role": role, "content": content})
        return adapted

    def _encode(self, text: str, after: str) -> list[int]:
        """Tokenises piece by piece where `text` is marked.

        A piece is put after a control token, which is taken off again: some tokenizers add a space at the very
        beginning of a text. `after`: the control token before the first piece; "" at the beginning of an episode.
        """
        ids: list[int] = []
        for piece in text.split(MARK):
            encoded = self.tokenizer.encode(after + piece, True)
            ids += encoded[1:] if after else encoded
            after = self._end_text
        return ids

    def _passes(self, messages: list[Message]) -> bool:
        try:
            return PROBE in self.tokenizer.render(messages, None, True)
        except RenderError:
            return False

    def _tools_for_template(self) -> list[dict[str, Any]] | None:
        """The tools if the template describes them in the parser's own format, else None."""
        if not self.tools or self.parser.native is None:
            return None
        try:
            taught = self.tokenizer.render([_USER], self.tools, True)
        except RenderError:
            return None
        plain = self.tokenizer.render([_USER], None, True)
        return self.tools if taught != plain and self.parser.native.search(taught) else None

    def _find_end(self, scaffold: str) -> tuple[str, str]:
        """The control token that ends a reply, and all that the template writes up to and with it."""
        tail = scaffold.partition(STAND_IN)[2]
        found = None if (controls := control_pattern(self.tokenizer.controls)) is None else controls.search(tail)
        if found is None:
            raise RenderError(
                "the chat template ends a reply with text, not with a control token: sampling would not know when to "
                f"stop (after a reply comes {tail[:40]!r})",
                place=self.tokenizer.name,
                remedy="save a template whose replies end with the tokenizer's eos token as chat_template.jinja",
            )
        return found[0], tail[: found.end()]


_USER: Message = {"role": "user", "content": "Hello."}
_REPLY: Message = {"role": "assistant", "content": STAND_IN}
_TOOL_RESULT: Message = {"role": "tool", "name": "probe", "tool_call_id": "call_0"}
