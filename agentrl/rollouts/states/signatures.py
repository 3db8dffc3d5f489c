"""Built-in signatures of what an episode has done and seen: `tools`, `seen`, `history`, `text`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from agentrl.rollouts.states.files import files
from agentrl.rollouts.states.registry import Moment, digest, joined, known
from agentrl.tools.base import Environment
from agentrl.types.episode import CallRecord, TurnDraft
from agentrl.types.parts.content import text_of
from agentrl.types.task import Message


async def tools(moment: Moment) -> str | None:
    """The state by kind of tool: `state_key()` of those that define it (documents and tables seen, page and address), a
    hash of the sandbox's files where there is a sandbox, and the results of all other tools that were seen so far.
    """
    parts = [known(moment)] if moment.keyed else []
    if moment.sandbox is not None:
        parts.append(await files(moment))
    keyed = {id(each) for each in moment.keyed}
    others = {id(each): each for each in moment.tools if id(each) not in keyed and not each.needs_sandbox}
    if others:
        names = {name for name, owner in moment.owners.items() if id(owner) in others}
        answers = any(isinstance(each, Environment) for each in others.values())
        parts.append(digest(*sorted(_results(moment.turns, names, answers))))
    return joined(parts)


def seen(moment: Moment) -> str:
    """Hash of the results of all calls so far and of the answers of environments, in any order and without repetition:
    episodes that have seen the same share a state.
    """
    return digest(*sorted(_results(moment.turns)))


def history(moment: Moment, thoughts: bool = False) -> str:
    """Hash of all that was done and observed so far, in order: episodes share a state until one acts or sees otherwise.

    Args:
        thoughts: whether the text of replies with calls counts. A reply without calls always counts.
    """
    return digest(*_texts(moment.opening), *(step for turn in moment.turns for step in _steps(turn, thoughts)))


def text(moment: Moment, chars: int = 2000, exact: bool = False) -> str:
    """The text that the turn answers: the observations after the last turn, or the opening. Case, white space and
    digits do not count. `similarity` of `gigpo` merges keys of similar text.

    Args:
        chars: characters of the key at most; of a longer text, the first half and the last half of them.
        exact: whether case, white space and digits count.
    """
    last = moment.turns[-1].observations if moment.turns else moment.opening
    said = "\n".join(_texts(last))
    said = said if exact else re.sub(r"\d+", "0", " ".join(said.casefold().split()))
    half = chars // 2
    return said if len(said) <= chars else f"{said[:half]}{said[-half:]}"


def _results(turns: Iterable[TurnDraft], names: set[str] | None = None, answers: bool = True) -> set[str]:
    """The results of calls of these tools (None: all), and the answers of environments to replies."""
    found = {"\n".join(_result(call)) for turn in turns for call in turn.calls if names is None or call.name in names}
    if answers:
        heard = [turn.observations[turn.heard] for turn in turns if turn.heard is not None]
        found |= {"\n".join(_texts([message])) for message in heard}
    return found


def _steps(turn: TurnDraft, thoughts: bool) -> Iterator[str]:
    """Yields the texts of a turn: its calls (or its reply), then its observations."""
    if thoughts or not turn.calls:
        yield turn.text
    for call in turn.calls:
        yield f"{call.name} {msgspec.json.encode(call.arguments, order='sorted').decode()}"
    yield from _texts(turn.observations)


def _result(call: CallRecord) -> Iterator[str]:
    yield call.result
    yield from (str(part.get("blob")) for part in call.images)


def _texts(messages: Iterable[Message]) -> Iterator[str]:
    """The texts of messages; images by the hash of their file."""
    for message in messages:
        yield text_of(message["content"], image=lambda part: f"[image {part.get('blob')}]")
