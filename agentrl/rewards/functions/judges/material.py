"""Material of judges: the task, its rubric, an answer, a transcript; and prompts filled with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from agentrl.rewards.declare import Scored
from agentrl.rewards.functions.judges.client import Question
from agentrl.types.episode import Episode, Turn
from agentrl.types.errors import RecipeError, TaskError
from agentrl.types.parts.content import text_of
from agentrl.types.task import Message, Task

Reads = Literal["answer", "transcript"]
"""The part of an episode that a judge reads."""

CORRECT = "The answer is right, and agrees with the reference where there is one."


def asked(task: Task) -> str:
    """The task in words."""
    return "\n\n".join(_said(message) for message in task.instruction)


def rubric_of(task: Task, rubric: str, key: str | None) -> str:
    """Returns the rubric of the recipe, or with a `key` that of the task.

    Raises:
        TaskError: the field of the task is missing, or neither a text nor a list of texts.
    """
    if key is None:
        return rubric
    found = task.data.get(key)
    lines = found if isinstance(found, list) else [found]
    if not lines or not all(isinstance(line, str) and line.strip() for line in lines):
        raise TaskError(
            f"data {key!r} is {found!r}, and no rubric",
            place=f"task {task.id}",
            remedy="give a text, or a list of criteria",
        )
    return str(found) if isinstance(found, str) else "\n".join(f"- {line}" for line in lines)


def shown(episode: Episode, reads: Reads) -> str:
    """Returns the part of an episode that a judge reads; empty if nothing can be judged."""
    return transcript(episode.turns) if reads == "transcript" else (episode.answer or "").strip()


def transcript(turns: list[Turn], most: int = 4000) -> str:
    """Formats turns as text, each with its observations. Lines in them that look like its headings are marked.

    Args:
        most: characters of one observation; the middle of a longer one is left out.
    """
    return "\n".join(part for turn in turns for part in _turn_in_words(turn, most))


def _turn_in_words(turn: Turn, most: int) -> list[str]:
    shown = [_without_headings(cut(_said(message), most)) for message in turn.observations]
    seen = [f"[observation after turn {turn.index}]\n{text}" for text in shown]
    return [f"[turn {turn.index}]\n{_without_headings(turn.text.strip())}", *seen]


def _without_headings(text: str) -> str:
    """Marks lines that look like headings of a transcript: nobody's text may pass for another turn, or for a result."""
    return _HEADING.sub(r"\1\\[", text)


_HEADING = re.compile(r"^([^\S\n]*+)\[(?=(?:observation after )?turn\b)", re.MULTILINE | re.IGNORECASE)


def _said(message: Message) -> str:
    return text_of(message.get("content") or "")


def cut(text: str, most: int) -> str:
    """Returns a text without its middle, if it has more than `most` characters."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}\n[...]\n{text[len(text) - half :]}"


def question(template: str, about: Mapping[str, Any], **material: str) -> Question:
    """Returns a function that fills a template with `about` and with the agent's material, cut to a length.

    Closing tags of the template are broken up in the material: it must not close its enclosing tag.
    """
    frames = "|".join(re.findall(r"</(\w+)>", template)) or "(?!)"
    closing = re.compile(rf"<(?=/({frames})\s*>)", re.IGNORECASE)
    inside = {name: closing.sub(lambda _: "<\\", text) for name, text in material.items()}

    def prompt(most: int) -> str:
        return fill(template, **about, **{name: cut(text, most) for name, text in inside.items()})

    return prompt


def fill(template: str, **values: Any) -> str:
    """A prompt. Raises RecipeError if the template names something else."""
    try:
        return template.format(**values)
    except (KeyError, IndexError, ValueError) as error:
        raise RecipeError(
            f"the judge's prompt cannot be filled: {type(error).__name__}: {error}",
            place="rewards",
            remedy=f"it may name {', '.join('{' + name + '}' for name in values)}; write {{{{ for a brace",
        ) from None


def verdict(read: list[float], asked: int, key: str) -> Scored:
    """The mean of the parsed votes; None if at most half could be parsed."""
    lost = asked - len(read)
    note = f"{len(read)} of {asked} votes read, prompt {key[:12]}"
    if 2 * len(read) <= asked:
        return Scored(None, f"malformed reply: {note}")
    spread = f", {dict(Counter(f'{value:g}' for value in read))}" if len(set(read)) > 1 else ""
    return Scored(sum(read) / len(read), note + spread + (f", {lost} lost" if lost else ""))
