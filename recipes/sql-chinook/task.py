"""Questions about a music shop, each with the query that answers it."""

from __future__ import annotations

import itertools
import random
import re
import sqlite3
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentrl import Message, Say, Task
from agentrl.registry.references import load_object
from agentrl.types.errors import TaskError

HERE = Path(__file__).parent
databases = load_object("./shop.py:databases", HERE)
TABLES = load_object("./shop.py:TABLES", HERE)
schema = load_object("./shop.py:schema", HERE)

Level = Literal["easy", "medium", "hard"]
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Question:
    """A question and the query that answers it. The id says what it is about."""

    id: str
    text: str
    sql: str


def questions(
    n: int = 512,
    seed: int = 0,
    held_out: bool = False,
    level: Level | None = None,
    kinds: Sequence[str] | None = None,
) -> Iterator[Task]:
    """The first `n` questions, every kind in turn. A smaller `n` gives the beginning of the same list.

    Args:
        seed: shuffles the questions of each kind. The id of a question does not depend on it.
        held_out: the one eighth of the questions (by a hash of their id) that is for evaluation, not the rest.
        level: `easy`: one table. `medium`: two or three. `hard`: groups, orders, queries within queries. Default: all.
        kinds: names of functions of this file; default: all of the level.
    """
    known = [kind.__name__ for kind in KINDS]
    if (unknown := next((name for name in kinds or () if name not in known), None)) is not None:
        raise TaskError(f"there is no kind {unknown!r}", remedy=f"there are: {', '.join(known)}")
    shop, other = databases()
    with closing(_open(shop)) as one, closing(_open(other)) as two:
        pools = []
        for kind, of in KINDS.items():
            if level not in (None, of) or kind.__name__ not in (kinds or known):
                continue
            pool = [each for each in kind(one) if (zlib.crc32(each.id.encode()) % 8 == 0) == held_out]
            random.Random(f"{seed} {kind.__name__}").shuffle(pool)
            pools.append(_telling(one, two, of, pool))
        dealt = (each for row in itertools.zip_longest(*pools) for each in row if each is not None)
        for of, question in itertools.islice(dealt, n):
            yield Task.of(
                question.id, question.text, sql=question.sql, level=of, database=shop, databases=[shop, other]
            )


def _telling(
    one: sqlite3.Connection, two: sqlite3.Connection, of: Level, pool: list[Question]
) -> Iterator[tuple[Level, Question]]:
    seen: set[str] = set()
    for each in pool:
        if each.id not in seen and _tells(one, two, each.sql):
            seen.add(each.id)
            yield of, each


def _tells(one: sqlite3.Connection, two: sqlite3.Connection, sql: str) -> bool:
    """Whether the query returns something, and something else from the other shop."""
    rows = _ask(one, sql)
    return any(value is not None for row in rows for value in row) and len(rows) <= 60 and rows != _ask(two, sql)


def _open(path: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True)


def _ask(shop: sqlite3.Connection, sql: str) -> Rows:
    return shop.execute(sql).fetchall()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _slug(*parts: Any) -> str:
    return "-".join(re.sub(r"\W+", "-", str(part).lower()).strip("-") for part in parts)


def _names(shop: sqlite3.Connection, table: str, column: str = "name") -> list[str]:
    """The values of a column that no two rows share."""
    listed = f"SELECT {column} FROM {table} GROUP BY {column} HAVING COUNT(*) = 1 ORDER BY 1"
    return [name for (name,) in _ask(shop, listed) if name]


def _people(shop: sqlite3.Connection, table: str) -> Rows:
    return _ask(shop, f"SELECT first_name, last_name FROM {table} ORDER BY 1, 2")


def _is(person: tuple[Any, ...], table: str = "") -> str:
    first, last = (f"{table}{'.' if table else ''}{column}" for column in ("first_name", "last_name"))
    return f"{first} = {_quoted(person[0])} AND {last} = {_quoted(person[1])}"


# --- easy: one table ------------------------------------------------------------------------------------------------


def count_rows(shop: sqlite3.Connection) -> Iterator[Question]:
    """how many rows a table has"""
    for table in TABLES:
        plural = table.replace("_", " ").removesuffix("y") + ("ies" if table.endswith("y") else "s")
        yield Question(f"count/{table}", f"How many {plural} are there?", f"SELECT COUNT(*) FROM {table}")


