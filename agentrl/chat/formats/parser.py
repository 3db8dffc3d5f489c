"""Base of parsers: the text of a reply in, tool calls and faults out. Output of a model never raises."""

from __future__ import annotations

import contextlib
import copy
import difflib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

from agentrl.chat.formats.lost import lost_call
from agentrl.chat.formats.thoughts import apart
from agentrl.types.parts import schemas
from agentrl.types.parts.schemas import Argument

MAX_HINTS = 64
"""Names of a reply that are compared with those of the tools: a degenerate one has thousands."""


@dataclass(slots=True)
class ParsedCall:
    """Tool call as the model wrote it; the tool itself validates the arguments.

    Attributes:
        id: if the model gave one.
        at: its position in the reply, among other calls and faults.
    """

    name: str
    arguments: dict[str, Any]
    id: str | None = None
    at: int = field(default=0, compare=False)


@dataclass(slots=True)
class ParseFault:
    """Tool call that cannot be parsed.

    Attributes:
        snippet: the beginning of the model's text.
        message: the fault and an example of the right form, in words for the model.
        tool: the called name, if the only fault is that the tool does not exist.
        foreign: the name of the format, if it is a call in another format than the parser's.
        id: if an API gave one.
        at: as `ParsedCall.at`.
    """

    snippet: str
    message: str
    tool: str = ""
    foreign: str = ""
    id: str | None = None
    at: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Reply:
    """Parsed reply.

    Attributes:
        text: text without thought, calls and answer, stripped.
        thought: content of `<think>`, or of the format's equivalent; None if none.
        answer: content of the last `<answer>`, None if none ("" if it is empty).
    """

    text: str
    thought: str | None = None
    calls: list[ParsedCall] = field(default_factory=list)
    errors: list[ParseFault] = field(default_factory=list)
    answer: str | None = None


class Found(NamedTuple):
    """Call or fault, and its position in the text (end exclusive)."""

    start: int
    end: int
    outcome: ParsedCall | ParseFault


Call = tuple[str, Mapping[str, Any]]
"""Call to write: tool name and arguments."""


