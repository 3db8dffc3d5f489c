"""Rewards of SQL answers, by the rows that they return or by the tables and columns that they read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from agentrl.rewards.checker import Checker
from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.functions.result_match import fraction
from agentrl.rewards.functions.verifiers import code_in, gold
from agentrl.sandbox.helper import TooMuch
from agentrl.sql.opening import Engine, open_database, require_database, require_engine
from agentrl.sql.query import Database, QueryFailed, QueryLimits, Result
from agentrl.sql.sqlite import Sqlite
from agentrl.types.episode import Episode
from agentrl.types.errors import AgentRLError, TaskError
from agentrl.types.task import Task

_ROWS = 100_000
_CPU_S = 30.0


def _require(settings: Mapping[str, Any]) -> None:
    """Raises MissingExtra: the settings ask for duckdb, which is not installed."""
    require_engine(settings.get("database", ""), settings.get("engine"))


@reward(source="execution accuracy, Spider test-suite evaluation (arXiv:2010.02840)", require=_require, bounds=(0, 1))
async def sql_execution(
    task: Task,
    episode: Episode,
    *,
    key: str = "sql",
    database: str = "database",
    engine: Engine | None = None,
    max_rows: int = _ROWS,
    timeout_s: float = _CPU_S,
) -> Scored:
    """1 if the query returns the rows of a gold query, else 0. Row order counts only if the gold query has ORDER BY.

    The query runs in a helper process, on a database that it can only read; writing, attaching and pragmas are refused.
    A query is ended after 50 million steps of SQLite, `timeout_s`, a value of 32 MiB, or 256 MiB of values.

    Args:
        key: field of `task.data` with the gold query or a list of them.
        database: field of `task.data` with the database: the path of a file (a database, or a script whose name ends in
            .sql), or SQL that creates one; or a list of them. The rows must match on all of them, so that a hard-coded
            value fails. Or a file for all tasks: ./shop.db.
        engine: `sqlite` or `duckdb`; default: by the file's ending, else `sqlite`.
        timeout_s: processor time for the query and the gold ones together.

    Raises:
        TaskError: no gold query or database, or a gold query that fails.
    """
    note = ""
    for where in _databases(task, database, "sql_execution"):
        same, note = await _compared(same_rows, task, episode, key, where, engine, max_rows, timeout_s)
        if not same:
            return Scored(0.0, note)
    return Scored(1.0, note)


@reward(
    source="PaVeRL-SQL (arXiv:2509.07159), accuracy_reward.py of the authors' code", require=_require, bounds=(0, 1)
)
async def sql_partial(
    task: Task,
    episode: Episode,
    *,
    key: str = "sql",
    database: str = "database",
    engine: Engine | None = None,
    right: float = 10.0,
    runs: float = 0.5,
    shortest: int = 16,
    max_rows: int = _ROWS,
    timeout_s: float = _CPU_S,
) -> Scored:
    """`right` times the share of the gold result that the query returns; `runs` for none of it; 0 if it does not run.

    The share is the fractional execution accuracy: rows times columns that match, by those of the gold result
    (`agentrl/rewards/functions/result_match.py`). Of several gold queries the best match counts.

    Args:
        shortest: minimum characters of a query, as in the authors' code.

    Other settings and errors: as `sql_execution`.
    """
    if len(code_in(episode.answer or "").strip()) < shortest:
        return Scored(0.0, "no query")
    where = _database(task, database, "sql_partial")
    share, note = await _compared(share_of_result, task, episode, key, where, engine, max_rows, timeout_s)
    return Scored(0.0 if share is None else right * share if share > 0 else runs, note)


@reward(source="syntax check of Reasoning-SQL (arXiv:2503.23157)", require=_require, bounds=(0, 1))
async def sql_syntax(
    task: Task,
    episode: Episode,
    *,
    key: str = "sql",
    database: str = "database",
    engine: Engine | None = None,
    max_rows: int = _ROWS,
    timeout_s: float = _CPU_S,
) -> Scored:
    """1 if the query runs, whatever it returns, else 0. Settings and errors: as `sql_execution`."""
    where = _database(task, database, "sql_syntax")
    share, note = await _compared(share_of_result, task, episode, key, where, engine, max_rows, timeout_s)
    return Scored(float(share is not None), note)


@reward(source="schema linking of Reasoning-SQL (arXiv:2503.23157)", bounds=(0, 1))
async def sql_schema(task: Task, episode: Episode, *, key: str = "sql", database: str = "database") -> float:
    """Jaccard index of the tables and columns that the two queries read. Of several gold queries the best match counts.

    SQLite's compiler reports them. A query that it refuses gets 0. Databases of DuckDB are not supported.

    Raises:
        TaskError: no gold query or database, or a gold query that fails.
    """
    queries = gold(task, key)
    asked = [code_in(episode.answer or "").strip(), *queries]
    where = _database(task, database, "sql_schema")
    said, *wanted = await _HELPER.ask(read_by, where, asked, cpu_s=_CPU_S)
    for query, found in zip(queries, wanted, strict=True):
        if found is None:
            raise TaskError(f"the gold query fails: {query}", place=f"task {task.id}")
    return max(_jaccard({*(said or ())}, {*found}) for found in wanted)


@reward(source="n-gram similarity of Reasoning-SQL (arXiv:2503.23157)", bounds=(0, 1))
def sql_ngrams(task: Task, episode: Episode, *, key: str = "sql", n: int = 2) -> float:
    """Jaccard index of the n-grams of words, in lower case. For the best of several gold queries.

    Args:
        n: words of an n-gram.
    """
    said = _ngrams(episode.answer, n)
    return max(_jaccard(said, _ngrams(query, n)) for query in gold(task, key))


async def _compared(
    compare: Any,
    task: Task,
    episode: Episode,
    key: str,
    where: str,
    engine: Engine | None,
    max_rows: int,
    cpu_s: float,
) -> tuple[Any, str]:
    """The verdict of `compare` on the answer, in a helper process, and its reason."""
    queries, answer = gold(task, key), code_in(episode.answer or "").strip()
    try:
        gold_error, found, note = await _HELPER.ask(compare, where, engine, queries, answer, max_rows, cpu_s=cpu_s)
    except TooMuch as problem:
        gold_error, found, note = "", None, str(problem)
        try:
            gold_error, *_ = await _HELPER.ask(compare, where, engine, queries, "", max_rows, cpu_s=cpu_s)
        except TooMuch:
            gold_error = f"{problem}: {queries}"
    if gold_error:
        raise TaskError(gold_error, place=f"task {task.id}")
    return found, note


def _databases(task: Task, key: str, reward: str) -> list[str]:
    found = task.data.get(key)
    if not isinstance(found, list | tuple):
        return [_database(task, key, reward)]
    if not found:
        raise TaskError(f"{reward}: no database: {key!r} is empty", place=f"task {task.id}")
    return [_checked(task, key, where, reward) for where in found]


def _database(task: Task, key: str, reward: str) -> str:
    where = key if key not in task.data and Path(key).is_absolute() else task.data.get(key)
    return _checked(task, key, where, reward)


def _checked(task: Task, key: str, where: Any, reward: str) -> str:
    if not isinstance(where, str) or not where.strip():
        raise TaskError(
            f"{reward}: no database: {key!r} is {where!r}",
            place=f"task {task.id}",
            remedy="give a file's path, or SQL that makes it, in task.data; or set the reward's `database` to the "
            f"field that holds it, or for all tasks to a file: {reward}: {{database: ./shop.db}}",
        )
    try:
        require_database(where)
    except TaskError as error:
        raise TaskError(f"{reward}: {error.message}", place=f"task {task.id}", remedy=error.remedy) from None
    return where


_HELPER = Checker("agentrl.rewards.functions.sql", memory_mb=3072)


# In the helper


def same_rows(
    where: str, engine: Engine | None, queries: list[str], answer: str, max_rows: int
) -> tuple[str, bool, str]:
    """Returns the error of a gold query (or ""), True if the answer returns the rows of one of them, and why not."""
    error, references, found, note = _results(where, engine, queries, answer, max_rows)
    if error or found is None:
        return error, False, note
    same = any(
        found.rows == wanted.rows
        if " order by " in f" {' '.join(query.lower().split())} "
        else Counter(found.rows) == Counter(wanted.rows)
        for query, wanted in zip(queries, references, strict=True)
    )
    return "", same, "" if same else f"{len(found.rows)} rows, not those of the gold query"


def share_of_result(
    where: str, engine: Engine | None, queries: list[str], answer: str, max_rows: int
) -> tuple[str, float | None, str]:
    """Returns the error of a gold query (or ""), the share of the gold result (None if the answer fails), a note."""
    error, references, found, note = _results(where, engine, queries, answer, max_rows)
    if error or found is None:
        return error, None, note
    shares = [fraction(found.rows, len(found.columns), gold.rows, len(gold.columns)) for gold in references]
    return "", max(shares), f"{max(shares):.3f} of the gold result"


def read_by(where: str, queries: list[str]) -> list[list[str] | None]:
    """Returns the sorted tables and columns that each query reads; None for a query that the database refuses."""
    with closing(open_database(where)) as database:
        assert isinstance(database, Sqlite)
        found: list[list[str] | None] = []
        for query in queries:
            try:
                found.append(sorted(database.reads(query)) if query else None)
            except QueryFailed:
                found.append(None)
        return found


def _results(
    where: str, engine: Engine | None, queries: list[str], answer: str, max_rows: int
) -> tuple[str, list[Result], Result | None, str]:
    """Returns the error of a gold query, the results of the gold queries, that of the answer, and its error."""
    try:
        database = open_database(where, engine=engine)
    except AgentRLError as error:
        return str(error), [], None, ""
    references: list[Result] = []
    with closing(database):
        for query in queries:
            try:
                references.append(_all_rows(database, query, max_rows))
            except QueryFailed as failure:
                return f"the gold query fails: {failure}: {query}", [], None, ""
        if not answer:
            return "", references, None, "no answer"
        try:
            return "", references, _all_rows(database, answer, max_rows), ""
        except QueryFailed as failure:
            return "", references, None, str(failure)


def _all_rows(database: Database, query: str, max_rows: int) -> Result:
    # The processor time of the helper is the limit, so no wall time is.
    result = database.run(query, QueryLimits(rows=max_rows, seconds=3600.0))
    if result.more:
        raise QueryFailed(f"more than {max_rows} rows")
    return result


# Texts


def _ngrams(query: str | None, n: int) -> set[tuple[str, ...]]:
    words = code_in(query or "").lower().split()
    return {tuple(words[first : first + n]) for first in range(len(words) - n + 1)}


def _jaccard(one: set[Any], other: set[Any]) -> float:
    return len(one & other) / len(one | other) if one | other else 0.0
