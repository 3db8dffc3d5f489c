"""Comparers of two answers.

`maths` compares in a helper process. Its callers return an awaitable; with the other comparers they return the value
immediately.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar, cast

from agentrl.rewards.checker import Checker
from agentrl.rewards.functions.answers.symbolic import compare, require_maths
from agentrl.sandbox.helper import TooMuch
from agentrl.types.episode import Episode

Comparer = Literal["squad", "exact", "numeric", "maths"]
"""Methods of comparing answers.

`squad`: equal after SQuAD normalisation, which leaves numbers whole (-3 is not 3, 1.5 km not 15 km). `exact`: equal
but for white space around. `numeric`: their last numbers are equal. `maths`: symbolically equal (needs math-verify).
Answers without a number, or that do not parse as mathematics, are equal only if their texts are.
"""

T = TypeVar("T")

CONFIDENCE = r"<confidence>\s*([0-9.]+)\s*(?:(%)\s*)?</confidence>"
"""Pattern of a policy's confidence, which is removed from its answer."""

TOLERANCE = 1e-6
"""Two numbers x and y are equal if they differ by at most this times max(1, |y|)."""

MATHS = Checker("agentrl.rewards.functions.answers.symbolic", memory_mb=4096)


def said(episode: Episode) -> str | None:
    """Returns the answer of an episode without its confidence."""
    return None if episode.answer is None else re.sub(CONFIDENCE, "", episode.answer).strip()


def among(answer: str, references: Sequence[str], how: Comparer) -> Any:
    """Returns True if an answer equals one of the references, or an awaitable of that (`then`)."""
    if how == "maths":
        return _any_equal(references, answer)
    given = _read(answer, how)
    return any(_alike(_read(reference, how), given) for reference in references)


def classes(answers: Sequence[str | None], how: Comparer) -> Any:
    """For each answer the place of the first one that is the same, None without an answer; or an awaitable (`then`)."""
    if how == "maths":
        return _maths_classes(answers)
    read = [None if answer is None else _read(answer, how) for answer in answers]  # once each, not for every pair
    found: list[int | None] = []
    for k, given in enumerate(read):
        same = (j for j in range(k) if found[j] == j and _alike(read[j], given))
        found.append(None if given is None else next(same, k))
    return found


def then(value: Any, follows: Callable[[Any], T]) -> T:
    """Applies `follows` to a value. Returns its result, or an awaitable of it if the value is an awaitable."""
    return cast(T, _later(value, follows)) if isinstance(value, Awaitable) else follows(value)


async def _later(value: Awaitable[Any], follows: Callable[[Any], T]) -> T:
    return follows(await value)


def normalise(text: str) -> str:
    """SQuAD normalisation: lower case, no ASCII punctuation, no articles, single spaces.

    Unlike SQuAD's, it leaves numbers whole: signs, points and bars of fractions are not punctuation, and separators
    between the numbers of a pair or a date remain. A text that would become empty ("The", "+") is only lowercased:
    it must not equal every other one.
    """
    lower = _plain(text).lower()
    bare = _MARKS.sub(_without_marks, lower)
    words = re.sub(r"\b(a|an|the)\b", " ", bare).split()
    return " ".join(words or lower.split())


def _without_marks(match: re.Match[str]) -> str:
    """Returns a number without redundant characters, a space between two numbers, nothing for other punctuation."""
    if match["number"] is not None:
        return re.sub(r"[,%\s]", "", match["number"]).removeprefix("+")
    return " " if match["between"] else ""


def _plain(text: str) -> str:
    """Converts minus signs to ASCII and moves them next to their numbers: -$3 becomes $-3."""
    return _SIGNED.sub(r"\1-", _composed(text).replace("\u2212", "-"))


def _composed(text: str) -> str:
    """Letters with their accents as one character: both forms look alike."""
    return unicodedata.normalize("NFC", text)


def last_number(text: str) -> list[float]:
    """The readings of the last number in a text: empty without a number, two for a percentage (share and as
    written)."""
    text = re.sub(r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}", r"\1/\2", _plain(text)).replace("\\%", "%")
    for match in reversed(list(_NUMBER.finditer(text))):
        value = float(match["top"].replace(",", ""))
        if match["bottom"]:
            bottom = float(match["bottom"].replace(",", ""))
            if bottom == 0:
                continue
            value /= bottom
        return [value / 100, value] if match["percent"] else [value]
    return []


