"""Questions about a world that does not exist: what no model can know, and every answer must be searched for.

The world is made by a seed: countries, cities, rivers, people, books and companies with names of our own, an article
each. A policy that answers without searching has nothing to go by.
"""

from __future__ import annotations

import functools
import itertools
import random
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.engines.scripted import Say
from agentrl.tools.builtin.search.tool import Document, open_index
from agentrl.types.task import Message, Task

WORLD = 7  # the seed of the world
_ONSETS = [
    "b", "br", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kl", "l", "m", "n", "p", "pr", "r", "s", "sk", "sn",
    "t", "tr", "v", "vr", "w", "z",
]  # fmt: skip
_VOWELS = ["a", "e", "i", "o", "u", "ae", "ia", "oa", "ui"]
_CODAS = ["", "l", "m", "n", "r", "s", "sk", "th", "v", "x"]
_PRODUCTS = ["lanterns", "clocks", "saddles", "kites", "boots", "anchors", "mirrors", "drums", "ropes", "lenses"]
_TITLES = ["The {} Letters", "Songs of {}", "A Winter in {}", "The Keeper of {}", "{} and After", "The {} Bridge"]


@dataclass(frozen=True)
class World:
    """The facts by relation and entity, and the articles."""

    facts: dict[str, dict[str, str]]
    documents: list[Document]


def corpus() -> list[Document]:
    """What is searched: an article for each entity."""
    return world().documents


def large_corpus() -> list[Document]:
    """The articles of a world of twelve times the size."""
    return world(size=12).documents


@functools.cache
def world(seed: int = WORLD, size: int = 1) -> World:
    """The world of a seed, `size` times as large."""
    rng = random.Random(f"world {seed}")
    names = _names(rng)
    facts: dict[str, dict[str, str]] = {relation: {} for relation in RELATIONS}
    articles: dict[str, list[str]] = {}

    def say(relation: str, about: str, value: Any, sentence: str) -> None:
        facts[relation][about] = str(value)
        articles.setdefault(about, []).append(sentence.format(about=about, value=value))

    countries = [next(names) for _ in range(60 * size)]
    cities = {country: [next(names) for _ in range(4)] for country in countries}
    everywhere = [(city, country) for country, own in cities.items() for city in own]
    people = [f"{next(names)} {next(names)}" for _ in range(240 * size)]
    for country, own in cities.items():
        say("capital", country, rng.choice(own), "{about} is a country. Its capital is {value}.")
        say("ruler", country, rng.choice(people), "It is ruled by {value}.")
    for city, country in everywhere:
        say("country", city, country, "{about} is a city in {value}.")
        say("founded", city, rng.randint(900, 1700), "It was founded in the year {value}.")
    for _ in range(90 * size):
        river, (city, country) = next(names), rng.choice(everywhere)
        say("rises", river, country, "The {about} is a river that rises in {value}.")
        say("passes", river, city, "It flows past the city of {value}.")
    for person in people:
        say("born_in", person, rng.choice(everywhere)[0], "{about} was born in {value}")
        say("born", person, rng.randint(1700, 1980), "in the year {value}.")
    for person in rng.sample(people, 120 * size):
        title = rng.choice(_TITLES).format(next(names))
        say("author", title, person, '"{about}" is a novel by {value}.')
        say("published", title, int(facts["born"][person]) + rng.randint(22, 60), "It appeared in {value}.")
    for person in rng.sample(people, 100 * size):
        company = f"{next(names)} {rng.choice(['Works', 'Company', 'Brothers'])}"
        say("founder", company, person, "The {about} was founded by {value}.")
        say("seat", company, rng.choice(everywhere)[0], "It has its seat in {value}")
        say("makes", company, rng.choice(_PRODUCTS), "and makes {value}.")
    documents = [
        Document(f"world/{about.lower().replace(' ', '_')}", about, " ".join(said)) for about, said in articles.items()
    ]
    rng.shuffle(documents)
    return World(facts, documents)


def _names(rng: random.Random) -> Iterator[str]:
    """Names of two or three syllables, none twice."""
    seen = set()
    while True:
        syllables = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice([2, 2, 3]))]
        name = ("".join(syllables) + rng.choice(_CODAS)).capitalize()
        if name not in seen:
            seen.add(name)
            yield name


