"""Writes what the documentation holds that the code already knows, and the folder from which the site is built.

    python docs/generate.py              # docs/reference, llms.txt, AGENTS.md and skills: committed, compared by a test
    python docs/generate.py --site       # build/docs: all pages, with the READMEs of the recipes

Needs the extras of agentrl: settings of a plug-in that cannot be imported are unknown.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import inspect
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

import agentrl
from agentrl.api.shipped import shipped_methods
from agentrl.chat.formats.parser import signature_lines
from agentrl.cli import app
from agentrl.commands.plug_ins import kinds, plug_ins
from agentrl.config.bases import recipe_schema

DOCS = Path(__file__).parent
_ROOMS = ("coming-from", "reference", "results")
ROOT = DOCS.parent
NOTE = "<!-- Written by docs/generate.py: change the code, then run it again. -->\n"


# --- commands


def commands(group: TyperGroup | None = None, *words: str) -> Iterator[tuple[str, Any]]:
    """Yields every command, by the words that call it, in the order of `agentrl --help`."""
    group = group or get_command(app)  # type: ignore[assignment]
    assert isinstance(group, TyperGroup)
    for word in group.list_commands(None):
        command = group.commands[word]
        if isinstance(command, TyperGroup):
            yield from commands(command, *words, word)
        elif not command.hidden:
            yield " ".join([*words, word]), command


def commands_page() -> str:
    """Returns `--help` of every command, as a page."""
    parts = [
        "# Commands\n",
        NOTE,
        "Each section is the `--help` of a command. The options of a command come after its name.\n",
    ]
    for name, command in commands():
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
        usage = " ".join(
            [f"agentrl {name}", *(_metavar(each) for each in arguments), *(["[OPTIONS]"] if options else [])]
        )
        parts += [f"## agentrl {name}\n", f"```text\n{usage}\n```\n", _prose(command.help) + "\n"]
        rows = [(_metavar(each), getattr(each, "help", None), "") for each in arguments if getattr(each, "help", None)]
        rows += [
            (", ".join([*each.opts, *each.secondary_opts]) + _value(each), each.help, _default(each))
            for each in options
        ]
        if rows:
            parts.append(_table(("argument or option", "meaning", "default"), [(f"`{a}`", b, c) for a, b, c in rows]))
    return "\n".join(parts)


def _metavar(argument: Any) -> str:
    name = (argument.metavar or argument.name or "").upper().strip("[]")
    return name if argument.required else f"[{name}]"


def _value(option: Any) -> str:
    if option.is_flag or option.count:
        return ""
    kind = option.type_descriptor.annotation
    return f" {option.metavar or {int: 'N', float: 'X', str: 'TEXT', Path: 'PATH'}.get(kind, 'VALUE')}"


def _default(option: Any) -> str:
    if option.default in (None, False, (), []) or callable(option.default) or option.is_flag:
        return ""
    return f"`{option.default}`"


# --- recipes


def recipe_page() -> str:
    """Returns the keys of a recipe, a table for each section."""
    schema = recipe_schema()
    sections = schema["$defs"]
    parts = ["# Keys of a recipe\n", NOTE]
    parts.append(
        "`agentrl recipe schema` prints the same as JSON Schema. "
        "`agentrl recipe check` names unknown keys and wrong values.\n"
    )
    parts += ["## Recipe\n", _keys(schema["properties"], schema.get("required", []))]
    for name in sorted(sections):
        section = sections[name]
        parts += [f"## {name}\n", _prose(section.get("description")) + "\n"]
        if section.get("properties"):
            parts.append(_keys(section["properties"], section.get("required", [])))
    return "\n".join(parts)


def _keys(properties: Mapping[str, Any], required: list[str]) -> str:
    rows = []
    for key, schema in properties.items():
        default = "required" if key in required else _shown(schema["default"]) if "default" in schema else ""
        rows.append((f"`{key}`", _type(schema), default, schema.get("description", "")))
    return _table(("key", "type", "default", "meaning"), rows)


def _type(schema: Mapping[str, Any]) -> str:
    """The type of a value, in a few words; sections are links."""
    match schema:
        case {"$ref": ref}:
            name = ref.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"anyOf": options} | {"oneOf": options}:
            return " or ".join(dict.fromkeys(map(_type, options)))
        case {"allOf": [single]}:
            return _type(single)
        case {"enum": values}:
            return ", ".join(f"`{value}`" for value in values)
        case {"const": value}:
            return f"`{value}`"
        case {"type": "array", "items": items} if items:
            return f"list of {_type(items)}"
        case {"type": "object", "additionalProperties": dict(values)} if values:
            return f"mapping to {_type(values)}"
        case {"type": str(name)}:
            return {"object": "mapping", "array": "list"}.get(name, name)
    return "any"


def _shown(value: Any) -> str:
    text = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
    return f"`{text}`" if len(text) <= 60 else "..."


# --- plug-ins


def plug_ins_page() -> str:
    """Returns the built-in plug-ins of every kind, with their settings.

    Raises:
        RuntimeError: a plug-in cannot be imported: an extra is missing.
    """
    parts = ["# Built-in plug-ins\n", NOTE]
    parts.append(
        "`agentrl list` names the kinds and `agentrl list KIND` prints a kind, with the lines of the source.\n"
    )
    for kind in kinds():
        parts += [
            f"## {kind['name']}\n",
            f"Key of the recipe: `{kind['key']}`. A plug-in of your own is {kind['wanted']}.\n",
        ]
        for row in plug_ins(kind["name"]):
            if row["missing"]:
                raise RuntimeError(f"{kind['name']}: {row['name']} cannot be described here: {row['missing']}")
            parts += [f"### {kind['name']}: {row['name']}\n", _prose(row["does"]) + "\n"]
            if functions := signature_lines(row["about"].get("functions", ())):
                parts.append(f"```text\n{functions.strip()}\n```\n")
            if row["settings"]:
                settings = [
                    (
                        f"`{each['name']}`",
                        f"`{each['type']}`",
                        "required" if each["required"] else _shown(each["default"]),
                        (each["description"] or "").replace("](", "]\\("),
                    )
                    for each in row["settings"]
                ]
                parts.append(_table(("setting", "type", "default", "meaning"), settings))
    return "\n".join(parts)


# --- Python


def api_page() -> str:
    """Returns a page of directives: mkdocstrings writes signatures and docstrings from the source."""
    parts = [
        "# Python interface\n",
        NOTE,
        "Signatures and docstrings of the public names. [From Python](../python.md) shows how they are used.\n",
    ]
    for name in sorted(agentrl.__all__, key=str.lower):
        module = agentrl._MODULES[name]
        parts += [f'<a id="{name}"></a>\n', f"::: {module}.{name}\n"]
    return "\n".join(parts)


RECORDS = {
    "agentrl.types.task": ["Task"],
    "agentrl.types.episode": [
        "Episode", "Turn", "CallRecord", "Node", "VersionSpan", "Context", "Branch", "Drift", "Usage", "GateVerdict",
        "ErrorRecord", "Parent",
    ],
    "agentrl.estimators.registry": ["EpisodeCredit"],
    "agentrl.tools.base": ["ToolResult", "Observation"],
}  # fmt: skip


def records_page() -> str:
    """Returns the fields of the records that rewards, estimators, agents and notebooks read."""
    parts = [
        "# Records\n",
        NOTE,
        "Fields of what a reward, an estimator, an agent or a notebook reads, and what a tool returns. A field with a\n"
        "default that has it is not written to disk. Fields without a meaning here are what their name says.\n",
    ]
    for module, names in RECORDS.items():
        parts += [record(getattr(importlib.import_module(module), name)) for name in names]
    return "\n".join(parts)


def record(cls: type) -> str:
    """Returns the section of a record: a table of its fields, and one of what it computes from them."""
    bases = [base for base in reversed(cls.__mro__) if base.__module__.startswith("agentrl.")]
    meanings = {name: text for base in bases for name, text in attributes(base.__doc__ or "").items()}
    types = {name: text for base in bases for name, text in inspect.get_annotations(base).items() if name[0] != "_"}
    fields = [(f"`{name}`", f"`{types[name]}`", meanings.get(name, "")) for name in types]
    computed = {
        name: inspect.getdoc(getattr(value, "__func__", getattr(value, "fget", None) or value)) or ""
        for base in bases
        for name, value in vars(base).items()
        if name[0] != "_" and isinstance(value, (property, classmethod, FunctionType))
    }
    first = next((base.__doc__ for base in reversed(bases) if base.__doc__), "").partition("\n\n")[0]
    parts = [f"## {cls.__name__}\n", f"{' '.join(first.split())} (`{cls.__module__}`)\n"]
    parts.append(_table(("field", "type", "meaning"), fields))
    if computed:
        rows = [(f"`{name}`", " ".join(text.partition("\n\n")[0].split())) for name, text in computed.items()]
        parts.append(_table(("property or method", "meaning"), rows))
    return "\n".join(parts)


def attributes(docstring: str) -> dict[str, str]:
    """Returns the texts of a docstring's section `Attributes`, by name."""
    section = re.search(r"^Attributes:\n((?:    .*\n?|\n)+)", inspect.cleandoc(docstring), re.MULTILINE)
    found = re.findall(r"^    (\w+): ((?:.*\n?)(?:     .*\n?)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


# --- for coding agents


CLASSES = {"agent": "Agent systems", "method": "Methods", "engine": "Engines"}
"""Headings of the papers page, by the class of a paper."""


@dataclass(frozen=True)
class Paper:
    """A row of docs/papers.tsv.

    Attributes:
        kind: a key of `CLASSES`.
        by: a recipe or page that is the system without being a method; empty: none.
        lacks: what is missing; empty: nothing.
        methods: the names of its methods in recipes/methods.
    """

    kind: str
    title: str
    by: str
    lacks: str
    methods: tuple[str, ...]

    @property
    def works(self) -> bool:
        return bool(self.by or self.methods)


def papers() -> list[Paper]:
    """Reads docs/papers.tsv, and finds the methods of each paper by its title.

    Raises:
        ValueError: a paper works and lacks something, or neither.
    """
    named: dict[str, list[str]] = {}
    for method in shipped_methods():
        named.setdefault(_letters(method.paper.partition(" (arXiv")[0]), []).append(method.name)
    found = []
    for row in csv.DictReader((DOCS / "papers.tsv").open(), delimiter="\t", quoting=csv.QUOTE_NONE):
        methods = tuple(named.get(_letters(row["title"]), ()))
        found.append(Paper(row["class"], row["title"], row["by"], row["lacks"], methods))
        if found[-1].works and row["lacks"]:
            by = row["by"] or ", ".join(methods)
            raise ValueError(f"docs/papers.tsv: {row['title']}: works by {by}: empty its `lacks`, {row['lacks']!r}")
        if not found[-1].works and not row["lacks"]:
            raise ValueError(f"docs/papers.tsv: {row['title']}: no recipe names it: say in `lacks` what is missing")
    return found


def papers_page() -> str:
    """Returns the page that says for each paper of the field which recipe is it, or what is missing."""
    listed = papers()
    whole = {kind: [paper for paper in listed if paper.kind == kind] for kind in CLASSES}
    parts = [NOTE + "\n# Papers\n"]
    counted = [f"{sum(each.works for each in of)} of {len(of)} {CLASSES[kind].lower()}" for kind, of in whole.items()]
    parts.append(
        f"Papers of the field, and the recipes that are these systems: {', '.join(counted)}. [Methods](../methods.md) "
        "says how to run one, and what its tests prove.\n"
    )
    for kind, of in whole.items():
        works = [(each.title, _by(each)) for each in of if each.works]
        parts += [f"## {CLASSES[kind]}\n", _table(("paper", "recipe"), works)]
        parts += [f"### {CLASSES[kind]}: not here yet\n"]
        parts += [_table(("paper", "what is missing"), [(each.title, each.lacks) for each in of if not each.works])]
    known = {name for each in listed for name in each.methods}
    others = [(method.paper, f"`{method.name}`") for method in shipped_methods() if method.name not in known]
    if others:
        parts += ["## Other papers\n", _table(("paper", "recipe"), others)]
    return "\n".join(parts)


def _by(paper: Paper) -> str:
    if paper.methods:
        return ", ".join(f"`{name}`" for name in paper.methods)
    return f"[{paper.by}](../{paper.by.removeprefix('docs/')})" if paper.by.endswith(".md") else f"`{paper.by}`"


def _letters(title: str) -> str:
    return "".join(letter for letter in title.casefold() if letter.isalnum())


def titles() -> dict[Path, tuple[str, str]]:
    """Returns title and first sentence of every page, by its path below docs/."""
    found = {}
    for path in sorted([*DOCS.glob("*.md"), *(each for room in _ROOMS for each in DOCS.glob(f"{room}/*.md"))]):
        lines = path.read_text().splitlines()
        title = lines[0].removeprefix("# ")
        text = "\n".join(line for line in lines[1:] if not line.startswith("<!--")).strip()
        first = re.split(r"(?<=\.)\s", " ".join(text.split("\n\n")[0].split()))[0]
        found[path.relative_to(DOCS)] = (title, _unlinked(first))
    return found


def llms_txt() -> str:
    """Returns an index of the pages in the form of llmstxt.org."""
    pages = titles()
    parts = [
        "# agentrl\n",
        "> Multi-turn agentic reinforcement learning: rollouts with tools in sandboxes, token-exact records, "
        "credit for turns, a trainer.\n",
    ]
    groups = {"Docs": ".", "Coming from": "coming-from", "Reference": "reference", "Results": "results"}
    for heading, folder in groups.items():
        rows = [
            f"- [{title}](docs/{path}): {first}" for path, (title, first) in pages.items() if str(path.parent) == folder
        ]
        if rows:
            parts += [f"## {heading}\n", "\n".join(rows) + "\n"]
    parts += [
        "## Recipes\n",
        "\n".join(f"- [{path.parent.name}]({path.relative_to(ROOT)})" for path in recipe_pages()) + "\n",
    ]
    return "\n".join(parts)


def agents_md() -> str:
    """Returns what a coding agent needs to know first: commands, rules, and the skills."""
    table = _table(("command", "does"), [(f"`agentrl {name}`", _first(command.help)) for name, command in commands()])
    skills = "\n".join(
        f"- [{path.parent.name}]({path.relative_to(ROOT)}): {_described(path)}"
        for path in sorted(DOCS.glob("skills/*/SKILL.md"))
    )
    return f"""# agentrl, for coding agents

{NOTE}
agentrl trains language models as agents. A recipe (YAML) names tasks, tools, rewards, credit and the model; code
beside it (`./task.py:Name`) adds what is not built in. `llms.txt` is the index of the documentation.

## Skills

{skills}

## Rules

- `agentrl recipe check RECIPE` before each run: it reports unknown keys, wrong values and missing files, with the line.
- `--json` makes a command print one JSON document. `--set key.path=value` overrides a key of a recipe.
- The same command again continues a run. Settings that define its episodes cannot change: write to another folder
  (`--out`).
- Never edit a run directory. `agentrl check RUN` verifies it.
- An episode without a reward (`infra_error`, `user_error`) is a failure to repair, not a reward of 0.

## Commands

{table}
## This repository

- `make check`: style, types, import contract, quick tests (two minutes). `make test`: all tests.
- CONTRIBUTING.md has the rules.
- `python docs/generate.py` generates this file, `llms.txt` and `docs/reference`. A test fails if they are out of date.
"""


def _first(text: str | None) -> str:
    return re.split(r"(?<=\.)\s", " ".join((text or "").split("\n\n")[0].split()))[0]


def _described(path: Path) -> str:
    match = re.search(r"^description: (.+)$", path.read_text(), re.MULTILINE)
    assert match is not None, path
    return match[1]


# --- Markdown


def _unlinked(text: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def _prose(text: str | None) -> str:
    """A docstring as Markdown: its sections (`Args:`) become paragraphs, blocks of code stay."""
    return re.sub(r"\n{3,}", "\n\n", (text or "").replace("\b", "").strip())


def _cell(text: Any) -> str:
    return (
        " ".join(str(text or "").split()).replace("|", "\\|").replace("<", "&lt;")
        if "`" not in str(text)
        else " ".join(str(text).split()).replace("|", "\\|")
    )


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in lines) + "\n"


# --- files


def written() -> dict[Path, str]:
    """Returns the files that are committed, by path, with their text."""
    reference = {
        "reference/commands.md": commands_page(),
        "reference/recipe.md": recipe_page(),
        "reference/plug-ins.md": plug_ins_page(),
        "reference/api.md": api_page(),
        "reference/records.md": records_page(),
        "reference/papers.md": papers_page(),
    }
    return {
        **{DOCS / name: text for name, text in reference.items()},
        ROOT / "llms.txt": llms_txt(),
        ROOT / "AGENTS.md": agents_md(),
    }


def recipe_pages() -> list[Path]:
    """Returns the READMEs of the recipes."""
    return sorted((ROOT / "recipes").glob("*/README.md"))


def stage(into: Path) -> None:
    """Copies all pages to `into`, the source of the site: links of the repository become links of the site."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(DOCS, into, ignore=shutil.ignore_patterns("*.py", "__pycache__", "skills"))
    for page in into.rglob("*.md"):
        page.write_text(_site_links(page.read_text()))
    front = re.sub(r"\]\(docs/", "](", (ROOT / "README.md").read_text())
    front = front.replace("](recipes)", "](recipes/index.md)").replace(
        "[CONTRIBUTING.md](CONTRIBUTING.md)", "CONTRIBUTING.md in the repository"
    )
    (into / "index.md").write_text(_site_links(front))
    rows = []
    for readme in recipe_pages():
        folder = into / "recipes" / readme.parent.name
        folder.mkdir(parents=True)
        for picture in [*readme.parent.glob("*.png"), *readme.parent.glob("*.svg")]:
            shutil.copy(picture, folder)
        text = readme.read_text().replace("](../../docs/", "](../../")
        (folder / "index.md").write_text(
            re.sub(r"\]\(\.\./([\w-]+)(?:/README\.md)?(#[\w-]+)?\)", r"](../\1/index.md\2)", text)
        )
        title, _, rest = text.partition("\n")
        rows.append(
            (
                f"[{readme.parent.name}]({readme.parent.name}/index.md)",
                title.removeprefix("# "),
                _unlinked(_first(rest.strip())),
            )
        )
    text = "# Recipes\n\n`agentrl recipe list` prints them with what each needs on this machine.\n\n"
    (into / "recipes" / "index.md").write_text(text + _table(("recipe", "title", "trains"), rows))


def _site_links(text: str) -> str:
    """Links to recipes, as pages of the site, which has them beside the docs; `index.md` is its name of a README."""

    def of_the_site(link: re.Match[str]) -> str:
        above, path, anchor = link.groups("")
        name = path.removesuffix("/README.md")
        page = name if "/" in name or "." in name else f"{name}/index.md"
        return f"]({above}recipes/{page}{anchor})"

    return re.sub(r"\]\((?:\.\./)?((?:\.\./)*)recipes/([^)#\s]+)(#[\w-]+)?\)", of_the_site, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", action="store_true", help="write build/docs, the source of the site")
    if parser.parse_args().site:
        stage(ROOT / "build" / "docs")
        return
    for _ in range(2):  # titles of pages that were just written are in llms.txt
        for path, text in written().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


if __name__ == "__main__":
    main()
