"""The `sql` tool: queries on a database of the task, in SQLite or DuckDB."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

from agentrl.sql.opening import Engine, open_database, require_database, require_engine
from agentrl.sql.query import Limits, QueryFailed, Result
from agentrl.tools.base import Tool, tool
from agentrl.tools.calling import in_thread, turn_of
from agentrl.types.errors import RecipeError, TaskError, ToolError
from agentrl.types.sandbox import Sandbox
from agentrl.types.task import Task

GRACE_S = 10.0
"""The database ends a query that takes too long; the runner's deadline is behind that."""

_CELL = 200  # characters of a value that are shown


class Sql(Tool):
    """Offers `sql(query)` and `schema(table)`.

    Args:
        database: path of a database's file or of a script that makes one (`.sql`), the script itself, or a function
            that returns one of these. Default: that of the task.
        key: where in `task.data` the database is.
        engine: `sqlite` or `duckdb`; default: by the file's ending, else `sqlite`.
        write: queries may change the database; every episode has a copy of its own.
        rows: of a result that are shown.
        chars: of a result that are shown.
        timeout_s: bound on one query.

    Raises:
        RecipeError: a bound below 1, or a file that does not exist.
        MissingExtra: duckdb is asked for, and not installed.
    """

    def __init__(
        self,
        database: str | Callable[[], str] | None = None,
        key: str = "database",
        engine: Engine | None = None,
        write: bool = False,
        rows: int = 20,
        chars: int = 4000,
        timeout_s: float = 10.0,
    ) -> None:
        for name, value in (("rows", rows), ("chars", chars), ("timeout_s", timeout_s)):
            if value < 1:
                raise RecipeError(f"sql: {name} must be at least 1, found {value}")
        if isinstance(database, str) and database.strip():
            try:
                require_database(database)
            except TaskError as error:
                raise RecipeError(error.message, place="sql: database", remedy=error.remedy) from None
        require_engine(database if isinstance(database, str) else "", engine)
        self.source, self.key, self.engine, self.write = database, key, engine, write
        self.limits = Limits(rows=rows, bytes=16 << 20, seconds=timeout_s)
        self.chars = chars
        self.timeout_s = timeout_s + GRACE_S
        self._seen: set[str] = set()

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Opens the database."""
        where: Any = task.data.get(self.key) if self.source is None else self.source
        if callable(where):
            where = where()
        if not isinstance(where, str) or not where.strip():
            raise TaskError(
                f"no database: {self.key!r} is {where!r}",
                place=f"task {task.id}",
                remedy="give a file's path, or SQL that makes it, in task.data or as the tool's `database`",
            )
        # In a thread: a script or a copy takes a while.
        self._database = await in_thread(partial(open_database, where, engine=self.engine, write=self.write))

    async def close(self) -> None:
        """Closes the database."""
        if hasattr(self, "_database"):
            self._database.close()

    @tool
    async def sql(self, query: str) -> str:
        """Run one SQL query. Shows the first rows of what it returns.

        Args:
            query: One statement.
        """
        found = self._database.glance(query, self.limits)  # most queries: a thread would take longer than they do
        shown = await in_thread(partial(self._run, query), turn_of(self)) if found is None else self._table(found)
        self._seen.add(shown)
        return shown

    @tool
    def schema(self, table: str | None = None) -> str:
        """Show the tables: how each is made, or one of them.

        Args:
            table: The name of a table. Default: all.
        """
        made = self._database.schema()
        if table is not None:
            found = {name.lower(): statement for name, statement in made.items()}.get(table.strip().strip('"`').lower())
            if found is None:
                raise ToolError(f"there is no table {table!r}; there are: {', '.join(made) or 'none'}")
            made = {table: found}
        shown = _cut(";\n".join(made.values()), self.chars) or "no tables"
        self._seen.add(shown)
        return shown

    def state_key(self) -> str:
        """What has been seen so far, in any order, and what the tables hold if they can change."""
        held = self._database.state() if self.write else ""
        return hashlib.sha256("\n\n".join([held, *sorted(self._seen)]).encode()).hexdigest()[:16]

    def _run(self, query: str) -> str:
        try:
            return self._table(self._database.run(query, self.limits))
        except QueryFailed as failure:
            raise ToolError(str(failure)) from None

    def _table(self, result: Result) -> str:
        if not result.columns:
            return "done"
        lines = [" | ".join(result.columns), *(" | ".join(map(_cell, row)) for row in result.rows)]
        count = f"({len(result.rows)} row{'s' if len(result.rows) != 1 else ''})"
        return "\n".join(
            [_cut("\n".join(lines), self.chars), f"(the first {len(result.rows)} rows)" if result.more else count]
        )


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int | float):
        return str(value)
    text = f"x'{value.hex()}'" if isinstance(value, bytes) else " ".join(str(value).split())
    return text if len(text) <= _CELL else f"{text[:_CELL]}..."


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n[... {len(text) - limit} more characters]"