class Parser(ABC):
    """Reads and writes tool calls in one format.

    Args:
        definitions: of all tools that may ever be offered. Formats with bare text as arguments read from the schemas
            the name of an argument and whether it is a string.

    Attributes:
        name: in recipes.
        native: matches a prompt that teaches this format, so that its chat template may describe the tools.
        mark: matches a reply that holds a call in this format, whatever the tools are called.
        ends: the control tokens that end a reply and a reply with calls, if the model samples others than the chat
            template writes; None: those of the template.
        thought: marks before and behind a thought. In a reply without these marks, `<think>` is one, too.
        framed: matches the beginning of a reply that has its own frame, if the template's text before replies does not
            begin alike: it is then not written before it.
        around: text before a thought, and between it and the rest of the reply, as the chat template writes them; None:
            the marks on lines of their own.
        others: formats that are searched in a reply without a call, so that their calls are faults and not answers.
    """

    name: ClassVar[str]
    native: ClassVar[re.Pattern[str] | None] = None
    mark: ClassVar[re.Pattern[str] | None] = None
    ends: ClassVar[tuple[str, str] | None] = None
    thought: ClassVar[tuple[str, str]] = ("<think>", "</think>")
    framed: ClassVar[re.Pattern[str] | None] = None
    around: tuple[str, str] | None = None
    others: Sequence[type[Parser]] = ()
    _hints = MAX_HINTS  # names that `_unknown` may still compare with those of the tools

    def __init__(self, definitions: Sequence[Mapping[str, Any]] = ()) -> None:
        self.functions: dict[str, Mapping[str, Any]] = {d["function"]["name"]: d["function"] for d in definitions}

    def for_tools(self, definitions: Sequence[Mapping[str, Any]]) -> Self:
        """Returns this parser with other tools. To be overridden if it stores more of them than `functions`."""
        other = copy.copy(self)
        other.functions = {d["function"]["name"]: d["function"] for d in definitions}
        vars(other).pop("_forms", None)
        return other

    def parse(self, text: str, tools: Collection[str]) -> Reply:
        """Parses a reply. Never raises.

        Args:
            tools: names of the tools that may be called now; a call of any other is a fault.
        """
        self._hints = MAX_HINTS
        opened, closed = self.thought if any(mark in text for mark in self.thought) else Parser.thought
        parts = apart(text, lambda part: list(self._find(part, tools)), _is_call, (opened, closed))
        thought = "\n".join(parts.thoughts) if parts.thoughts else None
        said = [text[begin:end] for begin, end, _ in parts.spoken]
        prose = [_without(text, *spoken) for spoken in parts.spoken]
        found = [item for _, _, items in parts.spoken for item in items]
        answer, rest, faults = _answer("\n".join(filter(None, prose)))
        for item in found:
            item.outcome.at = item.start
        calls = [item.outcome for item in found if isinstance(item.outcome, ParsedCall)]
        if parts.open_at is not None:
            why = f"{opened} is never closed: end your thoughts with {closed}, then act"
            return Reply(rest.strip(), thought, errors=[ParseFault(_snippet(text[parts.open_at :]), why)])
        faults += [item.outcome for item in found if isinstance(item.outcome, ParseFault)]
        acted = bool(calls) or answer is not None
        if not faults and (wrong := self._leftover(rest, tools, acted)) is not None:
            faults.append(wrong)
        if not acted and (foreign := self._foreign("\n".join(filter(None, said)), tools, marked=bool(faults))):
            faults = [foreign]
        if not acted and not faults and (wrong := self._lost(rest, tools)) is not None:
            faults.append(wrong)
        if not (acted or faults or rest.strip()) and thought:
            why = f"the reply ends with your thoughts: answer behind {closed}" + (", or call a tool" if tools else "")
            faults.append(ParseFault(_snippet(thought), why))
        return Reply(rest.strip(), thought, calls, _first(faults), answer)

    @abstractmethod
    def format(self, text: str, calls: Sequence[Call]) -> str:
        """Writes a reply: `text`, then the calls, on one or more lines each. `parse` reads the same calls back.

        Raises:
            ValueError: the format cannot express an argument.
        """

    def thinking(self, thought: str, reply: str) -> str:
        """Writes a reply that begins with a thought. `parse` reads the thought back."""
        opened, closed = self.thought
        before, behind = self.around or (f"{opened}\n", f"\n{closed}\n\n")
        return f"{before}{thought}{behind}{reply}"

    def with_around(self, around: tuple[str, str] | None) -> Self:
        """Returns this parser with the text around thoughts."""
        other = copy.copy(self)
        other.around = around
        return other

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Returns the part of a system prompt about the tools (definitions) and how to call them.

        Default: signatures, and an example of the first tool.
        """
        form = self.example(tools[0]["function"]["name"])
        return f"You can call these tools:\n{signature_lines(tools)}\n\nTo call one, write for example:\n{form}"

    def message(self, text: str) -> Mapping[str, Any]:
        """Returns an earlier reply for a chat template that shows results only of calls under a separate key."""
        reply = self.parse(text, self.functions)
        if not reply.calls:
            return {"role": "assistant", "content": text}
        functions = [{"name": call.name, "arguments": call.arguments} for call in reply.calls]
        ids = [call.id or f"call_{index}" for index, call in enumerate(reply.calls)]
        calls = [{"id": i, "type": "function", "function": f} for i, f in zip(ids, functions, strict=True)]
        thought = {"reasoning_content": reply.thought} if reply.thought else {}
        return {"role": "assistant", "content": reply.text, "tool_calls": calls, **thought}

    def stops(self) -> tuple[str, ...]:
        """Returns strings at which sampling ends, because a call is complete and its result must follow."""
        return ()

    def completed(self, text: str) -> str:
        """Restores the string of `stops` that an API has cut from the end of a reply."""
        return text

    @classmethod
    def resembles(cls, text: str, tools: Collection[str]) -> bool:
        """Returns True if a reply without `mark` still looks like a call in this format."""
        return False

    @abstractmethod
    def _find(self, text: str, tools: Collection[str]) -> Iterator[Found]:
        """Yields calls and faults in order, without overlap."""

    def _leftover(self, prose: str, tools: Collection[str], acted: bool) -> ParseFault | None:
        """Returns a fault for text around the calls that looks like a call. `acted`: there is a call or an answer."""
        return None

    def _foreign(self, text: str, tools: Collection[str], *, marked: bool) -> ParseFault | None:
        """Returns a fault if the reply holds a call in another format. `marked`: only if it certainly does."""
        if not tools or (marked and self.mark is not None and self.mark.search(text)):
            return None
        found = next((other for other in self.others if other.mark and other.mark.search(text)), None)
        if found is None and not marked:
            found = next((other for other in self.others if other.resembles(text, tools)), None)
        if found is None:
            return None
        message = f"that is a tool call in the format {found.name}, which is not read here{self._form(tools)}"
        return ParseFault(_snippet(text), message, foreign=found.name)

    def _lost(self, prose: str, tools: Collection[str]) -> ParseFault | None:
        """Returns a fault for text that begins as a call, or looks like one in an unknown form."""
        if tools and self.mark is not None and (begun := self.mark.search(prose)) is not None:
            return self._fault(prose[begun.start() :], "it begins as a call, and does not go on as one", tools)
        if not tools or (found := lost_call(prose, tools, read_json)) is None:
            return None
        why = f"it looks like a call of {found.tool[:100]!r}, and does not have the form of one"
        return self._fault(prose[found.start :], why, tools, found.tool)

    def _offered(self, call: ParsedCall, written: str, tools: Collection[str]) -> ParsedCall | ParseFault:
        """Returns the call, or a fault if its tool is not on offer."""
        return call if call.name in tools else self._unknown(call.name, written, tools)

    def _unknown(self, name: str, written: str, tools: Collection[str]) -> ParseFault:
        near: list[str] = []
        if self._hints > 0:
            self._hints -= 1
            inside = sorted(filter(name.__contains__, tools), key=len)[-1:]
            near = difflib.get_close_matches(name[:100], tools, 1) or inside
        hint = f"did you mean {near[0]!r}? " if near else ""
        offer = f"tools: {', '.join(tools)}" if tools else "no tool can be called now"
        return ParseFault(_snippet(written), f"there is no tool {name[:100]!r}; {hint}{offer}", name[:100])

    def _fault(self, written: str, why: str, tools: Collection[str], name: str | None = None) -> ParseFault:
        """Returns a fault that shows the right form, for the intended tool if known."""
        return ParseFault(_snippet(written), f"the tool call cannot be read: {why}{self._form(tools, name)}")

    def _form(self, tools: Collection[str], name: str | None = None) -> str:
        """Returns an example call: of the tool `name` if it exists."""
        meant = name if name in tools else next(iter(tools), None)
        if meant is None:
            return ""
        forms: dict[str, str] = vars(self).setdefault("_forms", {})  # a reply may have thousands of faults
        if meant not in forms:
            try:
                forms[meant] = f". Write it like this:\n{self.example(meant)}"
            except ValueError:  # the format cannot express the name of this tool
                forms[meant] = ""
        return forms[meant]

    def example(self, tool: str) -> str:
        """Writes a call of `tool` with a placeholder for every required argument."""
        properties, required = self._schema(tool)
        shown = [name for name in properties if name in required] or list(properties)[:1]
        return self.format("", [(tool, {name: self._argument(tool, name).placeholder for name in shown})])

    def _schema(self, tool: str) -> tuple[dict[str, Any], list[str]]:
        """Returns the arguments of a tool with the schema of each, and the names of the required ones."""
        schema = self.functions.get(tool, {}).get("parameters")
        return schemas.arguments(schema), schemas.required(schema)

    def _argument(self, tool: str, name: str) -> Argument:
        """Returns an argument of a tool. An unknown one takes texts."""
        root = self.functions.get(tool, {}).get("parameters") or {}
        return Argument(root, schemas.arguments(root).get(name, {"type": "string"}))

    def _main_argument(self, tool: str) -> str | None:
        """Returns the argument for bare text: the only one, or the only required one."""
        properties, required = self._schema(tool)
        candidates = required if len(required) == 1 else list(properties)
        return candidates[0] if len(candidates) == 1 else None

    def _typed(self, tool: str, argument: str, text: str, *, is_text: bool | None = None) -> Any:
        """Converts a bare text to a value under the schema. `is_text`: the model's hint."""
        return self._argument(tool, argument).value(text, read_json, is_text=is_text)


