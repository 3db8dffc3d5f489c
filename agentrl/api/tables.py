"""Tables as records, Arrow or pandas."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import msgspec

from agentrl.types.errors import needs

if TYPE_CHECKING:
    import pandas
    import pyarrow

R = TypeVar("R")


class Table(Sequence[R], Generic[R]):
    """Rows: a sequence of records, and columns for Arrow and pandas.

    The rows are read at the first access, then cached.

    Args:
        read: reads the rows.
        record: the struct type of the rows, if they have one. Its fields are the columns, even of an empty table.
        leave_out: fields that do not become columns.
    """

    def __init__(
        self, read: Callable[[], Iterable[R]], record: type[msgspec.Struct] | None = None, leave_out: Sequence[str] = ()
    ) -> None:
        self._read, self._record, self._leave_out = read, record, leave_out

    @cached_property
    def records(self) -> list[R]:
        """The rows as they are: structs, or dicts for metrics."""
        return list(self._read())

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._columns())

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per row."""
        return [dict(zip(self._columns(), row, strict=True)) for row in zip(*self._columns().values(), strict=True)]

    def to_arrow(self) -> pyarrow.Table:
        """An Arrow table. Mappings become JSON strings.

        Raises:
            MissingExtra: pyarrow is not installed.
        """
        with needs("tables"):
            import pyarrow
        types = _arrow_types(pyarrow, self._record) if self._record is not None else {}
        return pyarrow.table({
            name: pyarrow.array([_plain(value) for value in values], types.get(name))
            for name, values in self._columns().items()
        })  # fmt: skip

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame.

        Raises:
            MissingExtra: pandas is not installed.
        """
        with needs("tables"):
            import pandas
        return pandas.DataFrame(self._columns())

    def _columns(self) -> dict[str, list[Any]]:
        if self._record is not None:
            names = [name for name in self._record.__struct_fields__ if name not in self._leave_out]
            return {name: [getattr(row, name) for row in self.records] for name in names}
        rows = [typing.cast(Mapping[str, Any], row) for row in self.records]
        return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}

    @overload
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[R]: ...
    def __getitem__(self, index: int | slice) -> R | Sequence[R]:
        return self.records[index]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[R]:
        return iter(self.records)

    def __repr__(self) -> str:
        return f"Table({len(self)} rows: {', '.join(self.columns)})"


def _plain(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping) else value


def _arrow_types(pyarrow: Any, record: type[msgspec.Struct]) -> dict[str, Any]:
    """The Arrow type of each field. It does not depend on the rows."""
    known = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    return {name: known.get(_bare(hint), pyarrow.string()) for name, hint in typing.get_type_hints(record).items()}


def _bare(hint: Any) -> Any:
    """`float` of `float | None`."""
    if isinstance(hint, types.UnionType):
        return next(arm for arm in hint.__args__ if arm is not types.NoneType)
    return hint
