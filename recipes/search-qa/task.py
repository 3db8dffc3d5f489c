"""Multi-hop questions over a library of 42,640 documents, with the searches that answer them.

Every question is made from facts (`library.py`), so its answer and the documents that prove it are known. A question
is kept only if each search of its chain finds its document among the best hits: what is asked can be found.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.engines.scripted import Say
from agentrl.registry.references import load_object
from agentrl.tools.builtin.search.tool import Document, open_index
from agentrl.types.task import Message, Task

Library = load_object("./library.py:Library", Path(__file__).parent)
people = load_object("./library.py:people", Path(__file__).parent)


@functools.cache
def library() -> Any:
    """The facts and documents, read once a process."""
    return Library()


def corpus() -> list[Document]:
    """What is searched: 10,033 Wikipedia introductions and 32,607 fields of the Factbook."""
    documents: list[Document] = library().documents
    return documents


@dataclass(frozen=True)
class Hop:
    """One search of a chain.

    Attributes:
        query: finds the document `gold` among the best hits.
        expect: what the document must say (one of these) for the chain to go on.
    """

    query: str
    gold: str
    expect: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """A question, all its right answers (the usual one first), and the chain that leads to them."""

    id: str
    text: str
    answers: tuple[str, ...]
    hops: tuple[Hop, ...]


def questions(n: int = 512, seed: int = 0, k: int = 5, held_out: bool = False) -> Iterator[Task]:
    """The first `n` questions, every kind in turn. A smaller `n` gives the beginning of the same list.

    Args:
        seed: shuffles the questions of each kind. The id of a question does not depend on it.
        k: a search must find its document among so many hits; as the recipe's `search.k`.
        held_out: the one eighth of the questions (by a hash of their id) that is for evaluation, not the rest.
    """
    index = open_index(corpus)
    # Many chains share a search.
    find = functools.cache(lambda query: {document.id: document for document in index.find(query, k)})
    pools = []
    for kind in KINDS:
        pool = [question for question in kind() if (zlib.crc32(question.id.encode()) % 8 == 0) == held_out]
        random.Random(f"{seed} {kind.__name__}").shuffle(pool)
        pools.append(question for question in pool if all(_found(hop, find(hop.query)) for hop in question.hops))
    dealt = (question for row in itertools.zip_longest(*pools) for question in row if question is not None)
    for question in itertools.islice(dealt, n):
        yield Task.of(
            question.id,
            question.text,
            answer=list(question.answers),
            gold=list(dict.fromkeys(hop.gold for hop in question.hops)),
            hops=[{"query": hop.query, "gold": hop.gold, "expect": list(hop.expect)} for hop in question.hops],
        )


def _found(hop: Hop, hits: dict[str, Document]) -> bool:
    return hop.gold in hits and says(f"{hits[hop.gold].title} {hits[hop.gold].text}", hop.expect)


def says(text: str, expected: tuple[str, ...] | list[str]) -> bool:
    """Whether `text` holds one of the expected strings as whole words."""
    return any(re.search(rf"(?<!\w){re.escape(one)}(?!\w)", text) for one in expected)


# --- the kinds of questions -----------------------------------------------------------------------------------------


def capital_peak() -> Iterator[Question]:
    """capital -> country -> highest point"""
    for country in _by_capital():
        if country.peak:
            yield _ask(
                "capital-peak",
                [country.code],
                f"What is the highest point of the country whose capital is {country.capital}?",
                [country.peak],
                _hop_from_capital(country),
                Hop(f"{country.name} elevation highest point", country.document("elevation"), (country.peak,)),
            )


def capital_domain() -> Iterator[Question]:
    """capital -> country -> top-level domain"""
    for country in _by_capital():
        if country.domain:
            yield _ask(
                "capital-domain",
                [country.code],
                f"What is the internet country code of the country whose capital is {country.capital}?",
                [country.domain],
                _hop_from_capital(country),
                _hop_to_domain(country),
            )


def capital_neighbour() -> Iterator[Question]:
    """capital -> country -> longest border"""
    for country, other in _longest_borders():
        yield _ask(
            "capital-neighbour",
            [country.code],
            f"Which country shares the longest land border with the country whose capital is {country.capital}?",
            other.names,
            _hop_from_capital(country),
            _hop_to_borders(country, other),
        )


def capital_neighbour_capital() -> Iterator[Question]:
    """capital -> country -> longest border -> its capital"""
    for country, other in _longest_borders():
        if other.capital:
            yield _ask(
                "capital-neighbour-capital",
                [country.code],
                "What is the capital of the country that shares the longest land border with the country whose "
                f"capital is {country.capital}?",
                [other.capital],
                _hop_from_capital(country),
                _hop_to_borders(country, other),
                _hop_to_capital(other),
            )


def capital_neighbour_domain() -> Iterator[Question]:
    """capital -> country -> longest border -> its top-level domain"""
    for country, other in _longest_borders():
        if other.domain:
            yield _ask(
                "capital-neighbour-domain",
                [country.code],
                "What is the internet country code of the country that shares the longest land border with the "
                f"country whose capital is {country.capital}?",
                [other.domain],
                _hop_from_capital(country),
                _hop_to_borders(country, other),
                _hop_to_domain(other),
            )


def common_neighbour() -> Iterator[Question]:
    """two countries -> the one that borders both"""
    for one, two, between in _common_neighbours():
        yield _ask(
            "common-neighbour",
            [one.code, two.code],
            f"Which country borders both {one.name} and {two.name}?",
            between.names,
            _hop_to_borders(one, between),
            _hop_to_borders(two, between),
        )


def common_neighbour_capital() -> Iterator[Question]:
    """two countries -> the one that borders both -> its capital"""
    for one, two, between in _common_neighbours():
        if between.capital:
            yield _ask(
                "common-neighbour-capital",
                [one.code, two.code],
                f"What is the capital of the only country that borders both {one.name} and {two.name}?",
                [between.capital],
                _hop_to_borders(one, between),
                _hop_to_borders(two, between),
                _hop_to_capital(between),
            )


def place_capital() -> Iterator[Question]:
    """place -> country -> capital"""
    countries = {country.name: country for country in library().countries.values() if country.sovereign}
    kinds = "city|port|town|village|river|mountain|lake|island|volcano|desert|national park|archaeological site"
    for article in library().articles.values():
        match = re.match(rf"(?:[\w-]+ ){{,3}}(?:{kinds})\b[^,]* in (?:the )?([A-Z][\w' ]+)$", article.description, re.I)
        country = countries.get(match[1]) if match else None
        if country is None or not country.capital or country.capital in article.title or country.name in article.title:
            continue
        # Borders cross rivers and mountains, Georgia is also a state, and Cyprus has a Mount Olympus too.
        others = [name for name in countries if name != country.name and name not in country.name]
        elsewhere = any(countries[name].peak == article.title for name in others)
        if country.name == "Georgia" or elsewhere or says(f"{article.title} {article.text}", others):
            continue
        yield _ask(
            "place-capital",
            [article.title],
            f"What is the capital of the country in which {article.title} is located?",
            [country.capital],
            Hop(article.title, article.document, (country.name,)),
            _hop_to_capital(country),
        )


def creator_born() -> Iterator[Question]:
    """work -> creator -> year of birth"""
    for name, work, creator, (born, _) in _works():
        text = f"In which year was the creator of the {name} born?"
        yield _ask("creator-born", [work.title], text, [str(born)], *_hops_to_creator(name, work, creator, born))


def creator_died() -> Iterator[Question]:
    """work -> creator -> year of death"""
    for name, work, creator, (_, died) in _works():
        text = f"In which year did the creator of the {name} die?"
        yield _ask("creator-died", [work.title], text, [str(died)], *_hops_to_creator(name, work, creator, died))


def born_first() -> Iterator[Question]:
    """two people -> their years of birth -> the earlier. One search often finds both: the easiest kind."""
    articles, years = library().articles, people(library().articles.values())
    names = sorted(name for name in years if " " in name)
    for one, two in zip(names, random.Random("pairs").sample(names, len(names)), strict=True):
        # Years of birth before modern records are often off by a few.
        if abs(years[one][0] - years[two][0]) >= 10:
            hops = [Hop(name, articles[name].document, (str(years[name][0]),)) for name in (one, two)]
            first = min(one, two, key=lambda name: years[name][0])
            yield _ask("born-first", [one, two], f"Who was born first, {one} or {two}?", [first], *hops)


def element_sum() -> Iterator[Question]:
    """two elements -> their atomic numbers -> the element of the sum"""
    numbers = {}
    for article in library().articles.values():
        if match := re.match(r"Chemical element with atomic number (\d+)", article.description):
            numbers[article] = int(match[1])
    elements = {number: article for article, number in numbers.items()}
    for one, two in itertools.combinations(sorted(elements), 2):
        if total := elements.get(one + two):
            a, b = elements[one], elements[two]
            yield _ask(
                "element-sum",
                [a.title, b.title],
                "Which chemical element has an atomic number equal to the sum of the atomic numbers of "
                f"{a.title.lower()} and {b.title.lower()}?",
                [total.title],
                Hop(f"{a.title} chemical element atomic number", a.document, (str(one),)),
                Hop(f"{b.title} chemical element atomic number", b.document, (str(two),)),
                Hop(f"chemical element with atomic number {one + two}", total.document, (total.title,)),
            )


KINDS: list[Callable[[], Iterator[Question]]] = [
    capital_peak, capital_domain, capital_neighbour, capital_neighbour_capital, capital_neighbour_domain,
    common_neighbour, common_neighbour_capital, place_capital, creator_born, creator_died, born_first, element_sum,
]  # fmt: skip


# --- what they are made of ------------------------------------------------------------------------------------------


def _ask(kind: str, about: list[str], text: str, answers: Any, *hops: Hop) -> Question:
    """The id says what the question is about, so it stays when other questions come or go."""
    slug = "-".join(re.sub(r"\W+", "-", _without_accents(part)).strip("-").lower() for part in about)
    accepted = dict.fromkeys([*answers, *map(_without_accents, answers)])
    return Question(f"{kind}/{slug}", text, tuple(accepted), hops)


def _without_accents(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


def _by_capital() -> list[Any]:
    """Countries that their capital names without giving them away."""
    countries = library().countries.values()
    shared = Counter(re.sub(r"\W", "", _without_accents(c.capital)).lower() for c in countries if c.capital)
    return [
        country
        for country in countries
        if country.sovereign
        and country.capital
        and shared[re.sub(r"\W", "", _without_accents(country.capital)).lower()] == 1
        and country.name not in country.capital
        and country.capital not in country.name
    ]


def _longest_borders() -> Iterator[tuple[Any, Any]]:
    """Countries and the neighbour of their longest border: by a clear margin, and in both sides' figures."""
    countries = library().countries
    for country in _by_capital():
        if not country.tidy or len(country.borders) < 2:
            continue
        theirs = {code: countries[code].borders[country.code] for code in country.borders}
        winners = set()
        for figures in (country.borders, theirs):
            second, first = sorted(figures, key=lambda code: figures[code])[-2:]
            winners.add(first if figures[first] > 1.05 * figures[second] else None)
        if len(winners) == 1 and (winner := winners.pop()) is not None and countries[winner].sovereign:
            yield country, countries[winner]