def definitions_of(parser: Parser) -> list[dict[str, Any]]:
    """Returns the tools that a parser knows, in the form of chat templates and APIs."""
    return [{"type": "function", "function": dict(function)} for function in parser.functions.values()]


def signature_lines(tools: Sequence[Mapping[str, Any]]) -> str:
    """Formats the tools as a list for a prompt: `- name(argument: type, ...): description`, argument descriptions
    below.
    """
    lines: list[str] = []
    for function in (tool["function"] for tool in tools):
        root = function.get("parameters") or {}
        properties, required = schemas.arguments(root), schemas.required(root)
        arguments = [f"{n}{'' if n in required else '?'}: {Argument(root, p).type_name}" for n, p in properties.items()]
        about = " ".join(str(function.get("description") or "").split())
        lines.append(f"- {function['name']}({', '.join(arguments)})" + (f": {about}" if about else ""))
        lines += [f"    {n}: {about}" for n, p in properties.items() if (about := Argument(root, p).description)]
    return "\n".join(lines)


def _answer(prose: str) -> tuple[str | None, str, list[ParseFault]]:
    """Returns the last answer, the prose without answers, and a fault if one is left open."""
    answer, rest, at = None, "", 0
    while (start := prose.find("<answer>", at)) >= 0 and (end := prose.find("</answer>", start)) >= 0:
        answer = prose[start + len("<answer>") : end].strip()
        rest += prose[at:start] + "\n"
        at = end + len("</answer>")
    rest += prose[at:]
    if answer is None and start >= 0:
        return None, rest, [ParseFault(_snippet(prose[start:]), "<answer> is never closed: write <answer>...</answer>")]
    return answer, rest, []


