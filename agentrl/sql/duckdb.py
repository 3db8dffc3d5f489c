"""DuckDB: a file that is only read, or one that a script has made."""

from __future__ import annotations

import re
import tempfile
import threading
import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from agentrl.sql.query import Database, QueryFailed, QueryLimits, Result, read
from agentrl.types.errors import MissingExtra, require_versions

_SHUT_IN: dict[str, Any] = {
    "enable_external_access": False,  # no files, no network, no other database
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,  # a table's name is none of a variable of this process
    "threads": 1,
    "memory_limit": "512MB",
    "max_temp_directory_size": "0KB",
    # These two evaluate constants during planning, without a bound on memory or time.
    "disabled_optimizers": "expression_rewriter,statistics_propagation",
}
_LOOK_S = 0.02  # between two looks at the processor time, at least
_NESTED = {"list", "array", "struct", "map", "union", "variant"}
"""Types whose values can only be measured after conversion to Python, at 60 bytes and more an element."""
_EXPLAINS = re.compile(r"\s*EXPLAIN\b(\s*ANALYZE\b|\s*\([\w\s,]*\))?", re.IGNORECASE)

_CREATES = re.compile(
    r"\s*CREATE\s+(OR\s+REPLACE\s+)?((TEMP|TEMPORARY|UNIQUE|RECURSIVE)\s+)*"
    r"(TABLE|VIEW|INDEX|SEQUENCE|TYPE|SCHEMA|MACRO|FUNCTION)\b",
    re.IGNORECASE,
)

# Allowed types of statements. All others are refused, also those that a later DuckDB adds.
_READING = {"SELECT"}
_WRITING = {*_READING, "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER", "MERGE_INTO"}
_TABLES = {
    "generate_series", "histogram", "histogram_values", "json_each", "json_tree", "range", "repeat", "repeat_row",
    "show", "show_tables", "summary", "unnest", "pragma_show", "pragma_table_info", "pragma_version",
    *(f"duckdb_{kind}" for kind in ("columns", "constraints", "indexes", "schemas", "tables", "types", "views")),
}  # fmt: skip
"""Allowed table functions. None of them reads files, runs queries given as text, or exposes this process."""
_CLOCK = {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}
"""Functions that are called without brackets."""
_FUNCTIONS = """
SELECT lower(function_name), bool_and(CASE
    WHEN function_type IN ('table', 'pragma', 'table_macro') THEN NULL
    WHEN function_type = 'macro' THEN true ELSE coalesce(stability = 'CONSISTENT', false) END)
        OR lower(function_name) = 'error',
    list(macro_definition) FILTER (function_type = 'macro')
FROM duckdb_functions() GROUP BY lower(function_name)
"""


class DuckDb(Database):
    """A DuckDB database.

    A script's database is written to a file, too, so that the engine can open it read-only.

    Args:
        where: path of a file, or a script that creates the database.
        script: `where` is a script.
        write: queries may change it. A file is then refused: only a script creates a private copy.
        copy: path of that copy, created if missing; default: a temporary copy, deleted with this object.

    Raises:
        MissingExtra: duckdb is not installed.
    """

    def __init__(self, where: str, *, script: bool = False, write: bool = False, copy: Path | None = None) -> None:
        self._duckdb = import_duckdb()
        self.write = write
        with ExitStack() as made:
            if script and copy is None and not write:
                copy = Path(made.enter_context(tempfile.TemporaryDirectory(prefix="agentrl-sql-")), "made.duckdb")
            if copy is not None and not copy.exists():
                with self._duckdb.connect(str(copy), config=_SHUT_IN) as connection:
                    connection.execute(where)
            at = str(copy or (":memory:" if script else where))
            self.connection = self._duckdb.connect(at, read_only=not write, config=_SHUT_IN)
        if copy is None and script:
            self.connection.execute(where)
        self.connection.execute("SET lock_configuration = true")

    def _run(self, query: str, limits: QueryLimits) -> Result:
        over = threading.Event()
        late = threading.Thread(target=self._interrupt, args=(limits.seconds, over), daemon=True)
        try:
            (statement,) = self._statements(query)
            late.start()
            found = self.connection.execute(statement)
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
            over.set()

    def _interrupt(self, seconds: float, over: threading.Event) -> None:
        """Ends the query under way once this process has taken so much processor time, unless it is over before."""
        until = time.process_time() + seconds
        while not over.wait(max(until - time.process_time(), _LOOK_S)):
            if time.process_time() >= until:
                self.connection.interrupt()
                return

    def _statements(self, query: str) -> list[Any]:
        """The statement of a query, as a list of one.

        Raises:
            QueryFailed: it is not one, or not one that is allowed.
        """
        statements = self.connection.extract_statements(query)
        if len(statements) != 1:
            raise QueryFailed(f"one statement at a time, not {len(statements)}")
        kind = str(statements[0].type.name)
        if kind == "EXPLAIN" and (explains := _EXPLAINS.match(query)):  # with ANALYZE it runs the query
            inner = [each.type.name for each in self.connection.extract_statements(query[explains.end() :])]
            kind = "SELECT" if inner == ["SELECT"] else f"EXPLAIN {' '.join(inner)}"
        if kind not in (_WRITING if self.write else _READING) or (kind == "CREATE" and not _CREATES.match(query)):
            what = "can only be read" if not self.write and kind.split()[-1] in _WRITING else f"takes no {kind}"
            raise QueryFailed(f"the database {what}{'' if what.endswith('read') else ' statement'}")
        if refused := _refused() & _called(self._duckdb, query):
            raise QueryFailed(f"the database takes no {min(refused)}()")
        return list(statements)

    def schema(self) -> dict[str, str]:
        return {
            name: made for name, made in self.run("SELECT table_name, sql FROM duckdb_tables()", QueryLimits()).rows
        }

    def close(self) -> None:
        self.connection.close()


@cache
def _refused() -> frozenset[str]:
    """Returns the functions of DuckDB that queries may not call.

    Allowed are deterministic functions, macros of only these, and those of `_TABLES`.
    """
    duckdb = import_duckdb()
    with duckdb.connect(":memory:") as connection:
        rows = connection.execute(_FUNCTIONS).fetchall()
    known = {name for name, *_ in rows} | _CLOCK
    allowed = {name for name, steady, _ in rows if steady or name in _TABLES} - _CLOCK
    macros = {name: _called(duckdb, "\n".join(texts)) & known for name, _, texts in rows if texts}
    while wrong := {name for name in allowed & macros.keys() if macros[name] - allowed}:
        allowed -= wrong
    return frozenset(known - allowed)


def _called(duckdb: Any, text: str) -> set[str]:
    """The names in a text behind which a bracket opens, and those of `_CLOCK`, in lower case."""
    tokens = duckdb.tokenize(text)
    ends = [start for start, _ in tokens[1:]] + [len(text.encode())]
    raw = text.encode()
    words = [
        raw[start:end].decode(errors="replace").strip().strip('"').lower()
        for (start, kind), end in zip(tokens, ends, strict=True)
        if kind != duckdb.token_type.comment
    ]
    before_bracket = {word for word, after in zip(words, [*words[1:], ""], strict=True) if after.startswith("(")}
    return before_bracket | (_CLOCK & set(words))


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
