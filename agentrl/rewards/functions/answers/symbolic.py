"""Symbolic equality of two texts, in a helper process: the module that it imports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from agentrl.types.errors import needs


def require_maths(_: Mapping[str, Any] = {}) -> None:  # it is not changed
    """Checks that math-verify is installed.

    Raises:
        MissingExtra: it is not.
    """
    with needs("maths"):
        import math_verify  # noqa: F401


def prepare() -> None:
    """Imports the algebra system, which takes a second on a slow machine."""
    compare("1", "1", 6)


def compare(reference: str, answer: str, digits: int, value: bool = False, question: str = "") -> str:
    """Returns `equal`, `different`, `no gold`, or why an equal answer is refused.

    These are `several answers`, `not computed`, and `the question's own text`.

    Args:
        value: a number has to be written as a number.
        question: the text of the task.
    """
    from math_verify import parse, verify

    wanted = said = None
    # No time limit (None): a limit would hide the difference between unequal and undecided.
    with suppress(Exception):
        wanted = parse(_delimited(reference), parsing_timeout=None) or parse(reference, parsing_timeout=None)
    with suppress(Exception):  # a parser error is the answer's fault
        said = parse(answer, parsing_timeout=None)
        if not said or _is_part(_text_of(said, answer), answer):
            said = parse(_delimited(answer), parsing_timeout=None)
    equal = False
    with suppress(Exception):
        equal = bool(wanted and said) and verify(wanted, said, float_rounding=digits, timeout_seconds=None)
    if not equal:
        return "different" if wanted else "no gold"
    text, gold = _text_of(said, answer), _text_of(wanted, reference)
    if is_numeral(gold) and _is_one_of_several(text, answer) and not _is_one_of_several(gold, reference):
        return "several answers"
    if is_numeral(text) and not (value and _is_left_to_do(text, gold, question)):
        return "equal"
    if value and is_numeral(gold):
        return "not computed"
    return "the question's own text" if _bare(text) != _bare(gold) and _bare(text) in _bare(question) else "equal"


def readable(reference: str) -> bool:
    """Returns True if the reference parses as mathematics."""
    return compare(reference, "", 6) != "no gold"


def is_numeral(text: str) -> bool:
    """Returns True if a text is a written number: 12, -1,000.5, 3/4, \\frac{3}{4}, 2.5e3, 50%, x = 5."""
    bare = re.sub(r"\\[,;! ]|\\text\{[^{}]*\}|[\s${}]|\\\$|\\[()\[\]]|\\left|\\right", "", text.rpartition("=")[2])
    fractions = re.sub(r"\\[dt]?frac", "", text.rpartition("=")[2]) if "frac" in text else ""
    return bool(_NUMERAL.fullmatch(bare) or _FRACTION.fullmatch("".join(fractions.split()).strip("$")))


def _is_left_to_do(text: str, gold: str, question: str) -> bool:
    """Returns True if a fraction is a division that the task asks to compute.

    Such is one where the gold answer is whole, and one of the question where the gold answer is another fraction.
    """
    ratio, wanted = _ratio(text), _ratio(gold)
    if ratio is None or ratio == wanted:
        return False
    stands = "{}/{}".format(*ratio), "frac{{{}}}{{{}}}".format(*ratio)
    copied = wanted is not None and any(each in _bare(question) for each in stands)
    return copied or _WHOLE.fullmatch(_bare(gold)) is not None


def _ratio(text: str) -> tuple[str, str] | None:
    """Numerator and denominator of a fraction, as they are written; None if it is none."""
    found = _RATIO.search(_bare(text))
    return None if found is None else (found[1] or found[3], found[2] or found[4])


_DIGITS = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
_NUMERAL = re.compile(
    rf"[-+]?{_DIGITS}(?:/[-+]?{_DIGITS}|[eE][-+]?[0-9]+|(?:\\times|\\cdot|\*|\u00d7)10\^[-+]?[0-9]+)?(?:\\?%|\^?\\circ|\u00b0)?"
)
_RATIO = re.compile(rf"({_DIGITS})/({_DIGITS})|frac\{{({_DIGITS})\}}\{{({_DIGITS})\}}")
_WHOLE = re.compile(r"[-+]?[0-9]+(?:,[0-9]{3})*(?:\.0*)?")
_EITHER_SIGN = re.compile(r"(?:\\pm|\\mp|\u00b1|\u2213|\+/?-)\s*\{?\s*\Z")
_EXPONENT = re.compile(r"\s*(?:\^(?!\s*\{?\s*(?:\\circ|\u00b0))|\*\*)")
_FRACTION = re.compile(rf"[-+]?[0-9]*\{{[-+]?{_DIGITS}\}}\{{[-+]?{_DIGITS}\}}")


def _is_part(text: str, whole: str) -> bool:
    r"""Returns True if the parser ignored an exponent after `text`, or a `\pm` before it.

    It reads the plain texts `2^{3}` as 2, and `\pm 5` as 5.
    """
    before, behind = whole.rpartition(text)[0], whole.partition(text)[2]
    return text != whole and bool(_EXPONENT.match(behind) or _EITHER_SIGN.search(before[-20:]))


def _is_one_of_several(text: str, whole: str) -> bool:
    """Returns True if the answer offers another number beside `text`: "the answer is 5 or 6", of which the parser reads
    the first.
    """
    written = ",?".join(map(re.escape, text)) if text.isdecimal() else re.escape(text)  # the parser drops commas
    ends = [found.end() for found in re.finditer(rf"(?<!\d)(?<!\d[.,]){written}(?!\d)", whole)]
    stated = [end for end in ends if "answer" in whole[max(0, end - len(text) - 30) : end].lower()]
    return any(_OR_ANOTHER.match(whole, end) for end in stated or ends[-1:])


_OR_ANOTHER = re.compile(
    r"[^\S\n]*(?:\\?%|\$|\\\))?"
    r"(?:[\s,;:.(]*(?:(?:(?:or|no|sorry|wait|actually|maybe|perhaps|possibly|alternatively|rather|else|otherwise|but|if"
    r"|unless|and|also|to|through|not|versus|vs)\b|\u00b1|\\pm|\+/?-|\|)[\s,;:(]*)+[^.!?\n\d]{0,16}\d"
    r"|[\s,;:&|]+(?:[a-z]\s*=\s*)?[-+]?\d)",
    re.IGNORECASE,
)


def _text_of(parsed: Any, whole: str) -> str:
    """Returns the part of a text that was parsed as mathematics."""
    last = parsed[-1]
    return last if isinstance(last, str) else whole


def _bare(text: str) -> str:
    """Strips delimiters and white space that do not change the meaning."""
    return re.sub(r"\\left|\\right|\\[,;! ()\[\]]|[\s$]", "", text).lower()


def _delimited(text: str) -> str:
    r"""Bare LaTeX (`\frac{1}{2}`) is only found between delimiters."""
    return text if "$" in text or "\\boxed" in text or "\\(" in text else f"${text}$"