def count_where(shop: sqlite3.Connection) -> Iterator[Question]:
    """how many rows have a value"""
    asked = [
        ("customer", "country", "How many customers live in {}?"),
        ("customer", "city", "How many customers live in the city of {}?"),
        ("invoice", "billing_country", "How many invoices were billed to {}?"),
        ("invoice", "billing_city", "How many invoices were billed to the city of {}?"),
        ("track", "composer", "How many tracks were composed by {}?"),
    ]
    for table, column, text in asked:
        for (value,) in _ask(shop, f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL ORDER BY 1"):
            sql = f"SELECT COUNT(*) FROM {table} WHERE {column} = {_quoted(value)}"
            yield Question(f"count-where/{_slug(table, column, value)}", text.format(value), sql)


def attribute(shop: sqlite3.Connection) -> Iterator[Question]:
    """a column of one person"""
    columns = {"email": "email address", "phone": "phone number", "city": "city", "country": "country"}
    for table in ("customer", "employee"):
        more = {"title": "job title", "hire_date": "hire date", "birth_date": "date of birth"}
        for person in _people(shop, table):
            for column, name in {**columns, **(more if table == "employee" else {})}.items():
                yield Question(
                    f"attribute/{_slug(table, *person, column)}",
                    f"What is the {name} of the {table} {person[0]} {person[1]}?",
                    f"SELECT {column} FROM {table} WHERE {_is(person)}",
                )


def track_fact(shop: sqlite3.Connection) -> Iterator[Question]:
    """a column of one track"""
    for name in _names(shop, "track")[::7]:
        for column, said in (("milliseconds", "milliseconds"), ("bytes", "bytes")):
            sql = f"SELECT {column} FROM track WHERE name = {_quoted(name)}"
            yield Question(f"track/{_slug(name, column)}", f'How many {said} has the track "{name}"?', sql)


def invoices_over(shop: sqlite3.Connection) -> Iterator[Question]:
    """a comparison"""
    for amount in (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18):
        sql = f"SELECT COUNT(*) FROM invoice WHERE total > {amount}"
        yield Question(f"invoices-over/{amount}", f"How many invoices have a total above {amount}?", sql)
    for year, month in itertools.product(range(2007, 2012), range(1, 13)):
        first, last = f"{year}-{month:02}-01", f"{year}-{month:02}-31"
        sql = f"SELECT COUNT(*) FROM invoice WHERE invoice_date BETWEEN '{first}' AND '{last}'"
        text = f"How many invoices are dated from {first} to {last}?"
        yield Question(f"invoices-in/{year}-{month:02}", text, sql)


# --- medium: two or three tables ------------------------------------------------------------------------------------


def albums_of(shop: sqlite3.Connection) -> Iterator[Question]:
    """the albums of an artist, counted or listed"""
    for artist in _names(shop, "artist"):
        joined = f"FROM album JOIN artist ON album.artist_id = artist.id WHERE artist.name = {_quoted(artist)}"
        text = f'How many albums has the artist "{artist}"?'
        yield Question(f"albums-count/{_slug(artist)}", text, f"SELECT COUNT(*) {joined}")
        text = f'List the titles of the albums of the artist "{artist}" in alphabetical order.'
        yield Question(f"albums-list/{_slug(artist)}", text, f"SELECT album.title {joined} ORDER BY album.title")


def artist_of(shop: sqlite3.Connection) -> Iterator[Question]:
    """the artist of an album, and its number of tracks"""
    for title in _names(shop, "album", "title"):
        joined = f"FROM album JOIN artist ON album.artist_id = artist.id WHERE album.title = {_quoted(title)}"
        yield Question(
            f"artist/{_slug(title)}", f'Which artist made the album "{title}"?', f"SELECT artist.name {joined}"
        )
        joined = f"FROM track JOIN album ON track.album_id = album.id WHERE album.title = {_quoted(title)}"
        yield Question(
            f"tracks/{_slug(title)}", f'How many tracks has the album "{title}"?', f"SELECT COUNT(*) {joined}"
        )


def spent(shop: sqlite3.Connection) -> Iterator[Question]:
    """what a customer has paid"""
    for person in _people(shop, "customer"):
        joined = f"FROM invoice JOIN customer ON invoice.customer_id = customer.id WHERE {_is(person, 'customer')}"
        text = f"How much has the customer {person[0]} {person[1]} spent in total, rounded to two decimals?"
        yield Question(f"spent/{_slug(*person)}", text, f"SELECT ROUND(SUM(invoice.total), 2) {joined}")


def of_genre(shop: sqlite3.Connection) -> Iterator[Question]:
    """tracks by genre and media type"""
    for genre, media in itertools.product(_names(shop, "genre"), [None, *_names(shop, "media_type")]):
        sql = f"SELECT COUNT(*) FROM track JOIN genre ON track.genre_id = genre.id WHERE genre.name = {_quoted(genre)}"
        text = f'How many tracks belong to the genre "{genre}"?'
        if media:
            sql = sql.replace(" WHERE", " JOIN media_type ON track.media_type_id = media_type.id WHERE")
            sql += f" AND media_type.name = {_quoted(media)}"
            text = f'How many tracks of the genre "{genre}" have the media type "{media}"?'
        yield Question(f"genre/{_slug(genre, media or 'all')}", text, sql)


def supported(shop: sqlite3.Connection) -> Iterator[Question]:
    """customers of an employee in a country"""
    countries = [country for (country,) in _ask(shop, "SELECT DISTINCT country FROM customer ORDER BY 1")]
    for person, country in itertools.product(_people(shop, "employee"), countries):
        sql = (
            "SELECT customer.email FROM customer JOIN employee ON customer.employee_id = employee.id WHERE "
            f"{_is(person, 'employee')} AND customer.country = {_quoted(country)}"
        )
        text = f"List the email addresses of the customers in {country} whom {person[0]} {person[1]} supports."
        yield Question(f"supported/{_slug(*person, country)}", text, sql)


# --- hard: groups, orders, queries within queries -------------------------------------------------------------------


def most(shop: sqlite3.Connection) -> Iterator[Question]:
    """the first of an order, where no two share the last place"""
    counted = [
        ("artists", "albums", "artist.name", "album JOIN artist ON album.artist_id = artist.id", "artist.id"),
        ("genres", "tracks", "genre.name", "track JOIN genre ON track.genre_id = genre.id", "genre.id"),
        ("albums", "tracks", "album.title", "track JOIN album ON track.album_id = album.id", "album.id"),
        ("playlists", "tracks", "playlist.name",
         "playlist_track JOIN playlist ON playlist_track.playlist_id = playlist.id", "playlist.id"),
        ("countries", "customers", "country", "customer", "country"),
        ("countries", "invoices", "billing_country", "invoice", "billing_country"),
    ]  # fmt: skip
    for what, by, shown, tables, group in counted:
        places = _ask(shop, f"SELECT {shown}, COUNT(*) FROM {tables} GROUP BY {group} ORDER BY COUNT(*) DESC, {shown}")
        for n in range(1, 13):
            counts = [count for _, count in places[: n + 1]]
            if len(counts) == n + 1 and len({*counts}) == n + 1:
                one = f"Which {n} {what} have" if n > 1 else f"Which of the {what} has"
                yield Question(
                    f"most/{_slug(what, by, n)}",
                    f"{one} the most {by}? Start with the most.",
                    f"SELECT {shown} FROM {tables} GROUP BY {group} ORDER BY COUNT(*) DESC LIMIT {n}",
                )


def more_than(shop: sqlite3.Connection) -> Iterator[Question]:
    """groups above a number"""
    grouped = [
        ("genres", "tracks", "genre.name", "track JOIN genre ON track.genre_id = genre.id", "genre.id",
         range(20, 700, 20)),
        ("artists", "albums", "artist.name", "album JOIN artist ON album.artist_id = artist.id", "artist.id",
         range(2, 16)),
        ("albums", "tracks", "album.title", "track JOIN album ON track.album_id = album.id", "album.id",
         range(18, 40)),
        ("countries", "customers", "country", "customer", "country", range(1, 10)),
        ("billing cities", "invoices", "billing_city", "invoice", "billing_city", range(7, 20)),
    ]  # fmt: skip
    for what, by, shown, tables, group, numbers in grouped:
        for n in numbers:
            sql = f"SELECT {shown} FROM {tables} GROUP BY {group} HAVING COUNT(*) > {n}"
            yield Question(f"more-than/{_slug(what, by, n)}", f"Which {what} have more than {n} {by}?", sql)


def never_bought(shop: sqlite3.Connection) -> Iterator[Question]:
    """customers of a country without a purchase of a genre"""
    countries = [country for (country,) in _ask(shop, "SELECT DISTINCT country FROM customer ORDER BY 1")]
    for country, genre in itertools.product(countries, _names(shop, "genre")):
        sql = (
            f"SELECT first_name, last_name FROM customer WHERE country = {_quoted(country)} AND id NOT IN "
            "(SELECT invoice.customer_id FROM invoice JOIN invoice_line ON invoice_line.invoice_id = invoice.id "
            "JOIN track ON invoice_line.track_id = track.id JOIN genre ON track.genre_id = genre.id "
            f"WHERE genre.name = {_quoted(genre)})"
        )
        who = f'the customers in {country} who have never bought a track of the genre "{genre}"'
        yield Question(f"never-bought/{_slug(country, genre)}", f"Give the first and last names of {who}.", sql)


def longest(shop: sqlite3.Connection) -> Iterator[Question]:
    """the longest track of an artist"""
    for artist in _names(shop, "artist"):
        tables = "track JOIN album ON track.album_id = album.id JOIN artist ON album.artist_id = artist.id"
        chosen = f"FROM {tables} WHERE artist.name = {_quoted(artist)} ORDER BY milliseconds DESC"
        times = [time for (time,) in _ask(shop, f"SELECT milliseconds {chosen}")]
        if len(times) > 1 and times[0] > times[1]:
            text = f'What is the longest track of the artist "{artist}"?'
            yield Question(f"longest/{_slug(artist)}", text, f"SELECT track.name {chosen} LIMIT 1")


KINDS: dict[Callable[[sqlite3.Connection], Iterator[Question]], Level] = {
    count_rows: "easy", count_where: "easy", attribute: "easy", track_fact: "easy", invoices_over: "easy",
    albums_of: "medium", artist_of: "medium", spent: "medium", of_genre: "medium", supported: "medium",
    most: "hard", more_than: "hard", never_bought: "hard", longest: "hard",
}  # fmt: skip


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Runs the query that answers the question, and gives it if the tool shows rows."""
    seen = yield Say(calls=[("sql", {"query": task.data["sql"]})])
    worked = not str(seen[-1]["content"]).startswith("Error")
    yield Say(calls=[("answer", {"text": task.data["sql"] if worked else "no query"})])


def writer(task: Task, rng: random.Random) -> Iterator[Say]:
    """Answers with the right query at once, without a call."""
    yield Say(task.data["sql"])


def guesser(task: Task, rng: random.Random) -> Iterator[Say]:
    """The same of a question of the kind `attribute`, but with any table and column that such a query has.

    Shows how a query is written and how names are copied; which words ask for which column has to be found out.
    """
    columns = ["email", "phone", "city", "country", "title", "hire_date", "birth_date"]
    asked = f"SELECT {rng.choice(columns)} FROM {rng.choice(['customer', 'employee'])} WHERE"
    yield Say(re.sub("SELECT .* WHERE", asked, task.data["sql"]))


def random_agent(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Counts or lists any table, and gives that query."""
    for _ in range(rng.randint(1, 3)):
        table = rng.choice([*TABLES])
        what = rng.choice(["COUNT(*)", rng.choice(TABLES[table].split())])
        yield Say(calls=[("sql", {"query": f"SELECT {what} FROM {table}"})])
    yield Say(calls=[("answer", {"text": f"SELECT {what} FROM {table}"})])


def looked_up(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Runs the right query and gives its first value as a constant: what reading the result alone is worth."""
    seen = yield Say(calls=[("sql", {"query": task.data["sql"]})])
    lines = str(seen[-1]["content"]).splitlines()
    yield Say(calls=[("answer", {"text": f"SELECT {_quoted(lines[1].split(' | ')[0]) if len(lines) > 2 else 0}"})])


def empty(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Says nothing."""
    yield Say()


def junk(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Sends what is no query, and answers with one that returns nothing."""
    yield Say(calls=[("sql", {"query": rng.choice(["", "drop table track", "SELECT", "yes"])})])
    yield Say(calls=[("answer", {"text": rng.choice(["SELECT 1 WHERE 0", "SELECT NULL", "yes", "SELECT 0"])})])