RELATIONS = {
    "capital": "the capital of {}", "ruler": "the ruler of {}", "country": "the country in which {} lies",
    "founded": "the year in which {} was founded", "rises": "the country in which the river {} rises",
    "passes": "the city past which the river {} flows", "born_in": "the city in which {} was born",
    "born": "the year of birth of {}", "author": 'the author of the novel "{}"',
    "published": 'the year in which the novel "{}" appeared', "founder": "the founder of the {}",
    "seat": "the city in which the {} has its seat", "makes": "the product of the {}",
}  # fmt: skip
"""How a relation is spoken of."""

CHAINS: list[tuple[str, ...]] = [
    *((relation,) for relation in RELATIONS),
    ("author", "born"), ("author", "born_in"), ("founder", "born"), ("founder", "born_in"), ("ruler", "born"),
    ("ruler", "born_in"), ("rises", "capital"), ("rises", "ruler"), ("passes", "founded"), ("passes", "country"),
    ("seat", "country"), ("seat", "founded"), ("born_in", "country"), ("capital", "founded"),
    ("author", "born_in", "country"), ("founder", "born_in", "country"), ("seat", "country", "ruler"),
    ("seat", "country", "capital"), ("rises", "capital", "founded"), ("rises", "ruler", "born"),
    ("ruler", "born_in", "country"), ("born_in", "country", "capital"), ("passes", "country", "ruler"),
]  # fmt: skip
"""The relations that a question goes through, the first one first."""


def questions(
    n: int = 512,
    seed: int = 0,
    k: int = 5,
    held_out: bool = False,
    hops: int | None = None,
    relations: Sequence[str] = tuple(RELATIONS),
    large: bool = False,
) -> Iterator[Task]:
    """The first `n` questions, every chain in turn. A smaller `n` gives the beginning of the same list.

    Args:
        seed: shuffles the questions of each chain. The id of a question does not depend on it.
        k: a search must find its document among so many hits; as the recipe's `search.k`.
        held_out: the one eighth of the first entities (by a hash of their name) that is for evaluation, not the rest.
        hops: searches that a question needs, 1 to 3; default: all.
        relations: those that questions go through.
        large: questions about the world of `large_corpus`.
    """
    index = open_index(large_corpus if large else corpus)
    facts = world(size=12 if large else 1).facts
    chains = [chain for chain in CHAINS if hops in (None, len(chain)) and set(chain) <= set(relations)]
    pools = [_pool(facts, chain, seed, held_out, k, index.find) for chain in chains]
    dealt = (task for row in itertools.zip_longest(*pools) for task in row if task is not None)
    yield from itertools.islice(dealt, n)


def _pool(
    facts: Mapping[str, Mapping[str, str]],
    chain: tuple[str, ...],
    seed: int,
    held_out: bool,
    k: int,
    find: Callable[[str, int], list[Document]],
) -> Iterator[Task]:
    first = sorted(name for name in facts[chain[0]] if (zlib.crc32(name.encode()) % 8 == 0) == held_out)
    for about in random.Random(f"{seed} {chain}").sample(first, len(first)):
        steps = []
        here = about
        for relation in chain:
            gold, value = f"world/{here.lower().replace(' ', '_')}", facts[relation][here]
            if gold not in {hit.id for hit in find(here, k)}:
                break
            steps.append({"query": here, "gold": gold, "expect": [value]})
            here = value
        else:
            asked = about
            for relation in chain:
                asked = RELATIONS[relation].format(asked)
            yield Task.of(
                f"{'-'.join(chain)}/{about.lower().replace(' ', '-')}",
                f"What is {asked}?",
                answer=[here],
                gold=[step["gold"] for step in steps],
                hops=steps,
                facts=[values[about] for values in facts.values() if about in values],
            )


def random_agent(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Searches for words of the question and answers with the title of any document."""
    words = str(task.instruction[-1]["content"]).split()
    for _ in range(rng.randint(1, 3)):
        yield Say(calls=[("search", {"query": " ".join(rng.sample(words, 2))})])
    yield Say(calls=[("answer", {"text": rng.choice(corpus()).title})])


def guesser(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Searches for what a question of one search is about, and answers with a fact of it: twice as often with the one
    that is asked for as with each other one.

    Shows how to search and how to copy from what was found, and hints at which words ask for which fact.
    """
    (hop,) = task.data["hops"]
    yield Say(calls=[("search", {"query": hop["query"]})])
    yield Say(calls=[("answer", {"text": rng.choice([*task.data["answer"], *task.data["facts"]])})])
