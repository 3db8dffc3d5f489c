"""Formats in which a reply is a sequence of frames, each with an addressee or a kind: Muse Glimmer (`atem`), Kimi K3,
Inkling. The marks of a frame are taken off before its content is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from agentrl.chat.formats.json_calls import JsonParser
from agentrl.chat.formats.parser import Call, Reply, read_json
from agentrl.chat.formats.xml import InvokeParser, XmlParser


class AtemParser(InvokeParser):
    """`to=NAME<|message|><atem:function_calls><atem:invoke name="NAME"><atem:parameter name="x">...`: Muse Glimmer.

    A frame to `self` is thought, one to `user` is text.
    """

    name, prefix = "atem", "atem:"
    native = mark = re.compile(r"<atem:(?:function_calls|invoke)")
    wrapper = ("<atem:function_calls>", "</atem:function_calls>")
    thought = ("to=self<|message|>", "<|eom|>")
    _header = re.compile(r"(?:<\|start\|>assistant)? ?\bto=(?P<to>[^\s<=]++)<\|message\|>")
    _ended = re.compile(r"<\|eo[mt]\|>")
    framed = re.compile(r"to=[^\s<=]++<\|message\|>")

    def thinking(self, thought: str, reply: str) -> str:
        """Writes a reply that begins with a frame to `self`."""
        said = reply if self.framed.match(reply.lstrip()) else f" to=user<|message|>{reply}"
        return f" {self.thought[0]}{thought}{self.thought[1]}<|start|>assistant{said}"

    def format(self, text: str, calls: Sequence[Call]) -> str:
        """Writes a frame for the text and one for each call, without the token that ends the reply.

        Raises:
            ValueError: the text would not be read as these calls.
        """
        blocks = zip([name for name, _ in calls], self._blocks(calls), strict=True)
        frames = [*([("user", text)] if text or not calls else []), *blocks]
        return "<|eom|><|start|>assistant".join(f" to={to}<|message|>{body}" for to, body in frames)

    def parse(self, text: str, tools: Collection[str]) -> Reply:
        """Parses a reply. Never raises. Text outside of frames is read as one to the user."""
        plain, at, last = "", 0, text.rfind(self.wrapper[1])
        while (header := self._header.search(text, at)) is not None:
            plain += self._ended.sub("", text[at : header.start()])
            at = self._end(text, header, last)
            body = text[header.end() : at]
            if header["to"] == "self":
                plain += f"{self.thought[0]}{body}" + (self.thought[1] if self._ended.match(text, at) else "")
            else:
                plain += f"{body}\n"
        return super().parse((plain + self._ended.sub("", text[at:])).strip(), tools)

    def _end(self, text: str, header: re.Match[str], last: int) -> int:
        """Returns the end of the frame's body. Marks inside of a call are text.

        Args:
            last: position of the last end of calls in the text.
        """
        at = header.end()
        if header["to"] not in ("self", "user") and at < last:
            at = text.find(self.wrapper[1], at) + len(self.wrapper[1])
        ended = self._ended.search(text, at)
        return len(text) if ended is None else ended.start()


class KimiK3Parser(XmlParser):
    """`<|open|>call tool="NAME" index="1"<|sep|><|open|>argument key="x" type="string"<|sep|>...`: Kimi K3.

    The text stands in a frame `response`, the calls in one frame `tools`.
    """

    name = "kimi-k3"
    native = mark = re.compile(r"<\|open\|>(?:tools<|call\s)")
    wrapper, together, between = ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"), True, ""
    begin = re.compile(r'<\|open\|>call tool="(?P<name>[^"<>\n]*)"[^"<>\n]*(?:"\d*")?<\|sep\|>')
    end = re.compile(r"\s*<\|close\|>call<\|sep\|>")
    key = re.compile(r'\s*<\|open\|>argument key="(?P<key>[^"<>\n]*)"(?: type="(?P<string>[^"<>\n]*)")?<\|sep\|>')
    value_end = re.compile(r'<\|close\|>argument<\|sep\|>(?=\s*(?:<\|open\|>argument key="|<\|close\|>call<\|sep\|>))')
    written = '<|open|>call tool="{name}" index="{number}"<|sep|>{arguments}<|close|>call<|sep|>'
    argument = '<|open|>argument key="{key}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>'
    shape = ('<|open|>argument key="..."<|sep|>', "<|close|>call<|sep|>", '<|open|>call tool="..." index="1"<|sep|>')
    padded = False
    stray = re.compile(r"<\|(?:open|close)\|>(?:call|argument)\b[^<>\n]*<\|sep\|>")
    thought = ("<|open|>think<|sep|>", "<|close|>think<|sep|>")
    _response = re.compile(r"<\|(?:open|close)\|>response<\|sep\|>|<\|close\|>message<\|sep\|>\s*+\Z")

    def thinking(self, thought: str, reply: str) -> str:
        """Writes a reply that begins with a frame `think`."""
        said = reply if reply.startswith("<|open|>") else self.format(reply, [])
        return f"{self.thought[0]}{thought}{self.thought[1]}{said}"

    def format(self, text: str, calls: Sequence[Call]) -> str:
        """Writes the frames of text and calls, without the mark that ends the reply.

        Raises:
            ValueError: the text would not be read as these calls.
        """
        said = f"<|open|>response<|sep|>{text}<|close|>response<|sep|>" if text else ""
        return said + "".join(self._blocks(calls))

    def parse(self, text: str, tools: Collection[str]) -> Reply:
        """Parses a reply. Never raises. Marks of a response inside of a call are text."""
        plain, at = "", 0
        for found in self._find(text, tools):
            plain += self._response.sub("\n", text[at : found.start]) + text[found.start : found.end]
            at = found.end
        return super().parse((plain + self._response.sub("\n", text[at:])).strip(), tools)


class InklingParser(JsonParser):
    """`<|message_model|>NAME<|content_invoke_tool_json|>{"name": ..., "args": {...}}<|end_message|>`: Inkling."""

    name = "inkling"
    opening, closing, many = "<|content_invoke_tool_json|>", "", False
    keys = ("name", "args", "id")
    native = mark = re.compile(r"<\|content_invoke_tool_json\|>")
    near_miss = re.compile(r"<\|content_invoke_tool_text\|>")
    thought = ("<|content_thinking|>", "<|end_message|>")
    ends = ("<|content_model_end_sampling|>", "<|content_model_end_sampling|>")
    _text = "<|content_text|>"
    _header = re.compile(r"(?:<\|message_model\|>[^<\n]*+)?(?P<kind><\|content_(?:text|thinking|invoke_tool_\w+)\|>)")

    def thinking(self, thought: str, reply: str) -> str:
        """Writes a reply that begins with a frame of thought."""
        said = reply if reply.startswith("<|message_model|>") else self.format(reply, [])
        return f"<|message_model|>{self.thought[0]}{thought}{self.thought[1]}{said}"

    def format(self, text: str, calls: Sequence[Call]) -> str:
        """Writes a frame for the text and one for each call, without the token that ends the reply."""
        frames = [("", f"{self._text}{text}")] if text or not calls else []
        frames += [(call[0], super(InklingParser, self).format("", [call])) for call in calls]
        return "".join(f"<|message_model|>{to}{content}<|end_message|>" for to, content in frames)

    def parse(self, text: str, tools: Collection[str]) -> Reply:
        """Parses a reply. Never raises. Marks inside of a call are text."""
        plain, at, end_mark = "", 0, self.thought[1]
        text = text.rstrip().removesuffix(self.ends[0])
        while (header := self._header.search(text, at)) is not None:
            plain += text[at : header.start()]
            kind, at = header["kind"], header.end()
            begin = at if kind == self._text else header.start("kind")
            end = text.find(end_mark, self._end_of_json(text, at) if kind == self.opening else at)
            end = len(text) if end < 0 else end
            at = min(end + len(end_mark), len(text))
            plain += text[begin : at if kind == self.thought[0] else end] + "\n"
        return super().parse((plain + text[at:]).strip(), tools)

    def _end_of_json(self, text: str, at: int) -> int:
        try:
            return int(read_json(text, at)[1])
        except ValueError:
            return at