def equal_numbers(answer: Sequence[float], reference: Sequence[float], tolerance: float = TOLERANCE) -> bool:
    """Returns True if a reading of the answer equals one of the reference, within a relative tolerance.

    Two percentages are compared as they are written: 100% is not 1%, though each can be read as 1.
    """
    if len(answer) == len(reference) == 2:
        answer, reference = answer[1:], reference[1:]
    return any(abs(x - y) <= tolerance * max(1.0, abs(y)) for x in answer for y in reference)


def _read(text: str, how: Comparer) -> str | list[float]:
    """Returns what is compared of a text: its words, its numbers, or all of it."""
    if how == "squad":
        return normalise(text)
    if how == "numeric" and (numbers := last_number(text)):
        return numbers
    return _composed(text).strip()


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return equal_numbers(other, one)
    return bool(one == other)


async def _any_equal(references: Sequence[str], answer: str) -> bool:
    for reference in references:
        if await _equal(reference, answer):
            return True
    return False


async def _maths_classes(answers: Sequence[str | None]) -> list[int | None]:
    same = _SameMaths()
    found: list[int | None] = []
    for k, answer in enumerate(answers):
        found.append(None if answer is None else k)
        for j in range(k):
            one = answers[j]
            if answer is not None and one is not None and found[j] == j and await same.equal(one, answer):
                found[k] = j
                break
    return found


class _SameMaths:
    """Compares many answers with each other, in a time that no single one of them decides.

    An answer that takes too long even to compare with `_PLAIN` is given up: from then on only its text is compared. So
    is one whose comparisons with `_PARTNERS` others take too long, though none of them does by itself.
    """

    def __init__(self) -> None:
        self._slow_pairs: Counter[str] = Counter()
        self._given_up: set[str] = set()
        self._quick: set[str] = set()  # by themselves
        self._late = 0

    async def equal(self, one: str, other: str) -> bool:
        """Returns True if two answers are equal."""
        if one.strip() == other.strip():
            return True
        if not self._given_up.isdisjoint((one, other)) or max(len(one), len(other)) > LONGEST:
            return False
        same = await self._in_time(one, other)
        if same is None:
            await self._give_up(one, other)
        return bool(same)

    async def _in_time(self, one: str, other: str) -> bool | None:
        same = await _equal(one, other, _CPU_S if self._late < _PATIENT else _HURRIED_S)
        self._late += same is None
        return same

    async def _give_up(self, *pair: str) -> None:
        """Gives up the answers of a pair that make it slow."""
        for text in pair:
            if text not in self._quick:
                late = await self._in_time(text, _PLAIN) is None
                (self._given_up if late else self._quick).add(text)
        if self._given_up.isdisjoint(pair):
            self._slow_pairs.update(pair)
            self._given_up |= {text for text in pair if self._slow_pairs[text] >= _PARTNERS}


LONGEST = 20_000
"""Characters of an answer that is compared as mathematics."""

_PLAIN = "1"
_CPU_S, _HURRIED_S = 5.0, 0.5  # processor time of a comparison; and where many took longer
_PATIENT = 8  # comparisons of a group that may take the whole time
_PARTNERS = 3


async def _equal(one: str, other: str, cpu_s: float = 5.0) -> bool | None:
    """Returns whether two answers are equal; None if that takes too long.

    Answers that cannot be compared as mathematics are the same only if their texts are.
    """
    require_maths()
    if one.strip() == other.strip():
        return True
    try:
        return bool(await MATHS.ask(compare, one, other, 6, cpu_s=cpu_s) == "equal")
    except TooMuch:
        return None


_PUNCTUATION = re.escape(string.punctuation)
_DIGITS = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+(?!\w))?"
# A sign belongs to a number only where no word or bracket ends before it: "10-12" ends in 12, "x = -3" in -3.
_NUMBER = re.compile(
    rf"(?P<top>(?:(?<![\w.)\]])[-+])?(?<![\w.]){_DIGITS})(?:\s?/\s?(?P<bottom>{_DIGITS}))?(?P<percent>\s?%)?"
)
_MARKS = re.compile(rf"(?P<number>{_NUMBER.pattern})|(?P<between>(?<=\d)[{_PUNCTUATION}]+(?=\d))|[{_PUNCTUATION}]")
_SIGNED = re.compile(r"(?<![\w.)\]])-([$\u20ac\xa3\xa5])(?=\d)")
