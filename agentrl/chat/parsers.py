"""The tool-call formats by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.chat.fenced import FencedParser
from agentrl.chat.hermes import HermesParser
from agentrl.chat.parser import ParsedCall, ParseFault, Parser, Reply
from agentrl.chat.tags import TagsParser
from agentrl.chat.xml import XmlParser
from agentrl.errors import RecipeError, nearest

__all__ = ["PARSERS", "ParseFault", "ParsedCall", "Parser", "Reply", "parser_named"]

PARSERS: dict[str, type[Parser]] = {cls.name: cls for cls in (HermesParser, XmlParser, FencedParser, TagsParser)}


def parser_named(name: str, definitions: Sequence[Mapping[str, Any]] = ()) -> Parser:
    """The parser of a recipe's `agent.format`.

    Args:
        definitions: of the recipe's tools. Without them, formats with bare text as argument cannot name it.

    Raises:
        RecipeError: no such format.
    """
    if name in PARSERS:
        return PARSERS[name](definitions)
    raise RecipeError(
        f"there is no tool-call format {name!r}", place="agent.format", remedy=nearest(name, PARSERS, "formats")
    )
