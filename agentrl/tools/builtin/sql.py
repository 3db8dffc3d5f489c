"""The `sql` tool: queries on the task's database, in SQLite or DuckDB."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.registry.checks import at_least_one
from agentrl.sandbox.helper import Helper, HelperRaised, Starved, TooMuch
from agentrl.sql import process
from agentrl.sql.opening import Engine, is_script, require_database, require_engine
from agentrl.tools.base import Tool, tool
from agentrl.tools.calling import called
from agentrl.types.errors import AgentRLError, InfraError, RecipeError, TaskError, ToolError
from agentrl.types.sandbox import Sandbox
from agentrl.types.task import Task

_OPEN_S = 120.0
"""CPU seconds for the script that creates a database, or for copying one."""

_OWN_S = 1.0  # processor time beside the query's, which ends it before its process is ended
_HELPER = Helper("agentrl.sql.process", memory_mb=process.MEMORY_MB, size=16, kept=4)
"""Processes for all queries; none runs in this process."""


class Sql(Tool):
    """Offers `sql(query)` and `schema(table)`.

    Args:
        database: path of a database file or of a script that creates one (`.sql`), the script itself, or a function
            that returns one of these. Default: the task's database.
        key: key of the database in `task.data`.
        engine: `sqlite` or `duckdb`; default: by the file's suffix, else `sqlite`.
        write: queries may change the database; each episode gets its own copy.
        rows: maximum rows shown per result.
        chars: maximum characters shown per result.
        timeout_s: CPU seconds of one query. Waiting for a CPU does not count.

    Raises:
        RecipeError: a limit below 1, or a missing file.
        MissingExtra: duckdb is requested but not installed.
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
        at_least_one("sql", rows=rows, chars=chars, timeout_s=timeout_s)
        if isinstance(database, str) and database.strip():
            try:
                require_database(database)
            except TaskError as error:
                raise RecipeError(error.message, place="sql: database", remedy=error.remedy) from None
        require_engine(database if isinstance(database, str) else "", engine)
        self.source, self.key, self.engine, self.write = database, key, engine, write
        self.rows, self.chars, self.query_s = rows, chars, timeout_s
        self.timeout_s = math.inf  # the helper process enforces the limit
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._copy: str | None = None
        self._held = ""
        self._seen: set[str] = set()

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Opens the database."""
        where: Any = task.data.get(self.key) if self.source is None else self.source
        if callable(where):
            where = await called(self, where)
        if not isinstance(where, str) or not where.strip():
            raise TaskError(
                f"no database: {self.key!r} is {where!r}",
                place=f"task {task.id}",
                remedy="give a file's path, or SQL that makes it, in task.data or as the tool's `database`",
            )
        require_database(where)
        self._where = _absolute(where)
        if self.write:
            try:
                self._folder = tempfile.TemporaryDirectory(prefix="agentrl-sql-")
            except OSError as error:
                raise InfraError(f"sql: no folder for the copy of a database: {error}") from None
            self._copy = str(Path(self._folder.name, "copy.db"))
        try:
            found = await _HELPER.ask(process.opened, self._where, self.engine, self._copy, cpu_s=_OPEN_S)
        except TooMuch as error:
            found = {"wrong": f"the database cannot be opened: {error}", "remedy": None}
        if "wrong" in found:
            raise TaskError(found["wrong"], place=f"task {task.id}", remedy=found["remedy"])
        self._held = found["state"]

    async def close(self) -> None:
        """Removes the copy of the database."""
        if self._folder is not None:
            self._folder.cleanup()

    @tool
    async def sql(self, query: str) -> str:
        """Run one SQL query. Shows the first rows of what it returns.

        Args:
            query: One statement.
        """
        found = await self._asked(process.shown, query, self.rows, self.chars, self.query_s)
        if found["changed"]:
            self._held = await self._state(query)
        self._seen.add(found["text"])
        return str(found["text"])

    @tool
    async def schema(self, table: str | None = None) -> str:
        """Show the tables: how each is made, or one of them.

        Args:
            table: The name of a table. Default: all.
        """
        made: dict[str, str] = (await self._asked(process.described))["text"]
        if table is not None:
            found = {name.lower(): statement for name, statement in made.items()}.get(table.strip().strip('"`').lower())
            if found is None:
                names = process.cut(", ".join(made), self.chars)
                raise ToolError(f"there is no table {table[:200]!r}; there are: {names or 'none'}")
            made = {table: found}
        shown = process.cut(";\n".join(made.values()), self.chars) or "no tables"
        self._seen.add(shown)
        return shown

    def state_key(self) -> str:
        """Hash of all output seen so far, in any order, and of the tables' content if it can change."""
        return hashlib.sha256("\n\n".join([self._held, *sorted(self._seen)]).encode()).hexdigest()[:16]

    async def _asked(self, function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
        """Runs a function in the helper process and returns its result.

        Raises:
            ToolError: the database reported an error, or the process was killed.
        """
        try:
            found: dict[str, Any] = await _HELPER.ask(
                function, self._where, self.engine, self._copy, *arguments, cpu_s=self.query_s + _OWN_S,
                tries=1 if self.write else 2,  # a retry could apply a write twice
            )  # fmt: skip
        except (TooMuch, HelperRaised) as error:
            raise ToolError(f"the query was ended: {error}") from None
        if "failed" in found:
            raise ToolError(found["failed"])
        return found

    async def _state(self, query: str) -> str:
        """Returns a hash of the tables; if reading them takes too long, a hash of the queries so far."""
        try:
            return str(await _HELPER.ask(process.state, self._where, self.engine, self._copy, cpu_s=self.query_s))
        except Starved:
            raise
        except (TooMuch, AgentRLError):
            return hashlib.sha256(f"{self._held}\n{query}".encode("utf-8", "replace")).hexdigest()[:16]


def _absolute(where: str) -> str:
    """Returns a script unchanged, or a path made absolute."""
    return where if is_script(where) else str(Path(where).absolute())
