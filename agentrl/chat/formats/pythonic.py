"""Formats that write calls as Python: a list of calls (Llama 3.2 and 4, LFM2) or a call per line (Gemma 3, OLMo 3)."""

from __future__ import annotations

import ast
import json
import keyword
import math
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from agentrl.chat.formats.parser import MAX_DEPTH, Call, Found, ParsedCall, ParseFault, Parser, follows


class PythonicParser(Parser):
    """`[search(query="x", k=3), look()]`, at the beginning of a line.

    Attributes:
        begin: matches the text before the calls.
        closing: end of the calls; it may be missing at the end of a reply, where sampling ended.
        after: text that a model may write after them.
        layout: of a reply's calls.
        between: separator of two calls.
    """

    name = "pythonic"
    native: ClassVar[re.Pattern[str] | None] = re.compile(r"\[func_name1\(")
    begin: ClassVar[re.Pattern[str]] = re.compile(
        r"^[ \t]*+(?:<\|python_start\|>\s*+)?(?=\[[ \t]*+[A-Za-z_][\w.-]*+\()", re.MULTILINE
    )
    closing: ClassVar[str] = ""
    after: ClassVar[str] = "<|python_end|>"
    layout: ClassVar[str] = "[{calls}]"
    between: ClassVar[str] = ", "

    @classmethod
    def resembles(cls, text: str, tools: Collection[str]) -> bool:
        """Returns True if the reply is only a list of calls of tools."""
        text = text.strip()
        names = "|".join(map(re.escape, tools))
        return cls is PythonicParser and text.endswith(")]") and re.match(rf"\[\s*(?:{names})\(", text) is not None

    def format(self, text: str, calls: Sequence[Call]) -> str:
        """Writes strings in double quotes, arguments by name."""
        if not calls:
            return text
        shown = self.between.join(_written(self.name, name, arguments) for name, arguments in calls)
        return "\n".join(([text] if text else []) + [self.layout.format(calls=shown)])

    def _find(self, text: str, tools: Collection[str]) -> Iterator[Found]:
        at = 0
        while (begin := self.begin.search(text, at)) is not None:
            body_at, body_end, at = begin.end(), *self._end(text, begin.end())
            at = follows(text, at, self.after) or at
            written = text[begin.start() : at]
            for number, outcome in enumerate(self._read(text[body_at:body_end].strip(), written, tools)):
                yield Found(at if number else begin.start(), at, outcome)

    def _end(self, text: str, at: int) -> tuple[int, int]:
        """Returns the end of the calls, and the end of their closing mark. Brackets and marks within strings do not
        count.
        """
        depth = 0
        for found in _TOKEN.finditer(text, at):
            if self.closing:
                if found[0] == self.closing[0] and text.startswith(self.closing, found.start()):
                    return found.start(), found.start() + len(self.closing)
            elif found[0] in _DEPTH:
                depth += _DEPTH[found[0]]
                if depth == 0:
                    return found.end(), found.end()
        return len(text), len(text)

    def _read(self, body: str, written: str, tools: Collection[str]) -> list[ParsedCall | ParseFault]:
        try:
            with warnings.catch_warnings(action="ignore"):  # of what models write, such as "\\d"
                tree = _parsed(body)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            what = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
            return [self._fault(written, f"it is no Python: {what}", tools)]
        calls = [call for line in tree.body for call in _calls_of(line)]
        if not calls or not all(isinstance(call, ast.Call) for call in calls):
            return [self._fault(written, "it must hold calls of tools and nothing else", tools)]
        return [self._call(call, written, tools) for call in calls if isinstance(call, ast.Call)]

    def _call(self, call: ast.Call, written: str, tools: Collection[str]) -> ParsedCall | ParseFault:
        name = _dotted(call.func)
        inner = call.args[0] if len(call.args) == 1 else None
        if name == "print" and name not in tools and isinstance(inner, ast.Call) and not call.keywords:
            return self._call(inner, written, tools)  # Gemma prints the result of a tool
        arguments: dict[str, Any] = {}
        try:
            if call.args:
                main = self._main_argument(name)
                if main is None or len(call.args) > 1:
                    raise ValueError("arguments are given by name")
                arguments[main] = _value(call.args[0])
            for named in call.keywords:
                if named.arg is None or named.arg in arguments:
                    raise ValueError(f"the argument {named.arg!r} is there twice or has no name")
                arguments[named.arg] = _value(named.value)
        except ValueError as error:
            return self._fault(written, str(error), tools, name)
        return self._offered(ParsedCall(name, arguments), written, tools)

    def _leftover(self, prose: str, tools: Collection[str], acted: bool) -> ParseFault | None:
        sign = self.closing.strip()
        if sign.startswith("<") and (at := prose.find(sign)) >= 0:
            return self._fault(prose[at:], f"{sign} stands outside of a call", tools)
        return None