def _common_neighbours() -> Iterator[tuple[Any, Any, Any]]:
    """Pairs of countries that do not touch, and the only country between them."""
    countries = library().countries
    tidy = [country for country in countries.values() if country.tidy and country.sovereign]
    for one, two in itertools.combinations(tidy, 2):
        between = [code for code in one.borders if code in two.borders]
        if len(between) == 1 and two.code not in one.borders and countries[between[0]].sovereign:
            yield one, two, countries[between[0]]


def _works() -> Iterator[tuple[str, Any, Any, tuple[int, int]]]:
    """Works of one creator who has an article: (how it is spoken of, work, creator, years of the creator)."""
    articles, years = library().articles, people(library().articles.values())
    kinds = (
        "film|novel|book|painting|album|opera|play|symphony|poem|sculpture|comedy|tragedy|epic|ballet|fresco|musical|"
        "story|woodblock print|series|treatise|essay|novella|concerto|statue|song"
    )
    for work in articles.values():
        match = re.fullmatch(rf"(.*\b(?:{kinds})\b.*?)(?: directed)? by (.+)", work.description, re.IGNORECASE)
        if match is None or match[2] not in years:
            continue
        kind, creator = match[1][0].lower() + match[1][1:], match[2]
        # Older dates of birth are guesses; and a title like "Leviathan (Hobbes book)" tells too much.
        if years[creator][0] >= 1500 and creator.split()[-1] not in work.title:
            yield f'{kind} "{re.sub(r" [(].*[)]$", "", work.title)}"', work, articles[creator], years[creator]


