"""Chat templates: shipped ones, those of users, and their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.types.errors import RecipeError, nearest

FOLDER = Path(__file__).parent / "templates"
SHIPPED = {path.stem: path for path in sorted(FOLDER.glob("*.jinja"))}

KEEP_TURNS = (
    "model.template names one that leaves earlier turns as they are: a file of your own, or "
    f"{', '.join(SHIPPED)} (docs/templates.md)"
)

GIVEN = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "pad_token", "unk_token"}
    | {"raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler", "joiner"}
)
"""Names in a template that are not its own arguments."""


def template_text(name: str) -> str:
    """Returns the template of `model.template`: a shipped one by its name, or a file.

    Raises:
        RecipeError: it does not exist, or cannot be read.
    """
    if name in SHIPPED:
        return SHIPPED[name].read_text()
    path = Path(name).expanduser()
    if "/" not in name and not name.endswith((".jinja", ".jinja2", ".txt")) and not path.is_file():
        remedy = nearest(name, SHIPPED, "name a file (./chat.jinja), or take one of")
        raise RecipeError(f"there is no chat template {name!r}", place="model.template", remedy=remedy)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is no text"
        raise RecipeError(
            f"{path} cannot be read: {what}",
            place="model.template",
            remedy="a file with a Jinja template; ./ is relative to the recipe's folder",
        ) from None
    if not text.strip():
        raise RecipeError(f"{path} is empty", place="model.template", remedy="a file with a Jinja template")
    return text


def with_arguments(template: str, arguments: dict[str, Any]) -> str:
    """Returns the template with fixed arguments, so that a checkpoint's template has them, too.

    Raises:
        RecipeError: the template is invalid, or does not read one of them.
    """
    known = arguments_of(template)
    for name in arguments:
        if name not in known:
            raise RecipeError(
                f"the chat template does not read {name!r}",
                place="model.template_args",
                remedy=nearest(name, sorted(known), "it reads"),
            )
    lines = [f"{{%- set {name} = {_literal(value)} -%}}" for name, value in arguments.items()]
    return "".join(lines) + template


def arguments_of(template: str) -> set[str]:
    """Returns the names that a template reads and that only arguments can set.

    Raises:
        RecipeError: it is not a template.
    """
    from jinja2 import Environment, TemplateSyntaxError, meta, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser

    class Generation(Extension):
        """Block `{% generation %}` of transformers, which marks trained text."""

        tags = {"generation"}

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = Environment(extensions=[Generation, loopcontrols], trim_blocks=True, lstrip_blocks=True)
    try:
        tree = environment.parse(template)
    except TemplateSyntaxError as error:
        raise RecipeError(
            f"the chat template is no Jinja template: {error.message}",
            place=f"model.template: line {error.lineno}",
            remedy="agentrl reads templates as transformers does",
        ) from None
    asked = [*tree.find_all(nodes.Test), *tree.find_all(nodes.Filter)]
    optional = {
        node.node.name
        for node in asked
        if node.name in ("defined", "undefined", "default", "d") and isinstance(node.node, nodes.Name)
    }
    # A name that the template sets itself is an argument if it tests whether it was given.
    own = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"} - optional
    return meta.find_undeclared_variables(tree) - own - GIVEN


def _literal(value: Any) -> str:
    """Writes a value of YAML in Jinja."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(str(key))}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
