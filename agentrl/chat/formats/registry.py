"""Registry of the tool-call formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.chat.formats.parser import Parser
from agentrl.registry.registry import PlugInSection, Registry, subclass_of
from agentrl.types.errors import RecipeError

AUTO = "auto"
"""The format that the chat template of the model writes; hermes if it writes none."""

FORMATS: Registry[type[Parser]] = Registry(
    kind="tool-call format",
    group="formats",
    key="agent.format",
    # In the order of comparison with a reply or the output of a template: unmistakable formats come first.
    built_in={
        "hermes": "agentrl.chat.formats.json_calls:HermesParser",
        "seed-oss": "agentrl.chat.formats.xml:SeedParser",
        "xml": "agentrl.chat.formats.xml:XmlParser",
        "glm-4.5": "agentrl.chat.formats.xml:GlmParser",
        "minimax": "agentrl.chat.formats.xml:MiniMaxParser",
        "deepseek-v3": "agentrl.chat.formats.named_calls:DeepSeekV3Parser",
        "deepseek-v3.1": "agentrl.chat.formats.named_calls:DeepSeekV31Parser",
        "deepseek-v3.2": "agentrl.chat.formats.xml:DeepSeekV32Parser",
        "deepseek-v4.1": "agentrl.chat.formats.xml:DeepSeekV41Parser",
        "atem": "agentrl.chat.formats.framed:AtemParser",
        "kimi-k3": "agentrl.chat.formats.framed:KimiK3Parser",
        "inkling": "agentrl.chat.formats.framed:InklingParser",
        "kimi-k2": "agentrl.chat.formats.named_calls:KimiK2Parser",
        "harmony": "agentrl.chat.formats.harmony:HarmonyParser",
        "gemma4": "agentrl.chat.formats.gemma4:Gemma4Parser",
        "mistral": "agentrl.chat.formats.named_calls:MistralParser",
        "mistral-v3": "agentrl.chat.formats.json_calls:MistralV3Parser",
        "phi-4": "agentrl.chat.formats.json_calls:Phi4Parser",
        "granite": "agentrl.chat.formats.json_calls:GraniteParser",
        "nemotron": "agentrl.chat.formats.json_calls:NemotronParser",
        "cohere": "agentrl.chat.formats.json_calls:CohereParser",
        "apertus": "agentrl.chat.formats.json_calls:ApertusParser",
        "lfm2": "agentrl.chat.formats.pythonic:Lfm2Parser",
        "gemma": "agentrl.chat.formats.pythonic:GemmaParser",
        "olmo3": "agentrl.chat.formats.pythonic:Olmo3Parser",
        "pythonic": "agentrl.chat.formats.pythonic:PythonicParser",
        "llama3": "agentrl.chat.formats.json_calls:Llama3Parser",
        "json-fence": "agentrl.chat.formats.json_calls:JsonFenceParser",
        "fenced": "agentrl.chat.formats.fenced:FencedParser",
        "tags": "agentrl.chat.formats.tags:TagsParser",
    },
    wanted="a Parser subclass",
    accept=subclass_of(Parser),  # type: ignore[type-abstract]
    contracts=[Parser],
    leading=["definitions"],
    also=[AUTO],
    aliases={
        "qwen": "hermes",
        "qwen2.5-coder": "json-fence",
        "qwen3-coder": "xml",
        "glm-5.3": "glm-4.5",
        "muse-glimmer": "atem",
        "gpt-oss": "harmony",
        "llama": "llama3",
    },
)


def parser_of(format: PlugInSection, definitions: Sequence[Mapping[str, Any]] = (), base: Path | None = None) -> Parser:
    """Returns the parser of a format.

    Args:
        format: names one other than `auto`, or a parser of the user.
        definitions: of the recipe's tools. Without them, formats with bare text as argument cannot name it.
        base: folder of the recipe.

    Raises:
        RecipeError: the format does not exist, is not a parser, a setting does not fit, or it cannot call one of the
            tools.
    """
    return prepared(FORMATS.chosen(format, base).make(definitions))


def parser_named(name: str, definitions: Sequence[Mapping[str, Any]] = (), base: Path | None = None) -> Parser:
    """Returns the parser of a format without settings, as `parser_of`."""
    return prepared(FORMATS.load(name, {}, base).make(definitions))


def prepared(parser: Parser) -> Parser:
    """Adds the other formats to a parser.

    Raises:
        RecipeError: the format cannot write a call of one of the tools.
    """
    parser.others = [other for other in FORMATS.all().values() if other is not type(parser)]
    for name in parser.functions:
        try:
            parser.example(name)
        except ValueError as error:
            remedy = "rename the tool or its arguments, or take another format (hermes writes every name)"
            raise RecipeError(str(error), place="agent.format", remedy=remedy) from None
    return parser