def _hop_from_capital(country: Any) -> Hop:
    return Hop(f"capital {country.capital}", country.document("capital"), country.names)


def _hop_to_capital(country: Any) -> Hop:
    return Hop(f"{country.name} capital name", country.document("capital"), (country.capital,))


def _hop_to_borders(country: Any, neighbour: Any) -> Hop:
    return Hop(f"{country.name} land boundaries", country.document("land-boundaries"), neighbour.names)


def _hop_to_domain(country: Any) -> Hop:
    return Hop(f"{country.name} internet country code", country.document("internet-country-code"), (country.domain,))


def _hops_to_creator(name: str, work: Any, creator: Any, year: int) -> list[Hop]:
    return [
        Hop(name, work.document, (creator.title,)),
        Hop(creator.title, creator.document, (str(year),)),
    ]


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Follows the chain, and gives up where a search does not show what the next one needs: its success proves that
    the answer can be read from what the tool shows."""
    read = ""
    for hop in task.data["hops"]:
        page = _shown((yield Say(calls=[("search", {"query": hop["query"]})])), hop["gold"])
        if page and not says(page, hop["expect"]):
            page = _shown((yield Say(calls=[("fetch", {"id": hop["gold"]})])), hop["gold"])
        if not says(page, hop["expect"]):
            yield Say(calls=[("answer", {"text": "not found"})])
            return
        read += page
    answer = next((one for one in task.data["answer"] if says(read, [one])), "not found")
    yield Say(calls=[("answer", {"text": answer})])


def _shown(messages: list[Message], document: str) -> str:
    """What the messages show of a document; empty if it is not among them."""
    entries = "\n\n".join(str(message["content"]) for message in messages).split("\n\n")
    return next((entry for entry in entries if entry.startswith(f"[{document}]")), "")


def random_agent(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Searches for words of the question and answers with the title of any document."""
    words = " ".join(str(message["content"]) for message in task.instruction).split()
    for _ in range(rng.randint(1, 3)):
        yield Say(calls=[("search", {"query": " ".join(rng.sample(words, 2))})])
    yield Say(calls=[("answer", {"text": rng.choice(corpus()).title})])
