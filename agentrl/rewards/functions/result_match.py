"""PaVeRL-SQL's fractional execution accuracy: the share of a gold result that a query returns.

After `accuracy_reward.py` of the authors' code (github.com/PaVeRL-SQL/PaVeRL-SQL), which compares data frames. Values
here are those of the database; there the gold ones went through a CSV file. Columns are identified by position, not
by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_CUT_OFF = 5  # rows by which the results may differ
_NEAR = 0.005  # between two equal floats
_MISSING = -10_000_000_000


@dataclass(frozen=True)
class Column:
    """A column of a result. `kind` is that of its data frame: `int`, `float`, or `object` with a text among them."""

    kind: str
    values: list[Any]

    def only(self, rows: Sequence[int]) -> Column:
        return Column(self.kind, [self.values[row] for row in rows])


Table = list[Column]


def fraction(said: Sequence[Sequence[Any]], said_width: int, gold: Sequence[Sequence[Any]], gold_width: int) -> float:
    """Rows times columns that match, by rows times columns of the gold result.

    A column matches if it holds the same values in any order; every column matches once. If the row counts differ by at
    most five, the longer result is cut to the rows that share the key of the shorter one (its first column of text,
    else of floats, else of integers); if the counts then still differ, nothing matches.

    Args:
        said: rows of the answer's result, each of `said_width` values.
        gold: rows of the gold result.
    """
    try:
        ours, theirs = _columns(said, said_width), _columns(gold, gold_width)
        rows, matched = _matching(ours, len(said), theirs, len(gold))
    except TypeError:  # texts among numbers have no order; the authors' code gives 0 as well
        rows, matched = 0, 0
    if not gold_width:
        return 0.0
    return rows * matched / (len(gold) * gold_width) if gold else matched / gold_width


def _matching(ours: Table, rows: int, theirs: Table, wanted: int) -> tuple[int, int]:
    """Rows that were compared, and columns that match."""
    if abs(rows - wanted) > _CUT_OFF:
        return wanted, 0
    if rows < wanted:
        theirs = _cut(ours, theirs, len(theirs), of_answer=True)
        found = _height(theirs)
        return (found, _same_columns(theirs, ours)) if found == rows else (found, 0)
    if rows > wanted:
        ours = _cut(theirs, ours, len(theirs), of_answer=False)
        return (wanted, _same_columns(theirs, ours)) if _height(ours) == wanted else (wanted, 0)
    return wanted, _same_columns(theirs, ours)


def _columns(rows: Sequence[Sequence[Any]], width: int) -> Table:
    return [_column([row[place] for row in rows]) for place in range(width)]


def _column(values: list[Any]) -> Column:
    """Builds a column: missing values are filled in, and texts are parsed as numbers if all of them are numbers."""
    texts = any(isinstance(value, str | bytes) for value in values)
    numbers = [_number(value) for value in values]
    if texts and any(number is None for number, value in zip(numbers, values, strict=True) if value is not None):
        return Column("object", [str(_MISSING) if value is None else value for value in values])
    if any(number is None or isinstance(number, float) for number in numbers):
        return Column("float", [float(_MISSING) if number is None else float(number) for number in numbers])
    return Column("int" if values else "object", numbers)


def _number(value: Any) -> int | float | None:
    if isinstance(value, int | float) or value is None:
        return value
    try:
        return int(value) if str(value).strip().lstrip("+-").isdecimal() else float(value)
    except (TypeError, ValueError):
        return None


def _height(table: Table) -> int:
    return len(table[0].values) if table else 0


def _same_columns(theirs: Table, ours: Table) -> int:
    """Returns the number of columns of `theirs` that are among `ours`."""
    left = [(column.kind, _ordered(column)) for column in ours]
    found = 0
    for column in theirs:
        kind, values = column.kind, _ordered(column)
        for place, (other, seen) in enumerate(left):
            close = kind == other == "float"
            if all(abs(a - b) <= _NEAR for a, b in zip(values, seen, strict=True)) if close else values == seen:
                del left[place]
                found += 1
                break
    return found


def _ordered(column: Column) -> list[Any]:
    return sorted(round(value, 3) for value in column.values) if column.kind == "float" else sorted(column.values)


def _cut(short: Table, long: Table, wanted: int, *, of_answer: bool) -> Table:
    """The rows of `long` that share the key of `short`; no rows if no column of `long` holds that key.

    Args:
        wanted: columns of the gold result.
        of_answer: `short` is the answer's result.
    """
    key = next((column for kind in ("object", "float", "int") for column in short if column.kind == kind), None)
    if key is None or not (target := set(key.values)):
        return []
    kept: list[Any] = []
    column = long[-1]
    for column in long:
        if column.kind != key.kind:
            continue
        if key.kind == "float":
            pairs = [value for value in column.values for near in target if abs(value - near) < _NEAR]
            kept += pairs
            enough = len(pairs) >= len(target)
        else:
            enough = sum(value in target for value in column.values) >= len(target)
            kept = list(target) if enough else kept
        if enough:
            break
    if not kept:
        return []
    rows = [row for row, value in enumerate(column.values) if value in kept]
    if wanted > 1:
        return [each.only(rows) for each in long]
    if of_answer and not Counter(key.values) - Counter(column.values):
        return short
    if set(kept) == target:
        return [each.only(rows) for each in long]
    return [Column(column.kind, list(dict.fromkeys(column.values)))] if len(long) == 1 else []
