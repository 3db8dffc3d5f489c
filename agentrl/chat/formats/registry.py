"""The tool-call formats by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.chat.formats.fenced import FencedParser
from agentrl.chat.formats.gemma4 import Gemma4Parser
from agentrl.chat.formats.harmony import HarmonyParser
from agentrl.chat.formats.json_calls import (
    CohereParser,
    GraniteParser,
    HermesParser,
    Llama3Parser,
    MistralV3Parser,
    NemotronParser,
    Phi4Parser,
)
from agentrl.chat.formats.named_calls import DeepSeekV3Parser, DeepSeekV31Parser, KimiK2Parser, MistralParser
from agentrl.chat.formats.parser import ParsedCall, ParseFault, Parser, Reply
from agentrl.chat.formats.pythonic import GemmaParser, Lfm2Parser, Olmo3Parser, PythonicParser
from agentrl.chat.formats.tags import TagsParser
from agentrl.chat.formats.xml import DeepSeekV32Parser, GlmParser, MiniMaxParser, SeedParser, XmlParser
from agentrl.registry.references import is_reference, load_object, wrong_kind
from agentrl.types.errors import RecipeError, nearest

__all__ = ["AUTO", "PARSERS", "ParseFault", "ParsedCall", "Parser", "Reply", "parser_class", "parser_named"]

AUTO = "auto"
"""The format that the chat template of the model writes; hermes where it writes none."""

PARSERS: dict[str, type[Parser]] = {
    cls.name: cls
    for cls in (
        HermesParser, SeedParser, XmlParser, GlmParser, MiniMaxParser,
        DeepSeekV3Parser, DeepSeekV31Parser, DeepSeekV32Parser, KimiK2Parser, HarmonyParser,
        Gemma4Parser, MistralParser, MistralV3Parser, Phi4Parser, GraniteParser, NemotronParser, CohereParser,
        Lfm2Parser, GemmaParser, Olmo3Parser, PythonicParser, Llama3Parser,
        FencedParser, TagsParser,
    )
}  # fmt: skip
"""In the order in which a reply, or what a template writes, is compared with them: what is unmistakable comes first."""

ALIASES = {"qwen": "hermes", "qwen3-coder": "xml", "gpt-oss": "harmony", "llama": "llama3"}


def parser_class(name: str, base: Path | None = None) -> type[Parser]:
    """The class that a recipe's `agent.format` names: a format, or a parser of one's own as `./file.py:Name`.

    Args:
        base: folder of the recipe.

    Raises:
        RecipeError: no such format, or the reference names something else than a Parser subclass.
    """
    if is_reference(name):
        found = load_object(name, base or Path())
        if not _is_parser(found):
            raise wrong_kind(name, base or Path(), "agent.format", "a Parser subclass", _is_parser)
        return found  # type: ignore[no-any-return]
    if (known := ALIASES.get(name, name)) in PARSERS:
        return PARSERS[known]
    raise RecipeError(
        f"there is no tool-call format {name!r}",
        place="agent.format",
        remedy=nearest(name, [AUTO, *PARSERS], "write ./file.py:Name for one of your own, or take one of"),
    )


def parser_named(name: str, definitions: Sequence[Mapping[str, Any]] = (), base: Path | None = None) -> Parser:
    """The parser of a format.

    Args:
        definitions: of the recipe's tools. Without them, formats with bare text as argument cannot name it.
        base: folder of the recipe.

    Raises:
        RecipeError: no such format, or one that cannot call one of the tools.
    """
    return make_parser(parser_class(name, base), definitions)


def make_parser(cls: type[Parser], definitions: Sequence[Mapping[str, Any]]) -> Parser:
    """A parser of a class, which knows the other formats.

    Raises:
        RecipeError: the format cannot write a call of one of the tools.
    """
    parser = cls(definitions)
    parser.others = [other for other in PARSERS.values() if other is not cls]
    for name in parser.functions:
        try:
            parser.example(name)
        except ValueError as error:
            remedy = "rename the tool or its arguments, or take another format (hermes writes every name)"
            raise RecipeError(str(error), place="agent.format", remedy=remedy) from None
    return parser


def _is_parser(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, Parser) and found is not Parser
