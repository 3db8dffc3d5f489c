"""DuckDB: a file that is only read, or one in memory that a script has made."""

from __future__ import annotations

import threading
from typing import Any

from agentrl.sql.query import Database, Limits, QueryFailed, Result, read
from agentrl.types.errors import MissingExtra, require_versions

_SHUT_IN: dict[str, Any] = {
    "enable_external_access": False,  # no files, no network, no other database
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_community_extensions": False,
    "threads": 1,
    "memory_limit": "512MB",
    "max_temp_directory_size": "0KB",
    # These two evaluate constants while the query is planned, where neither the memory nor the time is bounded.
    "disabled_optimizers": "expression_rewriter,statistics_propagation",
}
_NESTED = {"list", "array", "struct", "map", "union", "variant"}
"""Types whose values cannot be measured before they are whole in Python, at 60 bytes and more an element."""
_READING = {"SELECT", "EXPLAIN"}
_WRITING = {*_READING, "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER", "MERGE_INTO"}


class DuckDb(Database):
    """A DuckDB database.

    Args:
        where: path of a file, or a script that makes the database.
        script: `where` is a script.
        write: queries may change it. A file is then refused: only a script makes a copy of its own.

    Raises:
        MissingExtra: duckdb is not installed.
    """

    def __init__(self, where: str, *, script: bool = False, write: bool = False) -> None:
        self._duckdb = import_duckdb()
        self.write = write
        if script:
            self.connection = self._duckdb.connect(":memory:", config=_SHUT_IN)
            self.connection.execute(where)
        else:
            self.connection = self._duckdb.connect(where, read_only=True, config=_SHUT_IN)
        self.connection.execute("SET lock_configuration = true")

    def _run(self, query: str, limits: Limits) -> Result:
        late = threading.Timer(limits.seconds, self.connection.interrupt)
        late.daemon = True
        try:
            statements = self.connection.extract_statements(query)
            if len(statements) != 1:
                raise QueryFailed(f"one statement at a time, not {len(statements)}")
            kind = statements[0].type.name
            if kind not in (_WRITING if self.write else _READING):
                what = "can only be read" if not self.write and kind in _WRITING else f"takes no {kind} statement"
                raise QueryFailed(f"the database {what}")
            late.start()
            found = self.connection.execute(statements[0])
            described = found.description or ()
            for name, type_, *_ in described:
                if type_.id in _NESTED:
                    raise QueryFailed(f"column {name!r} is of type {type_}: cast it to VARCHAR, or unnest it")
            return read([column[0] for column in described], iter(found.fetchone, None), limits)
        except self._duckdb.InterruptException:
            raise QueryFailed(f"the query took longer than {limits.seconds:g} s") from None
        except (self._duckdb.Error, ValueError, OverflowError, MemoryError) as error:
            raise QueryFailed(str(error).split("\n\n")[0].strip()) from None
        finally:
            late.cancel()

    def schema(self) -> dict[str, str]:
        return {name: made for name, made in self.run("SELECT table_name, sql FROM duckdb_tables()", Limits()).rows}

    def close(self) -> None:
        self.connection.close()


def import_duckdb() -> Any:
    """The module.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise MissingExtra("duckdb", "duckdb") from None
    require_versions("duckdb")
    return duckdb