def _is_call(item: Found) -> bool:
    return isinstance(item.outcome, ParsedCall)


def _without(text: str, begin: int, end: int, found: Sequence[Found]) -> str:
    """Returns a part of a text with a line break in place of each call."""
    prose, at = "", begin
    for item in found:
        prose += text[at : item.start] + "\n"
        at = item.end
    return prose + text[at:end]


def _first(faults: list[ParseFault]) -> list[ParseFault]:
    """Returns at most `MAX_FAULTS`: a degenerate reply of a thousand broken calls gets a few messages."""
    if len(faults) <= MAX_FAULTS:
        return faults
    last = faults[MAX_FAULTS - 1]
    more = f"{last.message}\n({len(faults) - MAX_FAULTS} more tool calls of this reply cannot be read)"
    return [*faults[: MAX_FAULTS - 1], ParseFault(last.snippet, more, at=last.at)]


def _snippet(written: str) -> str:
    written = written.strip()
    return written if len(written) <= 120 else written[:117] + "..."


def follows(text: str, at: int, mark: str) -> int | None:
    """Returns the end of `mark`, if it is at `at`, after optional white space; None if not, or if it is empty."""
    begin = _BLANK.match(text, at).end()  # type: ignore[union-attr]
    return begin + len(mark) if mark and text.startswith(mark, begin) else None


def same(value: Any, other: Any) -> bool:
    """Returns True if two values are equal in JSON: true is not 1."""
    return json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)


MAX_DEPTH = 64
MAX_FAULTS = 4


def read_json(text: str, at: int | None = None) -> Any:
    """Reads strict JSON: no duplicate keys, no NaN or infinity, numbers that fit 64 bits, valid unicode, at most
    `MAX_DEPTH` levels, so that output of a model can always be stored.

    Args:
        at: where to begin; the result is then (value, end), and later text is ignored.

    Raises:
        ValueError: describes the fault.
    """
    begin = _BLANK.match(text, at or 0).end()  # type: ignore[union-attr]
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg[0].lower()}{error.msg[1:]} at character {error.pos - begin}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _depth(value) > MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if "\\u" in text[begin:end]:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("it has half a unicode surrogate pair") from None
    if at is not None:
        return value, end
    if text[end:].strip():
        raise ValueError(f"something follows the JSON: {_snippet(text[end:])[:40]!r}")
    return value


def arguments_of(value: Any) -> dict[str, Any]:
    """Reads the arguments of a call: an object, or JSON of one in a text.

    Raises:
        ValueError: they are neither.
    """
    read = value
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            read = read_json(value)
    if not isinstance(read, dict):
        raise ValueError("the arguments must be a JSON object")
    return read


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return made


def _integer(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (value := int(digits)) < 2**63:
        raise ValueError(f"the number {digits[:24]}... does not fit 64 bits")
    return value


def _float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {digits[:24]} is too large")
    return value


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [v for v in level if isinstance(v, (dict, list))]:
        depth += 1
        level = [child for v in level for child in (v.values() if isinstance(v, dict) else v)]
    return depth


_BLANK = re.compile(r"\s*+")
_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant, strict=False
)