class Lfm2Parser(PythonicParser):
    """`<|tool_call_start|>[search(query="x")]<|tool_call_end|>`: LFM2."""

    name = "lfm2"
    native = re.compile(r"<\|tool_(?:call|list)_start\|>")
    mark = re.compile(r"<\|tool_call_start\|>")
    begin, closing = re.compile(r"<\|tool_call_start\|>"), "<|tool_call_end|>"
    layout = "<|tool_call_start|>[{calls}]<|tool_call_end|>"


class GemmaParser(PythonicParser):
    """A block ```` ```tool_code ```` with a call per line: Gemma 2 and 3."""

    name = "gemma"
    native = mark = re.compile(r"```tool_code")
    begin, closing = re.compile(r"```tool_code[ \t]*+\n"), "\n```"
    layout, between = "```tool_code\n{calls}\n```", "\n"


class Olmo3Parser(PythonicParser):
    """`<function_calls>` with a call per line: OLMo 3."""

    name = "olmo3"
    native = mark = re.compile(r"<function_calls>")
    begin, closing = re.compile(r"<function_calls>"), "</function_calls>"
    layout, between = "<function_calls>\n{calls}\n</function_calls>", "\n"


# Strings are matched whole, an unclosed one up to the end of the text, so that a scan is linear.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|\'(?:[^\'\\]|\\.)*+(?:\'|\Z)|[\[\](){}<\n]', re.DOTALL)
_DEPTH = {"[": 1, "(": 1, "{": 1, "]": -1, ")": -1, "}": -1}
_WORDS = {"true": True, "false": False, "null": None, "none": None}


def _parsed(body: str) -> ast.Module:
    """Parses a text as Python in which strings may have raw line breaks.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse`.
    """
    try:
        return ast.parse(body)
    except SyntaxError:
        escaped = _TOKEN.sub(lambda found: found[0] if found[0] == "\n" else found[0].replace("\n", "\\n"), body)
        if escaped == body:
            raise
        return ast.parse(escaped)


def _calls_of(line: ast.stmt) -> list[ast.expr | None]:
    if not isinstance(line, ast.Expr):
        return [None]
    return list(line.value.elts) if isinstance(line.value, ast.List) else [line.value]


def _dotted(node: ast.expr) -> str:
    """Returns a name with dots; "" for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""


def _value(node: ast.expr, depth: int = 0) -> Any:
    """Returns the value of a literal, as JSON can hold it.

    Raises:
        ValueError: it is not a literal.
    """
    if depth > MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    match node:
        case ast.Constant(value=str() as text):
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                raise ValueError("it has half a unicode surrogate pair")
            return text
        case ast.Constant(value=bool() | None as value):
            return value
        case ast.Constant(value=int() | float() as number):
            return _number(number)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return _number(-number)
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item, depth + 1) for item in items]
        case ast.Dict(keys=keys, values=values):
            named = [None if key is None else _value(key, depth + 1) for key in keys]
            if not all(isinstance(key, str) for key in named) or len(set(named)) < len(named):
                raise ValueError("the keys of an object are different strings")
            return dict(zip(named, (_value(value, depth + 1) for value in values), strict=True))
    raise ValueError("arguments are strings, numbers, lists or objects, written out")


def _number(number: Any) -> Any:
    if isinstance(number, bool):
        return number
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError("the number is too large")
    if isinstance(number, int) and not -(2**63) <= number < 2**63:
        raise ValueError("the number does not fit 64 bits")
    return number


def _written(format: str, name: str, arguments: Mapping[str, Any]) -> str:
    if bad := [word for word in (*name.split("."), *arguments) if not word.isidentifier() or keyword.iskeyword(word)]:
        raise ValueError(f"{format} cannot express {bad[0]!r}: it is no name in Python")
    return f"{name}({', '.join(f'{key}={_literal(value)}' for key, value in arguments.items())})"


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(key)}: {_literal(item)}' for key, item in value.items())}}}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
